//! `/metrics/cadvisor`: the machine, the node, its cgroups, pods and containers, with the names, labels and units
//! of cAdvisor.
//!
//! A pod has up to three kinds of rows, which the labels tell apart: its cgroup (no `name`), its
//! sandbox with the network (`name`, no `container`), and its containers.

mod families;
mod machine;
mod page;
mod rows;

use kubelet_metrics::Exposition;
use kubelet_stats::{Depth, StatsError};

use super::NodeView;
use crate::machine_info::MachineReader;

/// All metrics.
pub(super) async fn metrics<V: NodeView>(
    view: &V,
    machine: &MachineReader,
) -> Result<Exposition, StatsError> {
    let stats = view.stats(Depth::Everything).await?;
    // A panic is logged already.
    let machine = machine.read().await.ok();
    let mut page = Exposition::default();
    families::write(&rows::of(&stats), &mut page);
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
