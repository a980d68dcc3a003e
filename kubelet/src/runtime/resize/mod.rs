//! In-place resize: what running pods are granted of the CPU and memory that
//! their specs ask for, and how it is given to their containers.
//!
//! What a container was created for is in its annotations. What changed since is
//! kept in the pod's directory, so that it holds when the kubelet is restarted.

mod actuate;
mod checkpoint;
mod need;
mod refusal;
mod swap;
mod told;

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{Container, Pod, PodCondition, PodSpec, ResourceRequirements};
use parking_lot::Mutex;
use tracing::{info, warn};

use self::checkpoint::Checkpoint;
pub use self::refusal::Refusal;
use self::{
    need::{Need, shortage},
    told::News,
};
use super::{
    RuntimeManager,
    pod_status::{ContainerState, ContainerStatus, PodStatus},
    restart_rules,
};
use crate::{
    clock,
    pod::{
        directory,
        identity::{self, PodUid},
        shortage::Shortage,
    },
    status::conditions::{RESIZE_IN_PROGRESS, RESIZE_PENDING},
};

/// Reason of a resize that waits for room.
const DEFERRED: &str = "Deferred";
/// Reason of a resize that the runtime, or what the container uses, is against.
const ERROR: &str = "Error";

/// What a pod's status shows of its resize.
#[derive(Clone, Debug, Default)]
pub struct ResizeReport {
    /// `PodResizePending` and `PodResizeInProgress`, as far as they hold.
    pub conditions: Vec<PodCondition>,
    /// What containers were given since they were created, by id.
    pub actuated: BTreeMap<String, ResourceRequirements>,
}

/// What all pods were granted.
#[derive(Debug, Default)]
pub(super) struct Resizes {
    pods: Mutex<BTreeMap<PodUid, Granted>>,
    /// What pods of the last kubelet had been granted, until they are synced.
    before: Mutex<BTreeMap<PodUid, ByContainer>>,
}

/// Resources by the container's name.
type ByContainer = BTreeMap<String, ResourceRequirements>;

/// What one pod was granted.
#[derive(Debug)]
struct Granted {
    /// The pod with the resources that it was granted.
    pod: Arc<Pod>,
    /// What containers were given since they were created, by id.
    actuated: BTreeMap<String, ResourceRequirements>,
    pending: Option<PodCondition>,
    in_progress: Option<PodCondition>,
}

impl Granted {
    /// What a running container was given: in place, or when it was created.
    fn actuated<'a>(&'a self, run: &'a ContainerStatus) -> Option<&'a ResourceRequirements> {
        let since = self.actuated.get(&run.id);
        since.or(run.reported.made_for.as_ref())
    }

    /// Whether some container runs with other resources than it was granted.
    fn is_in_progress(&self, status: &PodStatus) -> bool {
        let Some(spec) = &self.pod.spec else {
            return false;
        };
        resizable(spec).any(|container| {
            running(status, container)
                .and_then(|run| self.actuated(run))
                .is_some_and(|given| {
                    Need::of(Some(given)) != Need::of(container.resources.as_ref())
                })
        })
    }

    fn checkpoint(&self) -> Checkpoint {
        let spec = self.pod.spec.as_ref();
        let granted = spec.into_iter().flat_map(all_containers);
        Checkpoint {
            granted: granted
                .map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default()))
                .collect(),
            actuated: self.actuated.clone(),
        }
    }
}

impl Resizes {
    fn update<T>(&self, uid: &PodUid, work: impl FnOnce(&mut Granted) -> T) -> Option<T> {
        self.pods.lock().get_mut(uid).map(work)
    }

    /// What the other pods request.
    fn beside(&self, uid: &PodUid) -> Need {
        let all = self.pods.lock();
        let others = all.iter().filter(|(other, _)| *other != uid);
        let others = others.filter_map(|(_, granted)| granted.pod.spec.as_ref());
        others.map(Need::of_pod).fold(Need::default(), Need::plus)
    }
}

