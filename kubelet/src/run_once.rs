//! `--runonce`: starts the pods of the sources, and exits.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kubelet_node::shutdown::Logind;
use kubelet_pod_spec::{identity::PodUid, phase::Phase};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    kubelet::{
        Kubelet, KubeletError,
        pod_runner::{Orphans, PodRunner},
    },
    sources::update::{PodOperation, PodUpdate},
};

/// How often to check whether every source was read.
const POLL_PERIOD: Duration = Duration::from_millis(100);
/// A pod that does not run by then has failed.
const DEADLINE: Duration = Duration::from_secs(300);

/// The result of one pod.
#[derive(Clone, Debug)]
pub struct RunOnceResult {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Success if it runs or has succeeded; otherwise why not.
    pub result: Result<(), String>,
}

impl PodRunner {
    /// Starts the pods of the sources once every source was read, waits until each runs or has
    /// failed, and leaves them running. Touches no other pod.
    ///
    /// # Errors
    /// [`KubeletError::Cancelled`].
    pub async fn run_once(
        self,
        mut updates: mpsc::Receiver<PodUpdate>,
    ) -> Result<Vec<RunOnceResult>, KubeletError> {
        let (kubelet, cancel) = (self.kubelet.clone(), self.cancel.clone());
        let gather = kubelet.gather(&mut updates);
        let pods = cancel
            .run_until_cancelled(gather)
            .await
            .ok_or(KubeletError::Cancelled)?;
        let (pods_in, updates) = mpsc::channel(pods.len().max(1));
        for (pod, source) in pods.values() {
            let update = PodUpdate {
                pods: vec![Arc::clone(pod)],
                operation: PodOperation::Add,
                source: *source,
            };
            // The receiver is below, and the channel has room for all.
            pods_in
                .send(update)
                .await
                .map_err(|_| KubeletError::Cancelled)?;
        }
        let settle = async {
            let settle = kubelet.settle(pods.values().map(|(pod, _)| pod));
            let results = cancel.run_until_cancelled(settle).await;
            cancel.cancel();
            results
        };
        let run = self.run_pods(updates, Orphans::Leave, None::<&Logind>);
        let ((), results) = tokio::join!(run, settle);
        results.ok_or(KubeletError::Cancelled)
    }
}

impl Kubelet {
    /// The pods of all sources, once every source was read.
    async fn gather(
        &self,
        updates: &mut mpsc::Receiver<PodUpdate>,
    ) -> BTreeMap<PodUid, (Arc<Pod>, crate::sources::update::Source)> {
        let mut pods = BTreeMap::new();
        let mut open = true;
        loop {
            tokio::select! {
                biased;
                update = updates.recv(), if open => match update {
                    None => open = false,
                    Some(update) => for pod in update.pods {
                        let uid = PodUid::of(&pod);
                        match update.operation {
                            PodOperation::Remove | PodOperation::Delete => pods.remove(&uid),
                            _ => pods.insert(uid, (pod, update.source)),
                        };
                    }
                },
                () = tokio::time::sleep(POLL_PERIOD) => if !open || self.sources_ready() {
                    return pods;
                }
            }
        }
    }

    async fn settle(&self, pods: impl Iterator<Item = &Arc<Pod>>) -> Vec<RunOnceResult> {
        let deadline = Instant::now() + DEADLINE;
        let mut changes = self.statuses().subscribe();
        let mut results = Vec::new();
        for pod in pods {
            let uid = PodUid::of(pod);
            let result = loop {
                let status = self.statuses().get(&uid).unwrap_or_default();
                match Phase::parse(status.phase.as_deref()) {
                    Phase::Running | Phase::Succeeded => break Ok(()),
                    Phase::Failed => break Err(describe(&status)),
                    Phase::Pending => {}
                }
                let changed = tokio::time::timeout_at(deadline, changes.changed());
                if changed.await.is_err() {
                    let status = describe(&status);
                    break Err(format!("not running after {DEADLINE:?}: {status}"));
                }
            };
            results.push(RunOnceResult {
                pod: Arc::clone(pod),
                result,
            });
        }
        results
    }
}

/// Why a pod does not run, from its status.
fn describe(status: &PodStatus) -> String {
    let phase = status.phase.as_deref().unwrap_or("Pending");
    let own = [&status.reason, &status.message];
    let own = own.into_iter().flatten().cloned();
    let containers = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .flatten()
        .filter_map(|container| {
            let state = container.state.as_ref()?;
            let (reason, message) = match (&state.waiting, &state.terminated) {
                (Some(waiting), _) => (&waiting.reason, &waiting.message),
                (_, Some(terminated)) => (&terminated.reason, &terminated.message),
                _ => return None,
            };
            let reason = reason.as_deref().unwrap_or_default();
            let message = message.as_deref().unwrap_or_default();
            Some(format!("{}: {reason} {message}", container.name))
        });
    let parts: Vec<String> = std::iter::once(phase.to_owned())
        .chain(own)
        .chain(containers)
        .collect();
    parts.join("; ").trim_end().to_owned()
}
