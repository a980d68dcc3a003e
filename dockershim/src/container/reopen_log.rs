//! `ReopenContainerLog`.

use cri_proto::runtime::v1::{ReopenContainerLogRequest, ReopenContainerLogResponse};

use super::{exec::require_running, status::find};
use crate::{Error, Shim};

/// Goes on with a new file at the path of the container's log, after someone has renamed
/// the old one to rotate it.
///
/// # Errors
/// `NotFound`; `FailedPrecondition` when the container does not run; `Unsupported` when its
/// log is the engine's own.
pub async fn reopen_log(
    shim: &Shim,
    request: ReopenContainerLogRequest,
) -> Result<ReopenContainerLogResponse, Error> {
    let container = find(shim, &request.container_id).await?;
    require_running(&container)?;
    if !container.cri_log {
        return Err(Error::unsupported(
            "container_id",
            "its log is the engine's own, which rotates it; --log-format cri gives containers \
             a log that can be reopened",
        ));
    }
    shim.logs.reopen(container.id()).await?;
    Ok(ReopenContainerLogResponse {})
}
