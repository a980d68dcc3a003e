//! `PodSandboxStats`.

use cri_proto::runtime::v1::{PodSandboxStatsRequest, PodSandboxStatsResponse};

use crate::{Error, Shim};

/// The usage of one sandbox and its containers; zero if it is not ready.
///
/// # Errors
/// `NotFound` if there is no such sandbox, `Unavailable` before the first sync, `DeadlineExceeded`
/// if the kernel does not answer.
pub async fn stats(
    shim: &Shim,
    request: PodSandboxStatsRequest,
) -> Result<PodSandboxStatsResponse, Error> {
    let sandbox = shim.find_sandbox(&request.pod_sandbox_id).await?;
    let stats = shim.collect_stats("PodSandboxStats", move |collector, snapshot| {
        collector.pod(snapshot, &sandbox)
    });
    Ok(PodSandboxStatsResponse {
        stats: Some(stats.await?),
    })
}
