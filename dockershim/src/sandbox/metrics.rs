//! `ListPodSandboxMetrics`, and `StreamPodSandboxMetrics`, which sends the same list in parts.

use std::time::Duration;

use cri_proto::runtime::v1::{PodSandboxMetrics, PodSandboxState};

use crate::{Error, Shim};

/// How long a scrape waits for the first measurement of new containers.
const FIRST_MEASUREMENT: Duration = Duration::from_millis(300);

/// The metrics of each ready sandbox.
///
/// # Errors
/// `Unavailable` before the first sync, `DeadlineExceeded` if the kernel does not answer.
pub async fn list(shim: &Shim) -> Result<Vec<PodSandboxMetrics>, Error> {
    shim.require_sync()?;
    let layers = &shim.stats.layers;
    layers.first(&shim.model, FIRST_MEASUREMENT).await;
    shim.collect_stats("ListPodSandboxMetrics", |collector, snapshot| {
        let sandboxes = snapshot.sandboxes();
        sandboxes
            .filter(|sandbox| sandbox.status.state() == PodSandboxState::SandboxReady)
            .map(|sandbox| collector.pod_metrics(snapshot, sandbox))
            .collect()
    })
    .await
}
