//! What pods want of volumes, and what there is: the state that the volume manager
//! reconciles.

mod attempts;
mod devices;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kubelet_pod_spec::identity::PodUid;
use tokio::time::Instant;

use self::attempts::Attempts;
use super::{
    expansion::Known,
    plugin::{Device, MountRequest, Mounted, PodVolume},
};

/// Everything that is known of volumes on this node.
#[derive(Debug, Default)]
pub(super) struct World {
    /// What each pod calls its volumes.
    names: BTreeMap<PodUid, BTreeMap<String, PodVolume>>,
    mounts: BTreeMap<PodVolume, Mount>,
    devices: BTreeMap<Device, DeviceState>,
    /// Unique names of what has to be attached to the node, as long as it has something of
    /// it or is to have.
    attachments: BTreeMap<Device, String>,
    /// It is known what an earlier kubelet left.
    found_all: bool,
    /// Pods that want something have said so: devices that none has named are left over.
    settled: bool,
}

/// One volume of one pod.
#[derive(Debug)]
struct Mount {
    wanted: Wanted,
    actual: Actual,
    device: Option<Device>,
    /// It is set up, and to be brought up to date.
    refresh: bool,
    growth: Known,
    attempts: Attempts,
}

#[derive(Debug)]
enum Wanted {
    Yes(Arc<MountRequest>),
    No,
    /// An earlier kubelet set it up, and its pod was not heard of yet.
    NotKnown,
}

#[derive(Debug)]
enum Actual {
    Absent,
    /// Something of it may be there.
    Uncertain,
    Mounted(Mounted),
}

#[derive(Debug, Default)]
struct DeviceState {
    /// `None` when it is not known.
    staged: Option<bool>,
    /// The SELinux label that it was staged with last.
    selinux_label: Option<String>,
    /// How many pods it is being taken away from.
    tearing_down: usize,
    /// A pod had it, and has given it back.
    is_given_back: bool,
    attempts: Attempts,
}

/// What is known of what a pod wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wants {
    All,
    /// What is behind the other volumes could not be found out now.
    Some,
}

/// Something to do for a volume.
#[derive(Clone, Debug)]
pub(super) enum Job {
    /// Set it up, or bring it up to date; stage its device before when that is not done.
    SetUp {
        request: Arc<MountRequest>,
        stage: bool,
        /// It is not there for its pod yet.
        first: bool,
        /// One pod alone may have it, and another one has, or may have.
        conflicts: bool,
        /// It is to grow then.
        grow: Option<Known>,
    },
    TearDown {
        volume: PodVolume,
        device: Option<Device>,
    },
    Unstage(Device),
}

impl World {
    /// A pod wants these volumes, by the names of its spec, and no other unless they are
    /// only some: then it keeps what it has. What of them is to be kept up to date is
    /// brought there.
    pub(super) fn want(&mut self, uid: &PodUid, wanted: Vec<(MountRequest, bool)>, wants: Wants) {
        let mut names = match wants {
            Wants::All => BTreeMap::new(),
            Wants::Some => self.names.remove(uid).unwrap_or_default(),
        };
        let mut requests = BTreeMap::new();
        for (request, refresh) in wanted {
            names.insert(request.spec.name.clone(), request.volume.clone());
            requests.insert(request.volume.clone(), (request, refresh));
        }
        self.names.insert(uid.clone(), names);
        for (volume, mount) in self.mounts_of(uid) {
            if wants == Wants::All && !requests.contains_key(volume) {
                mount.unwant();
            }
        }
        self.mounts.retain(|_, mount| !mount.is_done());
        for (volume, (request, refresh)) in requests {
            let mount = self.mounts.entry(volume).or_insert_with(|| Mount {
                wanted: Wanted::NotKnown,
                actual: Actual::Absent,
                device: None,
                refresh: false,
                growth: Known::default(),
                attempts: Attempts::default(),
            });
            if !matches!(mount.wanted, Wanted::Yes(_)) {
                mount.attempts.turn();
            }
            if let Some(device) = &request.device {
                mount.device = Some(device.clone());
                match &request.attachment {
                    Some(name) => self.attachments.insert(device.clone(), name.clone()),
                    None => self.attachments.remove(device),
                };
            }
            if let Some(capacity) = &request.spec.capacity {
                mount.growth.size.get_or_insert(capacity.known);
            }
            let grows = mount.growth(&request).is_some();
            mount.refresh |= (refresh || grows) && matches!(mount.actual, Actual::Mounted(_));
            mount.wanted = Wanted::Yes(Arc::new(request));
        }
    }

    /// A pod is over: it wants none of its volumes.
    pub(super) fn release(&mut self, uid: &PodUid) {
        self.names.remove(uid);
        for (_, mount) in self.mounts_of(uid) {
            mount.unwant();
        }
        self.mounts.retain(|_, mount| !mount.is_done());
    }

