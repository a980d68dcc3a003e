//! `ListPodSandboxStats`, and `StreamPodSandboxStats`, which sends the same list in parts.

use cri_proto::runtime::v1::{PodSandboxState, PodSandboxStats, PodSandboxStatsFilter};

use crate::{Error, Shim, labels, model::Sandbox};

/// The usage of each ready sandbox that matches the filter.
///
/// # Errors
/// `Unavailable` before the first sync, `DeadlineExceeded` if the kernel does not answer.
pub async fn list(
    shim: &Shim,
    filter: Option<PodSandboxStatsFilter>,
) -> Result<Vec<PodSandboxStats>, Error> {
    shim.require_sync()?;
    let filter = filter.unwrap_or_default();
    shim.collect_stats("ListPodSandboxStats", move |collector, snapshot| {
        let sandboxes = snapshot.sandboxes();
        sandboxes
            .filter(|sandbox| passes(sandbox, &filter))
            .map(|sandbox| collector.pod(snapshot, sandbox))
            .collect()
    })
    .await
}

fn passes(sandbox: &Sandbox, filter: &PodSandboxStatsFilter) -> bool {
    sandbox.status.state() == PodSandboxState::SandboxReady
        && sandbox.id().starts_with(&filter.id)
        && labels::matches(&sandbox.status.labels, &filter.label_selector)
}
