//! The worker task of one pod.

use std::{future::Future, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kubelet_host::file_work::FileWork;
use kubelet_pacing::backoff::jittered;
use kubelet_pod_spec::identity;
use kubelet_runtime::pod_state::{PodState, RestartDelays};
use kubelet_traces::{pod_operation, traced};
use retry_delay::RetryDelay;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument as _, Span, debug, error, info, warn};

use super::{
    PodSyncer, SyncOutcome, WorkerError, WorkerPod,
    mailbox::{Mailbox, RequestSnapshot},
    metrics::WorkerMetrics,
    static_names::StaticNames,
};

/// First and longest delay after a failure.
const RETRY_BASE: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// How long to wait for the file work of an aborted sync.
const FILE_WORK_LIMIT: Duration = Duration::from_secs(10);

/// Takes one pod through its lifecycle: sync, terminating, terminated, removed.
pub(super) struct Worker<S> {
    pub(super) subject: WorkerPod,
    pub(super) syncer: Arc<S>,
    pub(super) names: Arc<StaticNames>,
    pub(super) mailbox: watch::Sender<Mailbox>,
    /// When an earlier instance of the pod ended: runtime state from before then does not belong to
    /// this instance.
    pub(super) reborn: Option<Instant>,
    /// When this instance of the pod was first seen.
    pub(super) seen: Instant,
    /// Blocking file work of this instance's syncs.
    pub(super) file_work: FileWork,
    pub(super) metrics: Arc<WorkerMetrics>,
    pub(super) sync_frequency: Duration,
    pub(super) restart_delays: RestartDelays,
}

/// The delays after failed attempts of a worker.
const RETRY: RetryDelay = RetryDelay::new(RETRY_BASE, RETRY_MAX);

/// Why a wait ended.
#[derive(PartialEq, Eq)]
enum Woken {
    /// The pod may proceed.
    Go,
    /// The pod must be killed.
    Killed,
}

impl<S: PodSyncer> Worker<S> {
    /// Runs until the pod is removed completely.
    pub(super) async fn run(mut self) {
        loop {
            if self.acquire_name().await == Woken::Go {
                self.sync_until_done().await;
            }
            self.terminate().await;
            self.mailbox.send_modify(Mailbox::end);
            self.end_file_work().await;
            self.settle().await;
            self.mailbox.send_modify(Mailbox::settle);
            let full_name = self.subject.full_name.clone();
            self.names.release(&full_name, &self.subject.uid);
            self.wait_until(Mailbox::is_deleted).await;
            self.remove().await;
            let mut again = false;
            self.mailbox.send_modify(|mailbox| again = mailbox.finish());
            if !again {
                debug!("pod worker ended");
                return;
            }
            self.seen = Instant::now();
            self.reborn = Some(self.seen);
            let pod = self.take_snapshot().pod;
            self.metrics.restarted(pod.as_deref());
            info!("pod was recreated with the same UID; starting it again");
        }
    }

    /// A snapshot of the requests. A later request has another revision, so it is not missed.
    fn take_snapshot(&mut self) -> RequestSnapshot {
        let snapshot = self.mailbox.borrow().snapshot();
        self.subject.pod.clone_from(&snapshot.pod);
        snapshot
    }

    async fn wait_until(&self, ready: impl FnMut(&Mailbox) -> bool) {
        let mut mailbox = self.mailbox.subscribe();
        // Fails only if the sender is gone, which `self` holds.
        let _ = mailbox.wait_for(ready).await;
    }

    async fn killed(&self) {
        self.wait_until(|mailbox| mailbox.kill.is_some()).await;
    }

    async fn acquire_name(&mut self) -> Woken {
        let Some(pod) = self.take_snapshot().pod else {
            return Woken::Killed;
        };
        if !identity::is_static(&pod) {
            return Woken::Go;
        }
        tokio::select! {
            biased;
            () = self.killed() => Woken::Killed,
            () = self.names.acquire(&self.subject.full_name, &self.subject.uid) => Woken::Go,
        }
    }

