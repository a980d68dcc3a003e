//! Sends the statuses of pods to the API server, and deletes terminated pods there once their
//! resources on the node are released.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use kubelet_api_client::request::{ApiError, ask, delete_at_once};
use kubelet_pacing::backoff::jittered;
use kubelet_pod_spec::identity::{self, PodUid};
use retry_delay::RetryDelay;
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{Report, StatusManager, is_terminal, patch};
use crate::pod::manager::PodManager;

/// Interval of full comparisons with the API server's copies, as upstream.
const SYNC_PERIOD: Duration = Duration::from_secs(10);
/// Shortest and longest delay while the API server is unavailable.
const RETRY_BASE: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Most concurrent status updates.
const AT_ONCE: usize = 4;

/// Sends the statuses of pods to the API server.
///
/// Invariant: a single task sends, and for each pod only the newest status. Rejected updates are
/// retried; changes by other clients are reverted.
pub struct StatusSync {
    client: Client,
    statuses: Arc<StatusManager>,
    pods: Arc<PodManager>,
    /// Keyed by the pod's UID at the API server.
    sent: BTreeMap<PodUid, SentStatus>,
}

impl fmt::Debug for StatusSync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusSync")
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}

/// State of a pod's status at the API server.
#[derive(Debug, Default)]
struct SentStatus {
    /// Version of the last report sent.
    version: u64,
    /// Version of the last report rejected.
    refused: u64,
    /// Since when the server lacks the current report.
    lacking: Option<Instant>,
    /// The server's answer to the last patch, until the pod's source is as new.
    server: Option<Arc<Pod>>,
    /// Resource version of the server's copy last compared with the report.
    compared: Option<String>,
    /// The pod's deletion was requested.
    deleted: bool,
}

/// The outcome of sending a status.
struct SendOutcome {
    version: u64,
    compared: Option<String>,
    server: Option<Arc<Pod>>,
    deleted: bool,
}

/// A status to send.
struct DueStatus {
    uid: PodUid,
    report: Report,
    server: Arc<Pod>,
    /// The pod's deletion was requested.
    deleted: bool,
}

impl StatusSync {
    /// Sends the `statuses` of the pods in `pods`.
    pub fn new(client: Client, statuses: Arc<StatusManager>, pods: Arc<PodManager>) -> Self {
        Self {
            client,
            statuses,
            pods,
            sent: BTreeMap::new(),
        }
    }

    /// Sends changes, and compares all statuses at intervals, until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let changes = self.statuses.subscribe();
        let _ = cancel.run_until_cancelled(self.work(changes)).await;
    }

    async fn work(&mut self, mut changes: watch::Receiver<()>) {
        let mut period = tokio::time::interval(SYNC_PERIOD);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut delay = RetryDelay::new(RETRY_BASE, RETRY_MAX);
        let mut all = true;
        let mut failing = false;
        loop {
            match self.sync(all).await {
                Ok(()) => {
                    delay.reset();
                    failing = false;
                }
                Err(error) => {
                    if !failing && !error.is_unreachable() {
                        warn!(%error, "cannot sync pod statuses with the API server; retrying");
                    }
                    failing = true;
                    tokio::time::sleep(jittered(delay.after_failure())).await;
                    all = true;
                    continue;
                }
            }
            all = tokio::select! {
                biased;
                _ = period.tick() => true,
                // Fails only if the manager is dropped, which `self` holds.
                _ = changes.changed() => false,
            };
        }
    }

    /// Sends the statuses that are due.
    ///
    /// # Errors
    /// The API server is unreachable or does not answer.
    async fn sync(&mut self, all: bool) -> Result<(), ApiError> {
        let due = self.due(all);
        let client = &self.client;
        let mut sent = stream::iter(due)
            .map(|due| async move {
                let outcome = send(client, &due).await;
                (due, outcome)
            })
            .buffer_unordered(AT_ONCE);
        while let Some((due, outcome)) = sent.next().await {
            if outcome
                .as_ref()
                .is_ok_and(|outcome| outcome.server.is_some())
            {
                let latencies = self.statuses.latencies();
                latencies.sent(&due.uid, &due.report.status);
            }
            let entry = self.sent.entry(due.uid).or_default();
            match outcome {
                Ok(outcome) => {
                    if let Some(since) = entry.lacking.take()
                        && outcome.server.is_some()
                    {
                        let durations = self.statuses.metrics.sync_durations.of([]);
                        durations.observe_duration(since.elapsed());
                    }
                    entry.version = outcome.version;
                    entry.compared = outcome.compared;
                    entry.server = outcome.server.or_else(|| entry.server.take());
                    entry.deleted |= outcome.deleted;
                }
                Err(error) if error.is_silence() => return Err(error),
                Err(error) => {
                    let pod = identity::full_name(&due.server);
                    if entry.refused == due.report.version || error.is_away() {
                        debug!(pod, %error, "the API server still does not accept the pod status");
                    } else {
                        warn!(pod, %error, "the API server does not accept the pod status");
                    }
                    entry.refused = due.report.version;
                }
            }
        }
        Ok(())
    }

    /// The statuses that the server lacks. With `all`, also those that were rejected, those that
    /// differ from the server's copy, and pods to delete.
    fn due(&mut self, all: bool) -> Vec<DueStatus> {
        let mut due = Vec::new();
        let mut sent = std::mem::take(&mut self.sent);
        for (uid, report) in self.statuses.reports() {
            let Some(known) = self.pods.get(&uid).and_then(|pod| self.at_server(pod)) else {
                continue;
            };
            let uid = PodUid::of(&known);
            let mut entry = sent.remove(&uid).unwrap_or_default();
            let server = newest(known, &mut entry.server);
            let has_report = entry.version >= report.version;
            if !has_report {
                entry.lacking.get_or_insert(report.changed);
            }
            let is_compared = entry.compared == server.metadata.resource_version;
            let deletes = !entry.deleted && is_deletable(&server, &report);
            let is_due = match all {
                true => !has_report || !is_compared || deletes,
                false => !has_report && entry.refused < report.version,
            };
            let deleted = entry.deleted;
            self.sent.insert(uid.clone(), entry);
            if is_due {
                due.push(DueStatus {
                    uid,
                    report,
                    server,
                    deleted,
                });
            }
        }
        due
    }

    /// The API server's copy of the pod; for a static pod its mirror pod. `None` for a pod from a
    /// checkpoint that the server has not confirmed yet.
    fn at_server(&self, pod: Arc<Pod>) -> Option<Arc<Pod>> {
        if !identity::is_static(&pod) {
            return pod.metadata.resource_version.is_some().then_some(pod);
        }
        let mirror = self.pods.mirror(&identity::full_name(&pod))?;
        identity::is_mirror_of(&mirror, &pod).then_some(mirror)
    }
}

