//! `ReopenContainerLog`.

use cri_proto::runtime::v1::{ReopenContainerLogRequest, ReopenContainerLogResponse};

use super::{exec::require_running, status::find};
use crate::{Error, Shim};

/// Opens a new file at the container's log path after the client has renamed the old one for
/// rotation.
///
/// # Errors
/// `NotFound`; `FailedPrecondition` if the container is not running; `Unsupported` if its log is
/// the engine's own.
pub async fn reopen_log(
    shim: &Shim,
    request: ReopenContainerLogRequest,
) -> Result<ReopenContainerLogResponse, Error> {
    let container = find(shim, &request.container_id).await?;
    require_running(&container)?;
    if !container.cri_log {
        return Err(Error::unsupported(
            "container_id",
            "the engine writes and rotates the container's log; only logs of --log-format cri can \
             be reopened",
        ));
    }
    shim.logs.reopen(container.id()).await?;
    Ok(ReopenContainerLogResponse {})
}
