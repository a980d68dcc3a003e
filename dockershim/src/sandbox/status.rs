//! `PodSandboxStatus`.

use std::{collections::BTreeMap, sync::Arc};

use cri_proto::runtime::v1::{PodSandboxStatusRequest, PodSandboxStatusResponse};

use crate::{Error, Shim, container::status::status_of, model::Sandbox};

/// The sandbox in memory.
///
/// # Errors
/// `NotFound` when there is none, `Unavailable` before the first sync.
pub async fn status(
    shim: &Shim,
    request: PodSandboxStatusRequest,
) -> Result<PodSandboxStatusResponse, Error> {
    let sandbox = find(shim, &request.pod_sandbox_id).await?;
    let mut info = BTreeMap::new();
    if request.verbose {
        let text = serde_json::json!({ "pid": sandbox.pid, "runtime": sandbox.runtime });
        info.insert("info".to_owned(), text.to_string());
    }
    let images = shim.images.snapshot();
    Ok(PodSandboxStatusResponse {
        status: Some(sandbox.status.clone()),
        info,
        containers_statuses: shim
            .model
            .snapshot()
            .containers_of(sandbox.id())
            .map(|container| status_of(container, &images))
            .collect(),
        timestamp: jiff::Timestamp::now().as_nanosecond() as i64,
    })
}

/// The sandbox with this id or unique prefix, fully known.
///
/// # Errors
/// `NotFound` when there is none, `Unavailable` before the first sync.
pub async fn find(shim: &Shim, id: &str) -> Result<Arc<Sandbox>, Error> {
    shim.require_sync()?;
    let look = || {
        let found = shim.model.snapshot().sandbox(id);
        found.map_err(|error| error.of("sandbox", id))
    };
    let sandbox = look()?;
    if !sandbox.provisional {
        return Ok(sandbox);
    }
    shim.looker.refresh(sandbox.id()).await?;
    look()
}
