//! The granted resources of pods, which survive a restart of the kubelet.

use std::{collections::BTreeMap, io, sync::Arc};

use atomic_file::Durability;
use k8s_openapi::{
    api::core::v1::{Pod, PodCondition, PodSpec, ResourceRequirements},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kubelet_cri_client::pod_status::{ContainerStatus, PodStatus};
use kubelet_pod_spec::{directory, identity::PodUid};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tracing::{info, warn};

use super::{
    RESIZE_IN_PROGRESS, RESIZE_PENDING, ResizeRefusal, ResizeReport, all_containers,
    another_kubelet::grant_in_status,
    changed,
    checkpoint::{self, Checkpoint},
    condition,
    cpu_memory::CpuMemory,
    events::ResizeEvent,
    in_progress_condition,
    metrics::{ResizeMetrics, ResizeTrigger},
    running, same_resources, since, some_resources, with_resources_of,
};
use crate::RuntimeManager;

/// The granted resources of all pods. A pod has an entry from its admission until none of its
/// containers is running.
#[derive(Debug, Default)]
pub(crate) struct PodGrants {
    pods: Mutex<BTreeMap<PodUid, PodGrant>>,
    /// Grants stored by the previous kubelet for pods that are not admitted yet.
    before: Mutex<BTreeMap<PodUid, Checkpoint>>,
    /// Held during decisions to admit a pod or to grant a resize.
    placing: Mutex<()>,
    /// Wakes the task that decides on pending resizes.
    wanted: Notify,
    /// Why it was woken last.
    trigger: Mutex<Option<ResizeTrigger>>,
    pub(super) metrics: ResizeMetrics,
}

/// The granted resources of one pod.
#[derive(Debug)]
pub(super) struct PodGrant {
    /// The pod with its granted resources.
    pod: Arc<Pod>,
    /// The pod with reserved resources, which are granted once they are stored.
    next: Option<Arc<Pod>>,
    /// The pod as it was granted when this kubelet took it over, until its containers are seen.
    adopted: Option<Arc<Pod>>,
    /// Resources applied to containers since their creation, by container ID.
    pub(super) actuated: BTreeMap<String, ResourceRequirements>,
    /// Pod-level resources in force.
    pub(super) whole: Option<ResourceRequirements>,
    pending: Option<PodCondition>,
    pub(super) in_progress: Option<PodCondition>,
    /// Whether the grant is stored in the pod's directory.
    is_kept: bool,
    /// Serialises writes of the checkpoint, so that the last write has the newest data.
    writing: Arc<AsyncMutex<()>>,
}

impl PodGrant {
    /// The grant of a newly admitted pod: as stored by the previous kubelet, or as told by another
    /// one, else its spec.
    fn of(pod: &Arc<Pod>, before: Option<Checkpoint>) -> Self {
        let is_kept = before.is_some();
        let before = before.or_else(|| grant_in_status(pod)).unwrap_or_default();
        let condition = |type_| {
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            conditions.iter().find(|c| c.type_ == type_).cloned()
        };
        let mut pod_granted = before.laid_over(pod);
        if is_resize(pod, &pod_granted) {
            let status = pod.status.as_ref();
            let observed = status.and_then(|status| status.observed_generation);
            Arc::make_mut(&mut pod_granted).metadata.generation = observed;
        }
        Self {
            next: None,
            whole: match &before.actuated_whole {
                Some(whole) => some_resources(whole),
                None => whole(&pod_granted).cloned(),
            },
            adopted: Some(Arc::clone(&pod_granted)),
            pod: pod_granted,
            actuated: before.actuated,
            pending: condition(RESIZE_PENDING),
            in_progress: condition(RESIZE_IN_PROGRESS),
            is_kept,
            writing: Arc::default(),
        }
    }

    /// Records what containers have that do not tell what they were created with, as another kubelet
    /// created them: what was granted when this one took the pod over.
    pub(super) fn see_adopted(&mut self, status: &PodStatus) {
        let adopted = self.adopted.take();
        let spec = adopted.as_ref().and_then(|pod| pod.spec.as_ref());
        for container in spec.into_iter().flat_map(all_containers) {
            let run = running(status, container);
            if let Some(run) = run.filter(|run| self.actuated(run).is_none()) {
                let resources = container.resources.clone().unwrap_or_default();
                self.actuated.insert(run.id.clone(), resources);
            }
        }
    }

    /// The resources that a running container was resized to, else those it was created with.
    pub(super) fn actuated<'a>(
        &'a self,
        run: &'a ContainerStatus,
    ) -> Option<&'a ResourceRequirements> {
        let since = self.actuated.get(&run.id);
        since.or(run.reported.made_for.as_ref())
    }

    /// Whether the pod, which has this grant, requests a resize that was neither granted nor refused
    /// yet.
    fn is_undecided(&self, pod: &Pod) -> bool {
        let refused = self.pending.as_ref().map(|it| it.observed_generation);
        // A pod that is being deleted is not resized.
        pod.metadata.deletion_timestamp.is_none()
            && refused != Some(pod.metadata.generation)
            && is_resize(pod, &self.pod)
    }

    /// Whether the resources in force of the pod or of a running container differ from the granted
    /// ones.
    fn is_in_progress(&self, status: &PodStatus) -> bool {
        let Some(spec) = &self.pod.spec else {
            return false;
        };
        self.is_resized_whole()
            || all_containers(spec).any(|container| {
                running(status, container)
                    .and_then(|run| self.actuated(run))
                    .is_some_and(|given| {
                        CpuMemory::of(Some(given)) != CpuMemory::of_container(container, spec)
                    })
            })
    }

    fn is_resized_whole(&self) -> bool {
        CpuMemory::of(self.whole.as_ref()) != CpuMemory::of(whole(&self.pod))
    }

    fn checkpoint(&self, pod: &Pod) -> Checkpoint {
        let granted = pod.spec.iter().flat_map(all_containers);
        Checkpoint {
            whole: Some(whole(pod).cloned().unwrap_or_default()),
            actuated_whole: Some(self.whole.clone().unwrap_or_default()),
            granted: granted
                .map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default()))
                .collect(),
            actuated: self.actuated.clone(),
        }
    }
}