    /// A volume is on disk that may or may not be in order.
    pub(super) fn found(&mut self, volume: PodVolume, device: Option<(Device, Option<String>)>) {
        let device = device.map(|(device, attachment)| {
            self.found_device(device.clone(), attachment);
            device
        });
        self.mounts.entry(volume).or_insert(Mount {
            wanted: Wanted::NotKnown,
            actual: Actual::Uncertain,
            device,
            refresh: false,
            growth: Known::default(),
            attempts: Attempts::default(),
        });
    }

    /// A device is on disk that may or may not be staged.
    pub(super) fn found_device(&mut self, device: Device, attachment: Option<String>) {
        let is_wanted = self.mounts.values().any(|mount| {
            matches!(mount.wanted, Wanted::Yes(_)) && mount.device.as_ref() == Some(&device)
        });
        // A pod that wants it knows better.
        if let Some(name) = attachment.filter(|_| !is_wanted) {
            self.attachments.insert(device.clone(), name);
        }
        self.devices.entry(device).or_default();
    }

    /// Everything that is on disk was found.
    pub(super) fn found_all(&mut self) {
        self.found_all = true;
    }

    /// Unique names of what has to be attached to the node, once that is known.
    pub(super) fn in_use(&self) -> Option<Vec<String>> {
        let names: BTreeSet<&String> = self.attachments.values().collect();
        self.found_all.then(|| names.into_iter().cloned().collect())
    }

    /// Volumes that pods have or are to have, by plugin and by which of the two it is, as
    /// upstream names that.
    pub(super) fn counts(&self) -> BTreeMap<(String, &'static str), usize> {
        let mut counts = BTreeMap::new();
        for (volume, mount) in &self.mounts {
            let mut count = |state| {
                *counts.entry((volume.plugin.clone(), state)).or_default() += 1;
            };
            if matches!(mount.actual, Actual::Mounted(_)) {
                count("actual_state_of_world");
            }
            if matches!(mount.wanted, Wanted::Yes(_)) {
                count("desired_state_of_world");
            }
        }
        counts
    }

    /// What waits for these to be attached is set up now.
    pub(super) fn retry(&mut self, attachments: &BTreeSet<&String>) {
        for mount in self.mounts.values_mut() {
            let Wanted::Yes(request) = &mount.wanted else {
                continue;
            };
            let attachment = request.attachment.as_ref();
            if attachment.is_some_and(|name| attachments.contains(name)) {
                mount.attempts.turn();
            }
        }
    }

    /// Every pod that wants something has said so.
    pub(super) fn settle(&mut self) {
        self.settled = true;
    }

    fn mounts_of(&mut self, uid: &PodUid) -> impl Iterator<Item = (&PodVolume, &mut Mount)> {
        self.mounts
            .iter_mut()
            .filter(move |(volume, _)| volume.uid == *uid)
    }

    /// Of `names`, those that are not there for the pod.
    pub(super) fn unmounted(&self, uid: &PodUid, names: &[String]) -> Vec<String> {
        let unmounted = names
            .iter()
            .filter(|name| self.mounted(uid, name).is_none());
        unmounted.cloned().collect()
    }

    /// What a pod has by a name, and what it was asked for as.
    pub(super) fn mounted(
        &self,
        uid: &PodUid,
        name: &str,
    ) -> Option<(&Mounted, &Arc<MountRequest>)> {
        let mount = self.mounts.get(self.names.get(uid)?.get(name)?)?;
        match (&mount.actual, &mount.wanted) {
            (Actual::Mounted(mounted), Wanted::Yes(request)) => Some((mounted, request)),
            _ => None,
        }
    }

    /// What a pod still has, or may have, on the node.
    pub(super) fn left(&self, uid: &PodUid) -> Vec<String> {
        let mounts = self.mounts.iter().filter(|(volume, _)| volume.uid == *uid);
        mounts.map(|(volume, _)| volume.to_string()).collect()
    }

    /// Why operations on the volumes of a pod fail.
    pub(super) fn errors(&self, uid: &PodUid) -> Vec<String> {
        let mounts = self.mounts.iter().filter(|(volume, _)| volume.uid == *uid);
        mounts
            .filter_map(|(volume, mount)| {
                let error = mount.attempts.error.as_ref()?;
                Some(format!("{}: {error}", volume.name))
            })
            .collect()
    }

