//! `/metrics/cadvisor`: the machine, the node, its cgroups, pods and containers, with the names, labels and units
//! of cAdvisor.
//!
//! A pod has up to three kinds of rows, which the labels tell apart: its cgroup (no `name`), its
//! sandbox with the network (`name`, no `container`), and its containers.

mod disks;
mod families;
mod machine;
mod page;
mod rows;

use kubelet_machine_info::MachineReader;
use kubelet_metrics::Exposition;
use kubelet_stats::{Depth, StatsError};

use super::NodeView;

/// A container has about this much text.
const BYTES_PER_ROW: usize = 10 * 1024;

/// All metrics.
pub(super) async fn metrics<V: NodeView>(
    view: &V,
    machine: &MachineReader,
) -> Result<Exposition, StatsError> {
    let stats = view.stats(Depth::Prompt).await?;
    // A panic is logged already.
    let machine = machine.read().await.ok();
    let rows = rows::of(&stats);
    let mut page = Exposition::of_about(BYTES_PER_ROW * rows.len());
    families::write(&rows, &mut page);
    page.gauge(
        "container_scrape_error",
        "1 if there was an error while getting container metrics, 0 otherwise",
        u8::from(stats.runtime_error.is_some()),
    );
    machine::write(machine.as_deref(), &mut page);
    Ok(page)
}

#[cfg(test)]
mod tests;
