//! `ListContainerStats`, and `StreamContainerStats`, which sends the same list in parts.

use cri_proto::runtime::v1::{ContainerStats, ContainerStatsFilter};

use crate::{Error, Shim, labels, model::Container};

/// The usage of each container that matches the filter.
///
/// # Errors
/// `Unavailable` before the first sync, `DeadlineExceeded` if the kernel does not answer.
pub async fn list(
    shim: &Shim,
    filter: Option<ContainerStatsFilter>,
) -> Result<Vec<ContainerStats>, Error> {
    shim.require_sync()?;
    let filter = filter.unwrap_or_default();
    shim.collect_stats("ListContainerStats", move |collector, snapshot| {
        let containers = snapshot.containers();
        containers
            .filter(|container| passes(container, &filter))
            .map(|container| collector.container(container))
            .collect()
    })
    .await
}

fn passes(container: &Container, filter: &ContainerStatsFilter) -> bool {
    container.id().starts_with(&filter.id)
        && container.sandbox_id.starts_with(&filter.pod_sandbox_id)
        && labels::matches(&container.status.labels, &filter.label_selector)
}