    /// Everything that can be begun now, marked as begun, and when something else can.
    pub(super) fn begin(&mut self, now: Instant) -> (Vec<Job>, Option<Instant>) {
        let mut jobs = Vec::new();
        let mut next = None;
        let conflicts = self.conflicts();
        for (volume, mount) in &mut self.mounts {
            match &mount.wanted {
                Wanted::NotKnown => {}
                Wanted::No => {
                    if !mount.attempts.may_begin(now, &mut next) {
                        continue;
                    }
                    if let Some(device) = &mount.device {
                        let state = self.devices.entry(device.clone()).or_default();
                        if state.attempts.busy {
                            continue;
                        }
                        state.tearing_down += 1;
                    }
                    mount.attempts.busy = true;
                    jobs.push(Job::TearDown {
                        volume: volume.clone(),
                        device: mount.device.clone(),
                    });
                }
                Wanted::Yes(request) => {
                    let first = !matches!(mount.actual, Actual::Mounted(_));
                    if !(first || mount.refresh) || !mount.attempts.may_begin(now, &mut next) {
                        continue;
                    }
                    let mut stage = false;
                    if let Some(device) = &request.device {
                        let state = self.devices.entry(device.clone()).or_default();
                        if state.attempts.busy || state.tearing_down > 0 {
                            continue;
                        }
                        stage = state.staged != Some(true)
                            || state.selinux_label != request.selinux_label;
                        state.attempts.busy = true;
                    }
                    mount.attempts.busy = true;
                    mount.refresh = false;
                    jobs.push(Job::SetUp {
                        request: Arc::clone(request),
                        stage,
                        first,
                        conflicts: conflicts.contains(volume),
                        grow: mount.growth(request),
                    });
                }
            }
        }
        self.begin_devices(now, &mut jobs, &mut next);
        (jobs, next)
    }

    /// What is known now of how a volume grows on this node, for all of its pods.
    pub(super) fn note_growth(&mut self, volume: &PodVolume, known: Known) {
        let mount = self.mounts.get(volume);
        let device = mount.and_then(|mount| mount.device.clone());
        for (other, mount) in &mut self.mounts {
            if other == volume || (device.is_some() && mount.device == device) {
                mount.growth = known;
            }
        }
    }

    /// A job ended.
    pub(super) fn end(&mut self, job: &Job, result: Result<Option<Mounted>, String>) {
        let now = Instant::now();
        let error = result.as_ref().err().cloned();
        match job {
            Job::SetUp {
                request,
                stage,
                conflicts,
                ..
            } => {
                if let Some(device) = &request.device
                    && let Some(state) = self.devices.get_mut(device)
                {
                    if *stage {
                        state.staged = result.is_ok().then_some(true);
                        state.selinux_label.clone_from(&request.selinux_label);
                    }
                    state.attempts.end(None, now);
                }
                let Some(mount) = self.mounts.get_mut(&request.volume) else {
                    return;
                };
                mount.attempts.end(error, now);
                match result {
                    Ok(Some(mounted)) => {
                        mount.actual = Actual::Mounted(mounted);
                    }
                    Ok(None) => mount.actual = Actual::Uncertain,
                    Err(_) if *conflicts => {}
                    Err(_) if matches!(mount.actual, Actual::Mounted(_)) => mount.refresh = true,
                    Err(_) => mount.actual = Actual::Uncertain,
                }
                if matches!(mount.wanted, Wanted::No) {
                    mount.attempts.turn();
                }
            }
            Job::TearDown { volume, device } => {
                if let Some(device) = device {
                    if let Some(state) = self.devices.get_mut(device) {
                        state.tearing_down -= 1;
                        state.is_given_back |= error.is_none();
                    }
                    self.retry_device(device);
                }
                let Some(mount) = self.mounts.get_mut(volume) else {
                    return;
                };
                mount.actual = match &error {
                    None => Actual::Absent,
                    Some(_) => Actual::Uncertain,
                };
                mount.attempts.end(error, now);
                if mount.is_done() {
                    self.mounts.remove(volume);
                }
            }
            Job::Unstage(device) => {
                if let Some(state) = self.devices.get_mut(device) {
                    state.staged = error.is_none().then_some(false);
                    state.attempts.end(error, now);
                }
            }
        }
    }
}

impl Mount {
    /// What is known of a volume that has less than it is to have.
    fn growth(&self, request: &MountRequest) -> Option<Known> {
        let capacity = request.spec.capacity.as_ref()?;
        let grows = self.growth.size < Some(capacity.bytes) && !self.growth.is_in_use;
        grows.then_some(self.growth)
    }

    fn unwant(&mut self) {
        if !matches!(self.wanted, Wanted::No) {
            self.attempts.turn();
        }
        self.wanted = Wanted::No;
        self.refresh = false;
    }

    /// Whether there is nothing of it, and nobody wants it.
    const fn is_done(&self) -> bool {
        matches!(self.wanted, Wanted::No)
            && matches!(self.actual, Actual::Absent)
            && !self.attempts.busy
    }
}

#[cfg(test)]
mod tests;
