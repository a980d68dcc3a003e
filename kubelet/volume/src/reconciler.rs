//! The volume manager's task. It starts the operations that are due, one at a time per volume, and
//! sleeps otherwise.

use std::{collections::HashMap, fmt, future::pending, sync::Arc};

use kubelet_api_client::events::{Subject, reason};
use kubelet_pod_spec::{
    directory,
    identity::{self, PodUid},
};
use tokio::{
    task::{Id, JoinError, JoinSet},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    VolumeError, VolumeHost, access, blocking_on_own_files, disk, entries,
    expansion::{Expansion, ExpansionResult, ExpansionState},
    held_devices::HeldDevices,
    manager::VolumeManager,
    ownership_progress,
    plugin::{Device, FoundDevice, MountRequest, Mounted, PodVolume, VolumePlugin},
    state_of_world::VolumeOperation,
    subpath,
};
use crate::spec::VolumeMode;

type Outcome = Result<Option<Mounted>, VolumeError>;

impl VolumeManager {
    /// Runs the manager until cancelled. All volumes stay mounted then.
    pub async fn run(self: &Arc<Self>, cancel: CancellationToken) {
        if cancel.run_until_cancelled(self.find_all()).await.is_none() {
            return;
        }
        let mut tasks = JoinSet::<Outcome>::new();
        let mut running = HashMap::<Id, (VolumeOperation, Instant)>::new();
        loop {
            // Subscribe before checking, so that no change in between is missed.
            let changed = self.changed.notified();
            let (jobs, next) = self.world.lock().begin(Instant::now());
            for job in jobs {
                let work = Arc::clone(self).perform(job.clone());
                running.insert(tasks.spawn(work).id(), (job, Instant::now()));
            }
            let next = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                Some(ended) = tasks.join_next_with_id() => {
                    let (id, outcome) = flatten(ended);
                    if let Some((job, begun)) = running.remove(&id) {
                        let took = begun.elapsed();
                        self.metrics.ended(&job, outcome.is_ok(), took);
                        self.ended(&job, outcome);
                    }
                }
                () = changed => {}
                () = next => {}
            }
        }
    }

    fn ended(&self, job: &VolumeOperation, outcome: Outcome) {
        match (job, &outcome) {
            (VolumeOperation::SetUp { request, first, .. }, Ok(_)) => {
                let pod = identity::full_name(&request.pod);
                let volume = request.name();
                if *first {
                    info!(pod, pod_uid = %request.volume.uid, volume, "volume is ready");
                } else {
                    debug!(pod, pod_uid = %request.volume.uid, volume, "volume is up to date");
                }
            }
            (VolumeOperation::SetUp { request, first, .. }, Err(error)) => warn!(
                pod = identity::full_name(&request.pod), pod_uid = %request.volume.uid,
                volume = request.name(), %error,
                "cannot {} volume", if *first { "mount" } else { "refresh" }
            ),
            (VolumeOperation::TearDown { volume, .. }, Ok(_)) => {
                info!(pod_uid = %volume.uid, %volume, "tore down volume");
            }
            (VolumeOperation::TearDown { volume, .. }, Err(error)) => {
                warn!(pod_uid = %volume.uid, %volume, %error, "cannot tear down volume");
            }
            (VolumeOperation::Unstage(device), Ok(_)) => {
                info!(
                    plugin = device.plugin,
                    device = device.name,
                    "unstaged device"
                );
            }
            (VolumeOperation::Unstage(device), Err(error)) => warn!(
                plugin = device.plugin, device = device.name, %error, "cannot unstage device"
            ),
        }
        let outcome = outcome.map_err(|error| error.to_string());
        self.world.lock().end(job, outcome);
        self.changed.notify_waiters();
    }

    async fn perform(self: Arc<Self>, job: VolumeOperation) -> Outcome {
        match job {
            VolumeOperation::SetUp {
                request,
                stage,
                grow,
                first,
                conflicts,
            } => {
                let plugin = self.known_plugin(&request.volume)?;
                let steps = Steps {
                    plugin: &**plugin,
                    request: &request,
                    host: &self.host,
                    devices: &self.devices,
                };
                if first {
                    steps.check(conflicts).await?;
                }
                let mounted = steps.set_up(stage, first).await?;
                if let Some(known) = grow {
                    let expanded = steps.grow(known).await;
                    let mut world = self.world.lock();
                    match expanded.is_read_only {
                        true => world.give_up_growth(&request),
                        false => world.note_growth(&request.volume, expanded.known),
                    }
                    drop(world);
                    expanded.result?;
                }
                Ok(Some(mounted))
            }
            VolumeOperation::TearDown { volume, .. } => {
                let plugin = self.known_plugin(&volume)?;
                let pod_dir = self.host.pod_dir(&volume.uid);
                let name = volume.name.clone();
                // Needs no thread of the volume's server: unmounting a bind mount does not contact
                // it.
                blocking_on_own_files(move || subpath::clean_volume(&pod_dir, &name)).await?;
                let path = self.host.volume_dir(&volume);
                self.devices.release(&volume, &path).await?;
                plugin.tear_down(&volume).await?;
                Ok(None)
            }
            VolumeOperation::Unstage(device) => {
                if let Some(plugin) = self.plugin(&device.plugin) {
                    plugin.unstage(&device.name).await?;
                }
                Ok(None)
            }
        }
    }

    fn known_plugin(&self, volume: &PodVolume) -> Result<&Arc<dyn VolumePlugin>, VolumeError> {
        self.plugin(&volume.plugin)
            .ok_or_else(|| VolumeError::UnknownPlugin(self.host.volume_dir(volume)))
    }

    /// Discovers what an earlier kubelet left on the node.
    async fn find_all(&self) {
        let pods_dir = directory::pods_dir(&self.host.root_dir);
        let pods = blocking_on_own_files(move || entries::children(&pods_dir)).await;
        for (uid, _) in report(pods).unwrap_or_default() {
            report(self.find_volumes(&PodUid::from(uid.as_str())).await);
        }
        for plugin in &self.plugins {
            for found in report(plugin.devices_on_disk().await).unwrap_or_default() {
                let (device, attachment) = known_by(&**plugin, found);
                self.world.lock().found_device(device, attachment);
            }
        }
        self.world.lock().found_all();
    }

    /// Volumes of a pod on disk whose plugins this kubelet does not have. They were made by another
    /// kubelet that used the node.
    ///
    /// # Errors
    /// The pod's directory cannot be read.
    pub async fn unknown_volumes(&self, uid: &PodUid) -> Result<Vec<PodVolume>, VolumeError> {
        let (pod_dir, pod) = (self.host.pod_dir(uid), uid.clone());
        let mut volumes = blocking_on_own_files(move || disk::volumes(&pod_dir, &pod)).await?;
        volumes.retain(|volume| self.plugin(&volume.plugin).is_none());
        Ok(volumes)
    }

    /// Discovers the volumes of a pod on disk. Volumes of plugins that this kubelet does not have
    /// are ignored.
    ///
    /// # Errors
    /// The pod's directory cannot be read.
    pub async fn find_volumes(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let (pod_dir, pod) = (self.host.pod_dir(uid), uid.clone());
        let volumes = blocking_on_own_files(move || disk::volumes(&pod_dir, &pod)).await?;
        for volume in volumes {
            let Some(plugin) = self.plugin(&volume.plugin) else {
                continue;
            };
            // An error here must not hide the other volumes; the tear-down of this one will report
            // it.
            let found = report(plugin.device_on_disk(&volume).await).flatten();
            let device = found.map(|found| known_by(&**plugin, found));
            self.world.lock().found(volume, device);
        }
        Ok(())
    }
}