/// The newer of the source's copy and the server's answer.
fn newest(known: Arc<Pod>, answered: &mut Option<Arc<Pod>>) -> Arc<Pod> {
    if let Some(answered) = answered
        && version(answered) > version(&known)
    {
        return Arc::clone(answered);
    }
    *answered = None;
    known
}

/// Resource versions of one resource type are increasing numbers.
fn version(pod: &Pod) -> Option<u64> {
    pod.metadata.resource_version.as_ref()?.parse().ok()
}

/// Whether only the kubelet's final delete is missing: deletion was requested, the server has the
/// terminal status, and the pod's resources on the node are released.
fn is_deletable(server: &Pod, report: &Report) -> bool {
    report.finished
        && server.metadata.deletion_timestamp.is_some()
        && !identity::is_mirror(server)
        && server.status.as_ref().is_some_and(is_terminal)
}

/// Whether the server's copy of a mirror pod has a terminated container that is not terminated in
/// `status`. The API server rejects that change for containers that are not restarted. A static pod
/// that was removed and runs again therefore needs a new mirror pod.
fn takes_back_an_end(server: &Pod, status: &PodStatus) -> bool {
    if !identity::is_mirror(server) {
        return false;
    }
    let Some(old) = &server.status else {
        return false;
    };
    let ended = |status: &PodStatus| -> BTreeSet<String> {
        let all = status.init_container_statuses.iter().flatten();
        let all = all.chain(status.container_statuses.iter().flatten());
        let has_ended = |c: &&ContainerStatus| {
            let state = c.state.as_ref();
            state.is_some_and(|state| state.terminated.is_some())
        };
        all.filter(has_ended).map(|c| c.name.clone()).collect()
    };
    !ended(old).is_subset(&ended(status))
}

/// Sends one status, and deletes the pod if it is deletable.
async fn send(client: &Client, due: &DueStatus) -> Result<SendOutcome, ApiError> {
    let DueStatus { report, server, .. } = due;
    let name = identity::name(server);
    let api = Api::<Pod>::namespaced(client.clone(), identity::namespace(server));
    let patch = patch::between(server, report)
        .map_err(|error| ApiError::Unusable(kube::Error::SerdeError(error)))?;
    let mut sent = SendOutcome {
        version: report.version,
        compared: server.metadata.resource_version.clone(),
        server: None,
        deleted: false,
    };
    let mut server = Arc::clone(server);
    if let Some(patch) = patch {
        debug!(pod = identity::full_name(&server), %patch, "sending the pod status");
        let patch = Patch::Strategic(patch);
        let params = PatchParams::default();
        match ask(api.patch_status(name, &params, &patch)).await {
            Ok(mut pod) => {
                pod.metadata.managed_fields = None;
                sent.compared.clone_from(&pod.metadata.resource_version);
                server = Arc::new(pod);
                sent.server = Some(Arc::clone(&server));
            }
            // The pod is gone or was replaced; its source will report that.
            Err(error) if error.is_not_found() || error.is_conflict() => {
                debug!(
                    pod = identity::full_name(&server), %error,
                    "pod status not updated: the pod is gone or was replaced"
                );
                return Ok(sent);
            }
            Err(error) if error.is_invalid() && takes_back_an_end(&server, &report.status) => {
                let uid = server.metadata.uid.as_deref().unwrap_or_default();
                if delete_at_once(&api, name, uid).await? {
                    info!(
                        pod = identity::full_name(&server),
                        mirror_uid = uid,
                        "deleted the mirror pod of an earlier run"
                    );
                }
                return Ok(sent);
            }
            Err(error) => return Err(error),
        }
    }
    if !due.deleted && is_deletable(&server, report) {
        let uid = server.metadata.uid.as_deref().unwrap_or_default();
        delete_at_once(&api, name, uid).await?;
        sent.deleted = true;
        info!(
            pod = identity::full_name(&server),
            pod_uid = server.metadata.uid,
            "deleted the pod from the API server: nothing is left of it on this node"
        );
    }
    Ok(sent)
}