impl PodGrants {
    pub(super) fn update<T>(
        &self,
        uid: &PodUid,
        work: impl FnOnce(&mut PodGrant) -> T,
    ) -> Option<T> {
        self.pods.lock().get_mut(uid).map(work)
    }
}

/// For admission and resize decisions.
impl RuntimeManager {
    /// Reads the grants that the previous kubelet stored. Call this once, before pods are admitted.
    pub async fn restore_grants(&self) {
        let grants = checkpoint::read_all(directory::pods_dir(&self.node.root_dir)).await;
        *self.grants.before.lock() = grants;
    }

    /// The lock to hold from the check for free resources until they are reserved.
    pub fn placing(&self) -> MutexGuard<'_, ()> {
        self.grants.placing.lock()
    }

    /// The pod with its granted resources, by this kubelet, the previous one or another; unchanged if
    /// it has no grant.
    pub fn granted(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let uid = PodUid::of(pod);
        if let Some(placed) = self.placed(&uid) {
            return with_resources_of(pod, &placed);
        }
        match self.grants.before.lock().get(&uid) {
            Some(before) => before.laid_over(pod),
            None => match grant_in_status(pod) {
                Some(told) => told.laid_over(pod),
                None => Arc::clone(pod),
            },
        }
    }

    /// Admits the pod, with its previous grant or the resources in its spec.
    pub fn place(&self, pod: &Arc<Pod>) {
        let uid = PodUid::of(pod);
        let before = self.grants.before.lock().remove(&uid);
        let mut pods = self.grants.pods.lock();
        pods.entry(uid).or_insert_with(|| PodGrant::of(pod, before));
    }

    /// The pod with its reserved or granted resources; `None` if it is not admitted.
    pub fn placed(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.grants.update(uid, |entry| {
            Arc::clone(entry.next.as_ref().unwrap_or(&entry.pod))
        })
    }

    /// The other admitted pods with their reserved or granted resources.
    pub fn placed_beside(&self, uid: &PodUid) -> Vec<Arc<Pod>> {
        let pods = self.grants.pods.lock();
        let others = pods.iter().filter(|(other, _)| *other != uid);
        others
            .map(|(_, entry)| Arc::clone(entry.next.as_ref().unwrap_or(&entry.pod)))
            .collect()
    }

    /// UIDs of all admitted pods.
    pub fn placed_pods(&self) -> Vec<PodUid> {
        self.grants.pods.lock().keys().cloned().collect()
    }

    /// Reserves the resources in the pod's spec, until [`commit`](Self::commit).
    pub fn reserve(&self, pod: &Arc<Pod>) {
        self.grants.update(&PodUid::of(pod), |entry| {
            entry.next = Some(Arc::clone(pod));
        });
    }

    /// Grants the reserved resources. They are stored before they are applied, because a restarted
    /// kubelet must not give them to another pod. Returns whether it succeeded.
    pub async fn commit(&self, uid: &PodUid, trigger: ResizeTrigger) -> bool {
        let next = |entry: &mut PodGrant| entry.next.clone();
        if let Err(error) = self.write(uid, next, Durability::Synced).await {
            warn!(%error, "cannot save the resources to allocate to the pod");
            self.grants.update(uid, |entry| entry.next = None);
            return false;
        }
        let granted = self.grants.update(uid, |entry| {
            let pod = entry.next.take()?;
            entry.pod = Arc::clone(&pod);
            let pending = entry.pending.take();
            if pending.is_some_and(|pending| pending.reason.as_deref() == Some("Deferred")) {
                self.grants.metrics.accepted(trigger);
            }
            // A new resize starts; the outcome of the last one no longer matters.
            entry.in_progress = Some(in_progress_condition(pod.metadata.generation));
            Some(pod)
        });
        let Some(Some(pod)) = granted else {
            return false;
        };
        self.record_resize_event(&pod, pod.metadata.generation, &ResizeEvent::Started);
        true
    }

    /// Refuses a resize. Returns whether the pod's status changes.
    pub fn refuse(&self, pod: &Pod, refusal: &ResizeRefusal) -> bool {
        let generation = pod.metadata.generation;
        let message = refusal.message().to_owned();
        let new = condition(RESIZE_PENDING, refusal.reason(), message, generation);
        let changes = self.grants.update(&PodUid::of(pod), |entry| {
            let before = entry.pending.take();
            let same = before.as_ref().filter(|before| {
                before.reason == new.reason && before.observed_generation == new.observed_generation
            });
            let is_news = same.is_none();
            let is_changed = same.is_none_or(|same| same.message != new.message);
            entry.pending = Some(since(before, new));
            (is_news, is_changed)
        });
        let (is_news, is_changed) = changes.unwrap_or_default();
        if is_news {
            self.grants.metrics.refused(refusal);
            self.record_resize_event(pod, generation, &ResizeEvent::Refused(refusal.clone()));
        }
        is_changed
    }

    /// The pod requests no resize any more. Returns whether the pod's status changes.
    pub fn clear_pending(&self, uid: &PodUid) -> bool {
        let pending = self.grants.update(uid, |entry| entry.pending.take());
        pending.flatten().is_some()
    }

    /// The time since which a resize of the pod has been pending.
    pub fn pending_since(&self, uid: &PodUid) -> Option<Time> {
        let since = |entry: &mut PodGrant| entry.pending.as_ref()?.last_transition_time.clone();
        self.grants.update(uid, since).flatten()
    }

    /// Requests decisions on pending resizes.
    pub fn want_resizes(&self, trigger: ResizeTrigger) {
        *self.grants.trigger.lock() = Some(trigger);
        self.grants.wanted.notify_one();
    }

    /// Waits for a call of [`want_resizes`](Self::want_resizes), or for a pod that frees its
    /// resources. Returns the reason of the last of them.
    pub async fn resizes_wanted(&self) -> ResizeTrigger {
        self.grants.wanted.notified().await;
        let trigger = self.grants.trigger.lock().take();
        trigger.unwrap_or(ResizeTrigger::Periodic)
    }

    /// The reasons of pending resizes, and the number of resizes in progress.
    pub(super) fn resizes_under_way(&self) -> (Vec<String>, usize) {
        let pods = self.grants.pods.lock();
        let reason = |entry: &PodGrant| entry.pending.as_ref()?.reason.clone();
        let in_progress = pods.values().filter(|entry| entry.in_progress.is_some());
        (
            pods.values().filter_map(reason).collect(),
            in_progress.count(),
        )
    }

    async fn write(
        &self,
        uid: &PodUid,
        granted: impl FnOnce(&mut PodGrant) -> Option<Arc<Pod>>,
        durability: Durability,
    ) -> io::Result<()> {
        let lock = self.grants.update(uid, |entry| Arc::clone(&entry.writing));
        let Some(lock) = lock else {
            return Ok(());
        };
        let _one_at_a_time = lock.lock().await;
        let checkpoint = self.grants.update(uid, |entry| {
            let pod = granted(entry)?;
            Some(entry.checkpoint(&pod))
        });
        let Some(Some(checkpoint)) = checkpoint else {
            return Ok(());
        };
        let dir = directory::pod_dir(&self.node.root_dir, uid);
        checkpoint::write(dir, checkpoint, durability).await?;
        self.grants.update(uid, |entry| entry.is_kept = true);
        Ok(())
    }
}