/// A discovered device and its attachment, in the form that the world records.
fn known_by(plugin: &dyn VolumePlugin, found: FoundDevice) -> (Device, Option<String>) {
    let device = Device {
        plugin: plugin.name().to_owned(),
        name: found.name,
    };
    (device, found.attachment)
}

/// The steps of setting up a volume, with their events.
struct Steps<'a> {
    plugin: &'a dyn VolumePlugin,
    request: &'a MountRequest,
    host: &'a VolumeHost,
    devices: &'a HeldDevices,
}

impl Steps<'_> {
    /// Checks whether the pod may use the volume on this node, as upstream does before mounting.
    async fn check(&self, conflicts: bool) -> Result<(), VolumeError> {
        let [affinity, setting_up] = match self.request.volume.mode {
            VolumeMode::Filesystem => [
                "MountVolume.NodeAffinity check failed",
                "MountVolume.SetUp failed",
            ],
            VolumeMode::Block => [
                "MapVolume.NodeAffinity check failed",
                "MapVolume.SetUpDevice failed",
            ],
        };
        let checked = access::check_node(&self.request.spec, self.host).await;
        if let Err(error) = &checked {
            self.warn(reason::FAILED_MOUNT, affinity, error);
            return checked;
        }
        if self.request.volume.mode == VolumeMode::Filesystem
            && !self.plugin.takes_mount_options()
            && !self.request.mount_options().is_ok_and(|all| all.is_empty())
        {
            let error = VolumeError::NoMountOptions;
            let what = "MountVolume.MountOptionSupport check failed";
            self.warn(reason::FAILED_MOUNT, what, &error);
            return Err(error);
        }
        if conflicts {
            let error = VolumeError::UsedByAnotherPod;
            self.failed(setting_up, &error);
            return Err(error);
        }
        Ok(())
    }

    async fn set_up(&self, stage: bool, first: bool) -> Result<Mounted, VolumeError> {
        let Self {
            plugin, request, ..
        } = *self;
        let [staging, setting_up] = match request.volume.mode {
            VolumeMode::Filesystem => {
                ["MountVolume.MountDevice failed", "MountVolume.SetUp failed"]
            }
            VolumeMode::Block => [
                "MapVolume.SetUpDevice failed",
                "MapVolume.MapPodDevice failed",
            ],
        };
        if stage {
            let staged = plugin.stage(request).await;
            staged.inspect_err(|error| self.failed(staging, error))?;
        }
        let set_up = plugin.set_up(request);
        let (progress, volume) = (&request.ownership_progress, (&*request.pod, &*request.dir));
        let mounted = ownership_progress::report(progress, volume, &self.host.events, set_up).await;
        let mounted = mounted.inspect_err(|error| self.failed(setting_up, error))?;
        if let Mounted::Device(path) = &mounted {
            let held = self.devices.hold(&request.volume, path).await;
            held.inspect_err(|error| self.failed("MapVolume.MapBlockVolume failed", error))?;
        }
        if first && request.volume.mode == VolumeMode::Block {
            let path = request.dir.display();
            self.succeeded(
                reason::SUCCESSFUL_MOUNT_VOLUME,
                "MapVolume.MapPodDevice succeeded",
                format_args!("volumeMapPath \"{path}\""),
            );
        }
        Ok(mounted)
    }

    /// Expands the volume, which is set up.
    async fn grow(&self, known: ExpansionState) -> ExpansionResult {
        let growing = match self.request.volume.mode {
            VolumeMode::Filesystem => "MountVolume.Setup failed while expanding volume",
            VolumeMode::Block => "MapVolume.MarkVolumeAsMounted failed while expanding volume",
        };
        let expansion = Expansion {
            plugin: self.plugin,
            request: self.request,
            host: self.host,
            known,
        };
        let expanded = expansion.run().await;
        if let Err(error) = &expanded.result {
            self.failed(growing, error);
        }
        let name = &self.request.volume.name;
        let both = |tell: &dyn Fn(Subject<'_>)| {
            tell(Subject::Pod(&self.request.pod));
            let claim = expanded.claim.as_deref();
            claim.map(Subject::Claim).into_iter().for_each(tell);
        };
        if expanded.has_grown {
            let (reason, node) = (reason::FILE_SYSTEM_RESIZE_SUCCESSFUL, &self.host.node_name);
            let what = "MountVolume.NodeExpandVolume succeeded for volume";
            both(&|subject| {
                let message = format_args!("{what} {name:?} {node}");
                self.host.events.normal(subject, reason, message);
            });
        }
        if expanded.is_read_only {
            let reason = reason::FILE_SYSTEM_RESIZE_FAILED;
            let what = "MountVolume.NodeExpandVolume failed for volume";
            both(&|subject| {
                let message = format_args!("{what} {name:?} requested read-only file system");
                self.host.events.warning(subject, reason, message);
            });
        }
        expanded
    }

    fn failed(&self, what: &str, error: &VolumeError) {
        // The attach/detach controller reports why a volume is not attached.
        if matches!(error, VolumeError::NotAttached { .. }) {
            return;
        }
        let reason = match self.request.volume.mode {
            VolumeMode::Filesystem => reason::FAILED_MOUNT,
            VolumeMode::Block => reason::FAILED_MAP_VOLUME,
        };
        self.warn(reason, what, error);
    }

    fn warn(&self, reason: &'static str, what: &str, error: &VolumeError) {
        let name = &self.request.volume.name;
        self.host.events.warning(
            Subject::Pod(&self.request.pod),
            reason,
            format_args!("{what} for volume {name:?} : {error}"),
        );
    }

    fn succeeded(&self, reason: &str, what: &str, details: fmt::Arguments<'_>) {
        let name = &self.request.volume.name;
        self.host.events.normal(
            Subject::Pod(&self.request.pod),
            reason,
            format_args!("{what} for volume {name:?} {details}"),
        );
    }
}

fn flatten(ended: Result<(Id, Outcome), JoinError>) -> (Id, Outcome) {
    match ended {
        Ok(ended) => ended,
        Err(panic) => (panic.id(), Err(VolumeError::Other(panic.into()))),
    }
}

/// Logs an error, so that discovery can go on with the rest.
fn report<T>(found: Result<T, VolumeError>) -> Option<T> {
    found
        .inspect_err(|error| warn!(%error, "cannot discover what an earlier kubelet mounted"))
        .ok()
}
