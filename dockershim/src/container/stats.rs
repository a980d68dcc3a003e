//! `ContainerStats`.

use cri_proto::runtime::v1::{ContainerStatsRequest, ContainerStatsResponse};

use super::status::find;
use crate::{Error, Shim};

/// The usage of one container; zero if it is not running.
///
/// # Errors
/// `NotFound` if there is no such container, `Unavailable` before the first sync,
/// `DeadlineExceeded` if the kernel does not answer.
pub async fn stats(
    shim: &Shim,
    request: ContainerStatsRequest,
) -> Result<ContainerStatsResponse, Error> {
    let container = find(shim, &request.container_id).await?;
    let stats = shim.collect_stats("ContainerStats", move |collector, _| {
        collector.container(&container)
    });
    Ok(ContainerStatsResponse {
        stats: Some(stats.await?),
    })
}