/// For the pod's worker.
impl RuntimeManager {
    /// The pod with its granted resources, as it has to run. Its generation is the one before while
    /// a resize is undecided: clients take an observed generation without a condition as resized.
    pub fn grant(&self, pod: &Arc<Pod>, status: &PodStatus) -> Arc<Pod> {
        // A pod that ended and starts again needs a new admission entry.
        self.place(pod);
        let uid = PodUid::of(pod);
        let seen = self.grants.update(&uid, |entry| {
            let mut granted = with_resources_of(pod, &entry.pod);
            if entry.is_undecided(pod) {
                let before = entry.pod.metadata.generation;
                Arc::make_mut(&mut granted).metadata.generation = before;
            }
            entry.pod = Arc::clone(&granted);
            let there = |id: &String| status.containers.iter().any(|run| run.id == *id);
            entry.actuated.retain(|id, _| there(id));
            let mut completed = None;
            if entry.is_in_progress(status) {
                let generation = granted.metadata.generation;
                entry
                    .in_progress
                    .get_or_insert_with(|| in_progress_condition(generation));
            } else {
                completed = entry.in_progress.take();
            }
            (granted, completed)
        });
        let Some((granted, completed)) = seen else {
            return Arc::clone(pod);
        };
        if let Some(completed) = completed {
            let generation = completed.observed_generation;
            info!("resized pod");
            self.record_resize_event(&granted, generation, &ResizeEvent::Completed);
        }
        granted
    }

