//! Devices that pods share: which pods have to wait for one, and when it is unstaged.

use std::collections::BTreeSet;

use tokio::time::Instant;

use super::{ActualState, DesiredState, StateOfWorld, VolumeOperation};
use crate::plugin::{Device, PodVolume};

impl StateOfWorld {
    /// `ReadWriteOncePod` volumes whose pods have to wait, because another pod has the volume or
    /// may have it.
    pub(super) fn conflicts(&self) -> BTreeSet<PodVolume> {
        let is_elsewhere = |volume: &PodVolume, device: &Device| {
            self.mounts.iter().any(|(other, mount)| {
                other.uid != volume.uid
                    && mount.device.as_ref() == Some(device)
                    && !matches!(mount.actual, ActualState::Absent)
            })
        };
        let mounts = self.mounts.iter().filter(|(volume, mount)| {
            let DesiredState::Yes(request) = &mount.wanted else {
                return false;
            };
            let device = request.device.as_ref();
            request.spec.is_for_one_pod()
                && !matches!(mount.actual, ActualState::Mounted(_))
                && device.is_some_and(|device| is_elsewhere(volume, device))
        });
        mounts.map(|(volume, _)| volume.clone()).collect()
    }

    /// Immediately retries the volumes that wait for a device.
    pub(super) fn retry_device(&mut self, device: &Device) {
        let mounts = self.mounts.values_mut();
        for mount in mounts.filter(|mount| mount.device.as_ref() == Some(device)) {
            if matches!(
                (&mount.wanted, &mount.actual),
                (DesiredState::Yes(_), ActualState::Absent)
            ) {
                mount.attempts.turn();
            }
        }
    }

    pub(super) fn begin_devices(
        &mut self,
        now: Instant,
        jobs: &mut Vec<VolumeOperation>,
        next: &mut Option<Instant>,
    ) {
        let (mounts, settled) = (&self.mounts, self.settled);
        let used = |device: &Device| {
            let mut mounts = mounts.values();
            mounts.any(|mount| mount.device.as_ref() == Some(device))
        };
        self.devices.retain(|device, state| {
            state.attempts.busy
                || state.tearing_down > 0
                || state.staged != Some(false)
                || used(device)
        });
        let devices = &self.devices;
        self.attachments
            .retain(|device, _| devices.contains_key(device) || used(device));
        for (device, state) in &mut self.devices {
            // Once a volume on the device was torn down, there is no need to wait for all pods:
            // volumes that predate this kubelet were discovered on disk.
            let unknown = state.staged.is_none() && !settled && !state.is_given_back;
            if unknown || used(device) || !state.attempts.may_begin(now, next) {
                continue;
            }
            state.attempts.busy = true;
            jobs.push(VolumeOperation::Unstage(device.clone()));
        }
    }
}