impl RuntimeManager {
    /// The pod as it is to be run: with the resources that its spec asks for, or
    /// as long as the node has no room for them with those that it had.
    pub async fn grant(&self, pod: Arc<Pod>, status: &PodStatus) -> Arc<Pod> {
        let uid = PodUid::of(&pod);
        let last = self
            .resizes
            .update(&uid, |granted| Arc::clone(&granted.pod));
        let last = match last {
            Some(last) => last,
            None => self.restore_granted(&uid, &pod, status).await,
        };
        let is_same = Arc::ptr_eq(&last, &pod) || same_resources(&last, &pod);
        let shortage = if is_same {
            None
        } else {
            self.shortage(&uid, &last, &pod)
        };
        let wanted = Arc::clone(&pod);
        let (granted, pending) = match shortage {
            None => (pod, None),
            Some(shortage) => {
                let generation = pod.metadata.generation;
                let pending = condition(RESIZE_PENDING, DEFERRED, shortage.to_string(), generation);
                (with_resources_of(&pod, &last), Some(pending))
            }
        };
        let changes = self.resizes.update(&uid, |entry| {
            entry.pod = Arc::clone(&granted);
            let there = |id: &String| status.containers.iter().any(|run| run.id == *id);
            entry.actuated.retain(|id, _| there(id));
            let before = entry.pending.take();
            let is_news = pending.is_some() != before.is_some();
            let mut news = None;
            if let Some(new) = &pending
                && before.as_ref().is_none_or(|before| {
                    before.reason != new.reason
                        || before.observed_generation != new.observed_generation
                })
            {
                let why = new.message.clone().unwrap_or_default();
                news = Some((new.observed_generation, News::Deferred(why)));
            }
            entry.pending = pending.map(|new| since(before, new));
            let generation = granted.metadata.generation;
            if entry.pending.is_none() && !is_same {
                // Another resize begins: what became of the last is of no interest.
                entry.in_progress = Some(begun(generation));
                news = Some((generation, News::Started));
            } else if !entry.is_in_progress(status) {
                if let Some(done) = entry.in_progress.take() {
                    news = news.or(Some((done.observed_generation, News::Completed)));
                    info!(pod = identity::full_name(&granted), pod_uid = %uid, "resized pod");
                }
            } else if entry.in_progress.is_none() {
                entry.in_progress = Some(begun(generation));
            }
            (is_news || (!is_same && entry.pending.is_none()), news)
        });
        let Some((is_changed, news)) = changes else {
            return granted;
        };
        if is_changed {
            self.save_granted(&uid).await;
        }
        if let Some((generation, news)) = news {
            self.tell(&wanted, generation, &news);
        }
        granted
    }

    /// What the status shows of a resize; `None` when there never was one.
    pub fn resize_report(&self, uid: &PodUid) -> Option<ResizeReport> {
        self.resizes
            .update(uid, |granted| {
                let conditions = [&granted.pending, &granted.in_progress];
                let report = ResizeReport {
                    conditions: conditions.into_iter().flatten().cloned().collect(),
                    actuated: granted.actuated.clone(),
                };
                let is_empty = report.conditions.is_empty() && report.actuated.is_empty();
                (!is_empty).then_some(report)
            })
            .flatten()
    }

    /// The pod uses nothing any more.
    pub fn ungrant(&self, uid: &PodUid) {
        self.resizes.pods.lock().remove(uid);
        self.resizes.before.lock().remove(uid);
    }

    /// Reads what the pods of the last kubelet had been granted. To be called once, before
    /// pods are admitted.
    pub async fn restore_grants(&self) {
        let grants = checkpoint::read_all(directory::pods_dir(&self.options)).await;
        *self.resizes.before.lock() = grants;
    }

    /// The pod as it has its place on the node: with what it was granted, by this kubelet
    /// or the last.
    pub fn granted(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let uid = PodUid::of(pod);
        let granted = self
            .resizes
            .update(&uid, |granted| Arc::clone(&granted.pod));
        granted.unwrap_or_else(|| match self.resizes.before.lock().get(&uid) {
            Some(granted) => changed(pod, |container| granted.get(&container.name).cloned()),
            None => Arc::clone(pod),
        })
    }

    /// What the pod had been granted before the kubelet was started.
    async fn restore_granted(&self, uid: &PodUid, pod: &Arc<Pod>, status: &PodStatus) -> Arc<Pod> {
        let dir = directory::pod_dir(&self.options, uid);
        let Checkpoint { granted, actuated } = checkpoint::read(dir).await;
        let resources = |container: &Container| {
            let kept = granted.get(&container.name).cloned();
            kept.or_else(|| running(status, container)?.reported.made_for.clone())
        };
        let granted = changed(pod, resources);
        let entry = Granted {
            pod: Arc::clone(&granted),
            actuated,
            pending: None,
            in_progress: None,
        };
        self.resizes.pods.lock().insert(uid.clone(), entry);
        granted
    }

