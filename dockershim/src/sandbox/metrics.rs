//! `ListPodSandboxMetrics`, and `StreamPodSandboxMetrics`, which sends the same list in parts.

use cri_proto::runtime::v1::{PodSandboxMetrics, PodSandboxState};

use crate::{Error, Shim};

/// The metrics of each ready sandbox.
///
/// # Errors
/// `Unavailable` before the first sync, `DeadlineExceeded` if the kernel does not answer.
pub async fn list(shim: &Shim) -> Result<Vec<PodSandboxMetrics>, Error> {
    shim.require_sync()?;
    shim.collect_stats("ListPodSandboxMetrics", |collector, snapshot| {
        let sandboxes = snapshot.sandboxes();
        sandboxes
            .filter(|sandbox| sandbox.status.state() == PodSandboxState::SandboxReady)
            .map(|sandbox| collector.pod_metrics(snapshot, sandbox))
            .collect()
    })
    .await
}
