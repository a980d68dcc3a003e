//! Which containers and sandboxes to remove, with upstream's rules.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use cri_proto::runtime::v1;
use jiff::Timestamp;
use kubelet_cri_client::{labels, pod_status};
use kubelet_pod_spec::identity::PodUid;

use super::{log_file::LogFile, options::ContainerGcOptions};

/// The shortest grace period of a container, as elsewhere.
const MIN_GRACE_PERIOD: Duration = Duration::from_secs(2);
/// The longest: the other containers wait for it.
const MAX_GRACE_PERIOD: Duration = Duration::from_secs(60);

/// Why a container is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerReason {
    /// Its pod no longer needs it.
    PodGone,
    /// There are newer dead ones of the same name in its pod.
    PerContainerLimit,
    /// There are too many on the node.
    TotalLimit,
}

/// A container that would be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerCandidate {
    /// Its ID.
    pub id: String,
    /// Its pod.
    pub pod_uid: PodUid,
    /// Its name in the pod.
    pub name: String,
    /// Why it would be removed.
    pub reason: ContainerReason,
}

/// A sandbox that would be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxCandidate {
    /// Its ID.
    pub id: String,
    /// Its pod.
    pub pod_uid: PodUid,
}

/// A container that is not running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeadContainer {
    pub(super) id: String,
    pub(super) pod_uid: PodUid,
    pub(super) name: String,
    /// Nanoseconds since the epoch by the runtime's clock.
    pub(super) created_at: i64,
    /// The time to stop it in, if it may be running.
    pub(super) grace_period: Option<Duration>,
    /// `None` if it shares its log with another container, or has none.
    pub(super) log: Option<LogFile>,
}

/// The containers that may be removed: those that do not run, are older than `min_age` and belong
/// to a pod.
pub(super) fn dead_containers(
    containers: &[v1::Container],
    sandboxes: &[v1::PodSandbox],
    min_age: Duration,
    now: Timestamp,
) -> Vec<DeadContainer> {
    let newest = i128::try_from(min_age.as_nanos()).unwrap_or(i128::MAX);
    let newest = now.as_nanosecond().saturating_sub(newest);
    let owners = sandboxes.iter().filter_map(|sandbox| {
        let uid = PodUid::parse(&sandbox.metadata.as_ref()?.uid)?;
        Some((sandbox.id.as_str(), uid))
    });
    let owners: HashMap<&str, PodUid> = owners.collect();
    let mut logs: HashMap<LogFile, usize> = HashMap::new();
    for log in containers.iter().filter_map(log_of) {
        *logs.entry(log).or_default() += 1;
    }
    let dead = containers.iter().filter(|container| {
        container.state() != v1::ContainerState::ContainerRunning
            && i128::from(container.created_at) <= newest
    });
    let dead = dead.filter_map(|container| {
        let owner = || owners.get(container.pod_sandbox_id.as_str()).cloned();
        let pod_uid = pod_status::uid_of(&container.labels).or_else(owner)?;
        let metadata = container.metadata.as_ref();
        let is_unknown = container.state() == v1::ContainerState::ContainerUnknown;
        Some(DeadContainer {
            id: container.id.clone(),
            pod_uid,
            name: metadata.map_or_else(String::new, |it| it.name.clone()),
            created_at: container.created_at,
            grace_period: is_unknown.then(|| grace_period(container)),
            log: log_of(container).filter(|log| logs.get(log) == Some(&1)),
        })
    });
    dead.collect()
}

fn log_of(container: &v1::Container) -> Option<LogFile> {
    LogFile::of(&container.labels, &container.annotations)
}

/// The grace period that a container was created with.
fn grace_period(container: &v1::Container) -> Duration {
    let seconds = |key| container.annotations.get(key)?.parse().ok();
    let seconds = seconds(labels::POD_DELETION_GRACE_PERIOD)
        .or_else(|| seconds(labels::POD_TERMINATION_GRACE_PERIOD));
    let period = Duration::from_secs(seconds.unwrap_or_default());
    period.clamp(MIN_GRACE_PERIOD, MAX_GRACE_PERIOD)
}

/// The containers to remove, in order.
pub(super) fn containers(
    dead: Vec<DeadContainer>,
    options: &ContainerGcOptions,
    is_gone: impl Fn(&PodUid) -> bool,
) -> Vec<(DeadContainer, ContainerReason)> {
    let mut units: BTreeMap<(PodUid, String), Vec<DeadContainer>> = BTreeMap::new();
    for container in dead {
        let unit = (container.pod_uid.clone(), container.name.clone());
        units.entry(unit).or_default().push(container);
    }
    let mut removed = Vec::new();
    units.retain(|(uid, _), unit| {
        sort(unit);
        let is_kept = !is_gone(uid);
        if !is_kept {
            remove_oldest(unit, 0, ContainerReason::PodGone, &mut removed);
        }
        is_kept
    });
    if let Some(most) = options.per_container() {
        for unit in units.values_mut() {
            remove_oldest(unit, most, ContainerReason::PerContainerLimit, &mut removed);
        }
    }
    let Some(total) = options.total() else {
        return removed;
    };
    let count =
        |units: &BTreeMap<_, Vec<DeadContainer>>| -> usize { units.values().map(Vec::len).sum() };
    if count(&units) > total {
        let share = total.checked_div(units.len()).unwrap_or_default().max(1);
        for unit in units.values_mut() {
            remove_oldest(unit, share, ContainerReason::TotalLimit, &mut removed);
        }
        let mut left: Vec<DeadContainer> = units.into_values().flatten().collect();
        sort(&mut left);
        remove_oldest(&mut left, total, ContainerReason::TotalLimit, &mut removed);
    }
    removed
}

/// Newest first.
fn sort(containers: &mut [DeadContainer]) {
    containers.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
}

/// Removes the oldest of the sorted containers, until `most` are left.
fn remove_oldest(
    containers: &mut Vec<DeadContainer>,
    most: usize,
    why: ContainerReason,
    removed: &mut Vec<(DeadContainer, ContainerReason)>,
) {
    let oldest = containers.drain(most.min(containers.len())..).rev();
    removed.extend(oldest.map(|container| (container, why)));
}

/// The sandboxes to remove: of each pod all but the newest, of pods that are gone the newest too,
/// unless they are ready or have containers.
pub(super) fn sandboxes<'a>(
    sandboxes: &'a [v1::PodSandbox],
    with_containers: &BTreeSet<&str>,
    is_gone: impl Fn(&PodUid) -> bool,
) -> Vec<(PodUid, &'a str)> {
    let mut by_pod: BTreeMap<PodUid, Vec<&v1::PodSandbox>> = BTreeMap::new();
    for sandbox in sandboxes {
        let metadata = sandbox.metadata.as_ref();
        if let Some(uid) = metadata.and_then(|metadata| PodUid::parse(&metadata.uid)) {
            by_pod.entry(uid).or_default().push(sandbox);
        }
    }
    let mut removed = Vec::new();
    for (uid, mut of_pod) in by_pod {
        of_pod.sort_by_key(|sandbox| Reverse((sandbox.created_at, &sandbox.id)));
        let kept = usize::from(!is_gone(&uid));
        let dead = of_pod.into_iter().skip(kept).rev().filter(|sandbox| {
            sandbox.state() != v1::PodSandboxState::SandboxReady
                && !with_containers.contains(sandbox.id.as_str())
        });
        removed.extend(dead.map(|sandbox| (uid.clone(), sandbox.id.as_str())));
    }
    removed
}

#[cfg(test)]
mod tests;