    /// Writes down what is in no annotation.
    async fn save_granted(&self, uid: &PodUid) {
        let Some(checkpoint) = self.resizes.update(uid, |granted| granted.checkpoint()) else {
            return;
        };
        let dir = directory::pod_dir(&self.options, uid);
        if let Err(error) = checkpoint::write(dir, checkpoint).await {
            warn!(pod_uid = %uid, %error, "cannot write down what the pod was granted");
        }
    }

    /// Why the node has no room for the pod as it is asked for.
    fn shortage(&self, uid: &PodUid, last: &Pod, pod: &Pod) -> Option<Shortage> {
        let need = |pod: &Pod| pod.spec.as_ref().map(Need::of_pod).unwrap_or_default();
        let capacity = Need::capacity(self.machine.cpus, self.machine.memory);
        shortage(need(last), need(pod), self.resizes.beside(uid), capacity)
    }
}

fn all_containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
}

/// The containers that are resized while they run.
fn resizable(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    let init = spec.init_containers.iter().flatten();
    init.filter(|container| restart_rules::is_sidecar(container))
        .chain(&spec.containers)
}

/// The run of a container that goes on now.
fn running<'a>(status: &'a PodStatus, container: &Container) -> Option<&'a ContainerStatus> {
    let run = status.container(&container.name)?;
    (run.state == ContainerState::Running).then_some(run)
}

fn same_resources(a: &Pod, b: &Pod) -> bool {
    let (Some(a), Some(b)) = (&a.spec, &b.spec) else {
        return true;
    };
    all_containers(b).all(|container| {
        let other = all_containers(a).find(|other| other.name == container.name);
        other.is_none_or(|other| {
            other.resources == container.resources
                || Need::of(other.resources.as_ref()) == Need::of(container.resources.as_ref())
        })
    })
}

/// `pod` with the resources of the containers of `last`.
fn with_resources_of(pod: &Arc<Pod>, last: &Pod) -> Arc<Pod> {
    let last = last.spec.as_ref();
    changed(pod, |container| {
        let last = last.into_iter().flat_map(all_containers);
        let mut same = last.filter(|other| other.name == container.name);
        Some(same.next()?.resources.clone().unwrap_or_default())
    })
}

/// `pod` with other resources where `resources` has some; the same one when
/// nothing changes.
fn changed(
    pod: &Arc<Pod>,
    resources: impl Fn(&Container) -> Option<ResourceRequirements>,
) -> Arc<Pod> {
    let other = |container: &Container| {
        let other = resources(container)?;
        (Need::of(Some(&other)) != Need::of(container.resources.as_ref())).then_some(other)
    };
    let Some(spec) = &pod.spec else {
        return Arc::clone(pod);
    };
    if all_containers(spec).all(|container| other(container).is_none()) {
        return Arc::clone(pod);
    }
    let mut pod = Pod::clone(pod);
    if let Some(spec) = &mut pod.spec {
        let init = spec.init_containers.iter_mut().flatten();
        for container in init.chain(&mut spec.containers) {
            if let Some(other) = other(container) {
                container.resources = Some(other);
            }
        }
    }
    Arc::new(pod)
}

fn condition(type_: &str, reason: &str, message: String, generation: Option<i64>) -> PodCondition {
    PodCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: (!reason.is_empty()).then(|| reason.to_owned()),
        message: (!message.is_empty()).then_some(message),
        observed_generation: generation,
        last_probe_time: Some(clock::now_time()),
        last_transition_time: Some(clock::now_time()),
    }
}

fn begun(generation: Option<i64>) -> PodCondition {
    condition(RESIZE_IN_PROGRESS, "", String::new(), generation)
}

/// A condition with the same reason is the same one, seen again.
fn since(old: Option<PodCondition>, mut new: PodCondition) -> PodCondition {
    if let Some(old) = old.filter(|old| old.reason == new.reason) {
        new.last_transition_time = old.last_transition_time;
        if old.message == new.message && old.observed_generation == new.observed_generation {
            new.last_probe_time = old.last_probe_time;
        }
    }
    new
}
