//! `ContainerStats`.

use cri_proto::runtime::v1::{ContainerStatsRequest, ContainerStatsResponse};

use super::status::find;
use crate::{Error, Shim, stats};

/// What one container uses; one that does not run uses nothing.
///
/// # Errors
/// `NotFound` when there is none, `Unavailable` before the first sync, `DeadlineExceeded`
/// when the kernel does not answer.
pub async fn stats(
    shim: &Shim,
    request: ContainerStatsRequest,
) -> Result<ContainerStatsResponse, Error> {
    let container = find(shim, &request.container_id).await?;
    let stats = stats::look(shim, "ContainerStats", move |look, _| {
        look.container(&container)
    });
    Ok(ContainerStatsResponse {
        stats: Some(stats.await?),
    })
}
