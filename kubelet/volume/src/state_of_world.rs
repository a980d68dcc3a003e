//! The desired and the actual state of volumes, which the volume manager reconciles.

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
    expansion::ExpansionState,
    plugin::{Device, MountRequest, Mounted, PodVolume},
};

/// The state of all volumes on this node.
#[derive(Debug, Default)]
pub(super) struct StateOfWorld {
    /// The volumes of each pod, by their names in its spec.
    names: BTreeMap<PodUid, BTreeMap<String, PodVolume>>,
    mounts: BTreeMap<PodVolume, Mount>,
    devices: BTreeMap<Device, DeviceState>,
    /// Unique names of the volumes that must stay attached, for as long as the node uses the device
    /// or is going to use it.
    attachments: BTreeMap<Device, String>,
    /// The volumes of an earlier kubelet have been discovered.
    found_all: bool,
    /// All pod sources have been read: devices that no pod has named are orphans.
    settled: bool,
}

/// One volume of one pod.
#[derive(Debug)]
struct Mount {
    wanted: DesiredState,
    actual: ActualState,
    device: Option<Device>,
    /// Set up, but due for a refresh or an expansion.
    refresh: bool,
    growth: ExpansionState,
    attempts: Attempts,
}

#[derive(Debug)]
enum DesiredState {
    Yes(Arc<MountRequest>),
    No,
    /// Set up by an earlier kubelet; the pod has not been seen yet.
    NotKnown,
}

#[derive(Debug)]
enum ActualState {
    Absent,
    /// May be partly set up.
    Uncertain,
    Mounted(Mounted),
}

#[derive(Debug, Default)]
struct DeviceState {
    /// `None` if unknown.
    staged: Option<bool>,
    /// SELinux label of the last attempt to stage it.
    selinux_label: Option<String>,
    /// Number of its volumes that are being torn down.
    tearing_down: usize,
    /// A pod's volume on it has been torn down.
    is_given_back: bool,
    attempts: Attempts,
}

/// Whether all volumes of a pod could be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resolution {
    Complete,
    /// The sources of the other volumes are currently unknown.
    Partial,
}

/// An operation on a volume.
#[derive(Clone, Debug)]
pub(super) enum VolumeOperation {
    /// Sets up or refreshes a volume; stages its device first if necessary.
    SetUp {
        request: Arc<MountRequest>,
        stage: bool,
        /// The volume is not set up for its pod yet.
        first: bool,
        /// The volume is `ReadWriteOncePod`, and another pod has it or may have it.
        conflicts: bool,
        /// Expands the volume after the set-up.
        grow: Option<ExpansionState>,
    },
    TearDown {
        volume: PodVolume,
        device: Option<Device>,
    },
    Unstage(Device),
}

