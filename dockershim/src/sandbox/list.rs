//! `ListPodSandbox`.

use cri_proto::runtime::v1::{ListPodSandboxRequest, ListPodSandboxResponse, PodSandboxFilter};

use crate::{
    Error, Shim, labels,
    model::{Sandbox, convert::sandbox::list_item},
};

/// The sandboxes in the model that match the filter.
///
/// # Errors
/// `Unavailable` before the first sync.
pub fn list(shim: &Shim, request: ListPodSandboxRequest) -> Result<ListPodSandboxResponse, Error> {
    shim.require_sync()?;
    let filter = request.filter.unwrap_or_default();
    let snapshot = shim.model.snapshot();
    let items = snapshot
        .sandboxes()
        .filter(|sandbox| passes(sandbox, &filter))
        .map(|sandbox| list_item(sandbox))
        .collect();
    Ok(ListPodSandboxResponse { items })
}

fn passes(sandbox: &Sandbox, filter: &PodSandboxFilter) -> bool {
    let state = filter.state.as_ref();
    sandbox.id().starts_with(&filter.id)
        && state.is_none_or(|wanted| wanted.state == sandbox.status.state)
        && labels::matches(&sandbox.status.labels, &filter.label_selector)
}