    /// Syncs the pod on request and periodically, until it is killed or has ended by itself.
    async fn sync_until_done(&mut self) {
        let state = Arc::new(PodState::new(self.restart_delays).seen_at(self.seen));
        let mut newer_than = self.reborn;
        let mut last: Option<Arc<Pod>> = None;
        let mut retry = RETRY;
        loop {
            let snapshot = self.take_snapshot();
            // Do not start a sync that a kill would abort at once.
            let (Some(pod), None) = (snapshot.pod, snapshot.kill) else {
                return;
            };
            let operation = match &last {
                None => {
                    self.metrics.started(&pod);
                    let waited = self.seen.elapsed();
                    self.metrics.starts.of([]).observe_duration(waited);
                    "create"
                }
                Some(last) if Arc::ptr_eq(last, &pod) => "sync",
                Some(_) => "update",
            };
            last = Some(Arc::clone(&pod));
            let begun = Instant::now();
            let sync = {
                let (syncer, uid) = (Arc::clone(&self.syncer), self.subject.uid.clone());
                let state = Arc::clone(&state);
                async move {
                    let status = syncer.status(&uid, newer_than).await?;
                    let span = pod_operation("syncPod", &pod, Some(operation));
                    traced(span, syncer.sync_pod(pod, status, state)).await
                }
            };
            let mut sync = isolated(self.file_work.track(sync));
            let result = tokio::select! {
                biased;
                () = self.killed() => {
                    self.file_work.give_up();
                    sync.abort();
                    // The sync must not run concurrently with the termination.
                    let _ = sync.await;
                    return;
                }
                result = &mut sync => flatten(result),
            };
            self.took(operation, begun);
            let delay = match result {
                Ok(SyncOutcome { terminal: true, .. }) => return,
                Ok(outcome) => {
                    newer_than = outcome.changed.then(Instant::now);
                    self.next_sync(outcome, &mut retry)
                }
                Err(error) => {
                    warn!(
                        %error,
                        "cannot sync pod"
                    );
                    // It is unknown what the failed sync changed.
                    newer_than = Some(Instant::now());
                    jittered(retry.after_failure())
                }
            };
            let news = self.wait_until(|mailbox| mailbox.revision != snapshot.revision);
            tokio::select! {
                biased;
                () = self.killed() => return,
                () = news => {}
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    fn took(&self, operation: &'static str, begun: Instant) {
        let durations = self.metrics.durations.of([operation]);
        durations.observe_duration(begun.elapsed());
    }

    fn next_sync(&self, outcome: SyncOutcome, retry: &mut RetryDelay) -> Duration {
        let delay = if outcome.failed {
            jittered(retry.after_failure())
        } else {
            retry.reset();
            jittered(self.sync_frequency)
        };
        outcome.retry_after.map_or(delay, |after| after.min(delay))
    }

    /// Kills the pod's containers; retries until all have ended.
    async fn terminate(&mut self) {
        let mut retry = RETRY;
        // An aborted sync may have started something.
        let mut newer_than = Instant::now();
        loop {
            let RequestSnapshot { kill, grace, .. } = self.take_snapshot();
            let begun = Instant::now();
            let terminate = {
                let (syncer, subject) = (Arc::clone(&self.syncer), self.subject.clone());
                async move {
                    let status = syncer.status(&subject.uid, Some(newer_than)).await?;
                    let span = of_known("syncTerminatingPod", &subject);
                    traced(span, syncer.terminate_pod(subject, status, kill)).await
                }
            };
            let mut terminate = isolated(terminate);
            let shrunk = self.wait_until(|mailbox| mailbox.grace() < grace);
            tokio::pin!(shrunk);
            tokio::select! {
                biased;
                result = &mut terminate => {
                    self.took("kill", begun);
                    match flatten(result) {
                        Ok(()) => return,
                        Err(error) => warn!(
                            %error,
                            "cannot terminate pod"
                        ),
                    }
                }
                () = &mut shrunk => {
                    terminate.abort();
                    let _ = terminate.await;
                    newer_than = Instant::now();
                    continue;
                }
            }
            tokio::select! {
                biased;
                () = shrunk => {}
                () = tokio::time::sleep(jittered(retry.after_failure())) => {}
            }
            newer_than = Instant::now();
        }
    }

    /// Waits, for a limited time, for the file work of an aborted sync: it must not create files
    /// while they are removed. Hung work is abandoned: it creates nothing any more.
    async fn end_file_work(&mut self) {
        let file_work = std::mem::take(&mut self.file_work);
        if timeout(FILE_WORK_LIMIT, file_work.ended()).await.is_err() {
            warn!("file operations of the pod hang; cleaning up anyway");
        }
    }

    /// Reports the end of the pod, and releases its resources on the node.
    async fn settle(&mut self) {
        let mut retry = RETRY;
        // A newer status has the exit codes of all containers.
        let newer_than = Instant::now();
        loop {
            let begun = Instant::now();
            let kill = self.mailbox.borrow().snapshot().kill;
            let verdict = kill.and_then(|kill| kill.verdict);
            let (syncer, subject) = (Arc::clone(&self.syncer), self.subject.clone());
            let settle = isolated(async move {
                let status = syncer.status(&subject.uid, Some(newer_than)).await?;
                let span = of_known("syncTerminatedPod", &subject);
                traced(span, syncer.settle_pod(subject, status, verdict)).await
            });
            let settled = flatten(settle.await);
            self.took("terminated", begun);
            let Err(error) = settled else {
                return;
            };
            warn!(
                %error,
                "cannot clean up after pod"
            );
            tokio::time::sleep(jittered(retry.after_failure())).await;
        }
    }

    /// Removes what is left of the pod; retries until it succeeds.
    async fn remove(&mut self) {
        let mut retry = RETRY;
        loop {
            let (syncer, subject) = (Arc::clone(&self.syncer), self.subject.clone());
            let comes_back = self.mailbox.borrow().comes_back();
            let remove = isolated(async move {
                let status = syncer.status(&subject.uid, None).await?;
                syncer.remove_pod(subject, status, comes_back).await
            });
            let Err(error) = flatten(remove.await) else {
                info!("removed pod");
                return;
            };
            warn!(
                %error,
                "cannot remove pod"
            );
            tokio::time::sleep(jittered(retry.after_failure())).await;
        }
    }
}

/// The span of an operation on a pod; none for a pod whose spec is not known.
fn of_known(operation: &'static str, subject: &WorkerPod) -> Span {
    let pod = subject.pod.as_deref();
    pod.map_or_else(Span::none, |pod| pod_operation(operation, pod, None))
}

/// Runs work in its own task, so that a panic affects only that work.
fn isolated<T: Send + 'static>(
    work: impl Future<Output = Result<T, WorkerError>> + Send + 'static,
) -> AbortOnDropHandle<Result<T, WorkerError>> {
    AbortOnDropHandle::new(tokio::spawn(work.in_current_span()))
}

fn flatten<T>(
    result: Result<Result<T, WorkerError>, tokio::task::JoinError>,
) -> Result<T, WorkerError> {
    match result {
        Ok(result) => result,
        Err(join) => {
            error!(error = %join, "pod task panicked");
            Err(format!("the pod task panicked: {join}").into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_failed_together_are_not_tried_again_together() {
        let mut delays: Vec<Duration> = (0..50)
            .map(|_| jittered(RETRY.clone().after_failure()))
            .collect();
        delays.sort_unstable();
        delays.dedup();
        assert!(delays.len() > 10, "{delays:?}");
    }
}