impl StateOfWorld {
    /// Sets the volumes that a pod wants, by their names in its spec. With `Resolution::Partial`,
    /// the pod keeps its other volumes too. Mounted volumes that refresh or grow become due for
    /// another set-up.
    pub(super) fn want(
        &mut self,
        uid: &PodUid,
        wanted: Vec<(MountRequest, bool)>,
        resolution: Resolution,
    ) {
        let mut names = match resolution {
            Resolution::Complete => BTreeMap::new(),
            Resolution::Partial => self.names.remove(uid).unwrap_or_default(),
        };
        let mut requests = BTreeMap::new();
        for (request, refresh) in wanted {
            names.insert(request.spec.name.clone(), request.volume.clone());
            requests.insert(request.volume.clone(), (request, refresh));
        }
        self.names.insert(uid.clone(), names);
        for (volume, mount) in self.mounts_of(uid) {
            if resolution == Resolution::Complete && !requests.contains_key(volume) {
                mount.unwant();
            }
        }
        self.mounts.retain(|_, mount| !mount.is_done());
        for (volume, (request, refresh)) in requests {
            let mount = self.mounts.entry(volume).or_insert_with(|| Mount {
                wanted: DesiredState::NotKnown,
                actual: ActualState::Absent,
                device: None,
                refresh: false,
                growth: ExpansionState::default(),
                attempts: Attempts::default(),
            });
            if !matches!(mount.wanted, DesiredState::Yes(_)) {
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
            mount.refresh |= (refresh || grows) && matches!(mount.actual, ActualState::Mounted(_));
            mount.wanted = DesiredState::Yes(Arc::new(request));
        }
    }

    /// The pod has ended: it wants no volumes any more.
    pub(super) fn release(&mut self, uid: &PodUid) {
        self.names.remove(uid);
        for (_, mount) in self.mounts_of(uid) {
            mount.unwant();
        }
        self.mounts.retain(|_, mount| !mount.is_done());
    }

    /// Records a volume found on disk, which may be incomplete.
    pub(super) fn found(&mut self, volume: PodVolume, device: Option<(Device, Option<String>)>) {
        let device = device.map(|(device, attachment)| {
            self.found_device(device.clone(), attachment);
            device
        });
        self.mounts.entry(volume).or_insert(Mount {
            wanted: DesiredState::NotKnown,
            actual: ActualState::Uncertain,
            device,
            refresh: false,
            growth: ExpansionState::default(),
            attempts: Attempts::default(),
        });
    }

    /// Records a device found on disk, which may or may not be staged.
    pub(super) fn found_device(&mut self, device: Device, attachment: Option<String>) {
        let is_wanted = self.mounts.values().any(|mount| {
            matches!(mount.wanted, DesiredState::Yes(_)) && mount.device.as_ref() == Some(&device)
        });
        // The request of a pod that wants the device takes precedence.
        if let Some(name) = attachment.filter(|_| !is_wanted) {
            self.attachments.insert(device.clone(), name);
        }
        self.devices.entry(device).or_default();
    }

    /// Everything on disk has been recorded.
    pub(super) fn found_all(&mut self) {
        self.found_all = true;
    }

    /// Unique names of the volumes that must be attached to the node; `None` until discovery has
    /// finished.
    pub(super) fn in_use(&self) -> Option<Vec<String>> {
        let names: BTreeSet<&String> = self.attachments.values().collect();
        self.found_all.then(|| names.into_iter().cloned().collect())
    }

    /// Numbers of mounted and of wanted volumes, by plugin and upstream's name of the state.
    pub(super) fn counts(&self) -> BTreeMap<(String, &'static str), usize> {
        let mut counts = BTreeMap::new();
        for (volume, mount) in &self.mounts {
            let mut count = |state| {
                *counts.entry((volume.plugin.clone(), state)).or_default() += 1;
            };
            if matches!(mount.actual, ActualState::Mounted(_)) {
                count("actual_state_of_world");
            }
            if matches!(mount.wanted, DesiredState::Yes(_)) {
                count("desired_state_of_world");
            }
        }
        counts
    }

    /// Immediately retries the volumes that wait for these attachments.
    pub(super) fn retry(&mut self, attachments: &BTreeSet<&String>) {
        for mount in self.mounts.values_mut() {
            let DesiredState::Yes(request) = &mount.wanted else {
                continue;
            };
            let attachment = request.attachment.as_ref();
            if attachment.is_some_and(|name| attachments.contains(name)) {
                mount.attempts.turn();
            }
        }
    }

    /// All pods that want volumes have been seen.
    pub(super) fn settle(&mut self) {
        self.settled = true;
    }

    fn mounts_of(&mut self, uid: &PodUid) -> impl Iterator<Item = (&PodVolume, &mut Mount)> {
        self.mounts
            .iter_mut()
            .filter(move |(volume, _)| volume.uid == *uid)
    }

    /// Returns those of `names` that are not mounted for the pod.
    pub(super) fn unmounted(&self, uid: &PodUid, names: &[String]) -> Vec<String> {
        let unmounted = names
            .iter()
            .filter(|name| self.mounted(uid, name).is_none());
        unmounted.cloned().collect()
    }

    /// The requests for volumes of a pod that a controller has to attach, and that are not mounted: it
    /// may not have attached them yet.
    pub(super) fn awaiting_attachment(
        &self,
        uid: &PodUid,
        names: &[String],
    ) -> Vec<Arc<MountRequest>> {
        let volumes = names.iter().filter_map(|name| {
            let mount = self.mounts.get(self.names.get(uid)?.get(name)?)?;
            match (&mount.actual, &mount.wanted) {
                (ActualState::Mounted(_), _) => None,
                (_, DesiredState::Yes(request)) => Some(Arc::clone(request)),
                _ => None,
            }
        });
        volumes
            .filter(|request| request.attachment.is_some())
            .collect()
    }

    /// A mounted volume of a pod by its name, with its request.
    pub(super) fn mounted(
        &self,
        uid: &PodUid,
        name: &str,
    ) -> Option<(&Mounted, &Arc<MountRequest>)> {
        let mount = self.mounts.get(self.names.get(uid)?.get(name)?)?;
        match (&mount.actual, &mount.wanted) {
            (ActualState::Mounted(mounted), DesiredState::Yes(request)) => Some((mounted, request)),
            _ => None,
        }
    }

    /// The requests for all mounted volumes of a pod.
    pub(super) fn all_mounted(&self, uid: &PodUid) -> Vec<Arc<MountRequest>> {
        let names = self.names.get(uid).into_iter().flat_map(BTreeMap::keys);
        let mounted = names.filter_map(|name| self.mounted(uid, name));
        mounted.map(|(_, request)| Arc::clone(request)).collect()
    }

    /// Volumes of a pod that are, or may be, still on the node.
    pub(super) fn left(&self, uid: &PodUid) -> Vec<String> {
        let mounts = self.mounts.iter().filter(|(volume, _)| volume.uid == *uid);
        mounts.map(|(volume, _)| volume.to_string()).collect()
    }

    /// Errors of the last operations on a pod's volumes.
    pub(super) fn errors(&self, uid: &PodUid) -> Vec<String> {
        let mounts = self.mounts.iter().filter(|(volume, _)| volume.uid == *uid);
        mounts
            .filter_map(|(volume, mount)| {
                let error = mount.attempts.error.as_ref()?;
                Some(format!("{}: {error}", volume.name))
            })
            .collect()
    }

    /// Marks and returns the operations that are due, and when the next one is.
    pub(super) fn begin(&mut self, now: Instant) -> (Vec<VolumeOperation>, Option<Instant>) {
        let mut jobs = Vec::new();
        let mut next = None;
        let conflicts = self.conflicts();
        for (volume, mount) in &mut self.mounts {
            match &mount.wanted {
                DesiredState::NotKnown => {}
                DesiredState::No => {
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
                    jobs.push(VolumeOperation::TearDown {
                        volume: volume.clone(),
                        device: mount.device.clone(),
                    });
                }
                DesiredState::Yes(request) => {
                    let first = !matches!(mount.actual, ActualState::Mounted(_));
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
                    jobs.push(VolumeOperation::SetUp {
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

    /// Records that the pod of the request, which only reads the volume, does not let it grow.
    pub(super) fn give_up_growth(&mut self, request: &MountRequest) {
        if let (Some(mount), Some(capacity)) =
            (self.mounts.get_mut(&request.volume), &request.spec.capacity)
        {
            mount.growth.size = Some(capacity.bytes);
        }
    }

    /// Records how far a volume has grown, for all pods that use it on this node.
    pub(super) fn note_growth(&mut self, volume: &PodVolume, known: ExpansionState) {
        let mount = self.mounts.get(volume);
        let device = mount.and_then(|mount| mount.device.clone());
        for (other, mount) in &mut self.mounts {
            if other == volume || (device.is_some() && mount.device == device) {
                mount.growth = known;
            }
        }
    }

    /// Records the result of an operation.
    pub(super) fn end(&mut self, job: &VolumeOperation, result: Result<Option<Mounted>, String>) {
        let now = Instant::now();
        let error = result.as_ref().err().cloned();
        match job {
            VolumeOperation::SetUp {
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
                        mount.actual = ActualState::Mounted(mounted);
                    }
                    Ok(None) => mount.actual = ActualState::Uncertain,
                    Err(_) if *conflicts => {}
                    Err(_) if matches!(mount.actual, ActualState::Mounted(_)) => {
                        mount.refresh = true
                    }
                    Err(_) => mount.actual = ActualState::Uncertain,
                }
                if matches!(mount.wanted, DesiredState::No) {
                    mount.attempts.turn();
                }
            }
            VolumeOperation::TearDown { volume, device } => {
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
                    None => ActualState::Absent,
                    Some(_) => ActualState::Uncertain,
                };
                mount.attempts.end(error, now);
                if mount.is_done() {
                    self.mounts.remove(volume);
                }
            }
            VolumeOperation::Unstage(device) => {
                if let Some(state) = self.devices.get_mut(device) {
                    state.staged = error.is_none().then_some(false);
                    state.attempts.end(error, now);
                }
            }
        }
    }
}

impl Mount {
    /// The growth state, if the volume is smaller than its capacity and can be expanded now.
    fn growth(&self, request: &MountRequest) -> Option<ExpansionState> {
        let capacity = request.spec.capacity.as_ref()?;
        let grows = self.growth.size < Some(capacity.bytes) && !self.growth.is_in_use;
        grows.then_some(self.growth)
    }

    fn unwant(&mut self) {
        if !matches!(self.wanted, DesiredState::No) {
            self.attempts.turn();
        }
        self.wanted = DesiredState::No;
        self.refresh = false;
    }

    /// Whether the volume is unwanted, torn down and idle.
    const fn is_done(&self) -> bool {
        matches!(self.wanted, DesiredState::No)
            && matches!(self.actual, ActualState::Absent)
            && !self.attempts.busy
    }
}

#[cfg(test)]
mod tests;
