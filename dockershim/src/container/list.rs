//! `ListContainers`.

use cri_proto::runtime::v1::{ContainerFilter, ListContainersRequest, ListContainersResponse};

use crate::{
    Error, Shim, labels,
    model::{Container, convert::container::list_item},
};

/// The containers in the model that match the filter.
///
/// # Errors
/// `Unavailable` before the first sync.
pub fn list(shim: &Shim, request: ListContainersRequest) -> Result<ListContainersResponse, Error> {
    shim.require_sync()?;
    let filter = request.filter.unwrap_or_default();
    let snapshot = shim.model.snapshot();
    let containers = snapshot
        .containers()
        .filter(|container| passes(container, &filter))
        .map(|container| list_item(container))
        .collect();
    Ok(ListContainersResponse { containers })
}

fn passes(container: &Container, filter: &ContainerFilter) -> bool {
    let state = filter.state.as_ref();
    container.id().starts_with(&filter.id)
        && container.sandbox_id.starts_with(&filter.pod_sandbox_id)
        && state.is_none_or(|wanted| wanted.state == container.status.state)
        && labels::matches(&container.status.labels, &filter.label_selector)
}