    /// Records that the pod-level resources in `spec` are in force for the sandbox.
    pub(crate) fn made_sandbox(&self, pod: &Pod, spec: &PodSpec) {
        self.grants.update(&PodUid::of(pod), |entry| {
            entry.whole.clone_from(&spec.resources);
        });
    }

    /// Stores the grant of a new pod before its containers are created. It is not synced to disk:
    /// if the machine fails, the containers are gone, too.
    pub async fn keep_grant(&self, uid: &PodUid) {
        let is_kept = self.grants.update(uid, |entry| entry.is_kept);
        if is_kept != Some(false) {
            return;
        }
        self.save_granted(uid, Durability::Unsynced).await;
    }

    /// Stores the grant, and the applied resources that are in no annotation.
    pub(super) async fn save_granted(&self, uid: &PodUid, durability: Durability) {
        let pod = |entry: &mut PodGrant| Some(Arc::clone(&entry.pod));
        if let Err(error) = self.write(uid, pod, durability).await {
            warn!(%error, "cannot save the pod's allocated resources");
        }
    }

    /// The resize in the pod's status; `None` if there is no condition and no container was
    /// resized.
    pub fn resize_report(&self, uid: &PodUid) -> Option<ResizeReport> {
        let report = self.grants.update(uid, |granted| {
            let conditions = [&granted.pending, &granted.in_progress];
            let report = ResizeReport {
                conditions: conditions.into_iter().flatten().cloned().collect(),
                actuated: granted.actuated.clone(),
                whole: granted
                    .is_resized_whole()
                    .then(|| granted.whole.clone().unwrap_or_default()),
            };
            let is_empty = report.conditions.is_empty() && report.actuated.is_empty();
            (!is_empty).then_some(report)
        });
        report.flatten()
    }

    /// Releases the resources of the pod, and requests decisions on pending resizes.
    pub fn ungrant(&self, uid: &PodUid) {
        self.grants.pods.lock().remove(uid);
        self.grants.before.lock().remove(uid);
        self.want_resizes(ResizeTrigger::PodTerminated);
    }
}

/// The pod-level resources.
fn whole(pod: &Pod) -> Option<&ResourceRequirements> {
    pod.spec.as_ref()?.resources.as_ref()
}

impl Checkpoint {
    /// The pod with the resources in the checkpoint.
    fn laid_over(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        changed(pod, self.whole.as_ref(), |container| {
            self.granted.get(&container.name).cloned()
        })
    }
}

/// Whether the resources of `wanted` differ from those of `placed`.
pub fn is_resize(wanted: &Pod, placed: &Pod) -> bool {
    !same_resources(placed, wanted)
}
