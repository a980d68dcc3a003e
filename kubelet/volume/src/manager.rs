//! The volume manager. Pod syncs request volumes and wait; the reconciler mounts and unmounts them.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Container, Node, Pod, PodSpec};
use kubelet_api_client::events::{Subject, reason};
use kubelet_metrics::{Collector, Exposition};
use kubelet_pod_spec::identity::PodUid;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{
    VolumeError, VolumeHost,
    held_devices::HeldDevices,
    metrics::StorageMetrics,
    mounted::{MountedVolume, MountedVolumes},
    plugin::{Device, FsGroup, MountRequest, PodVolume, VolumePlugin},
    selinux,
    spec::{self, VolumeSpec},
    state_of_world::{Resolution, StateOfWorld},
    usage::UsageSource,
};
use crate::spec::VolumeMode;

/// How long a pod sync waits for volumes to be mounted or unmounted before it fails. The manager
/// continues in the meantime.
const WAIT_LIMIT: Duration = Duration::from_secs(2 * 60 + 3);

/// Mounts and unmounts the volumes of pods. [`run`](Self::run) does the work.
#[derive(Debug)]
pub struct VolumeManager {
    pub(super) host: VolumeHost,
    pub(super) plugins: Vec<Arc<dyn VolumePlugin>>,
    pub(super) world: Mutex<StateOfWorld>,
    pub(super) devices: HeldDevices,
    /// Notified on each change of the world. Wakes waiters in the order in which they started to
    /// wait, unlike a watch channel.
    pub(super) changed: Notify,
    pub(super) metrics: StorageMetrics,
}

impl VolumeManager {
    /// A manager that handles volumes with `plugins`.
    pub fn new(host: VolumeHost, plugins: Vec<Arc<dyn VolumePlugin>>) -> Self {
        Self {
            host,
            plugins,
            world: Mutex::default(),
            devices: HeldDevices::default(),
            changed: Notify::new(),
            metrics: StorageMetrics::default(),
        }
    }

    /// Requests the volumes that the pod's containers use, refreshes their contents, and waits
    /// until they are mounted.
    ///
    /// # Errors
    /// A volume cannot be resolved, or some volumes are not ready in time.
    pub async fn wait_for_attach_and_mount(
        &self,
        pod: &Arc<Pod>,
    ) -> Result<MountedVolumes, VolumeError> {
        let uid = PodUid::of(pod);
        let Some(spec) = &pod.spec else {
            return Ok(MountedVolumes::default());
        };
        let (mounts, devices) = spec::used_volumes(spec);
        let used: Vec<String> = mounts
            .union(&devices)
            .map(|name| (*name).to_owned())
            .collect();
        let mut wanted = Vec::new();
        let mut unprocessed = Vec::new();
        let mut errors = Vec::new();
        for volume in spec.volumes.iter().flatten() {
            let name = volume.name.as_str();
            let mut uses = Vec::new();
            uses.extend(mounts.contains(name).then_some(VolumeMode::Filesystem));
            uses.extend(devices.contains(name).then_some(VolumeMode::Block));
            if uses.is_empty() {
                continue;
            }
            let resolved = spec::resolve(pod, volume, &uses, &*self.host.objects).await;
            let request = match resolved {
                Ok(spec) => self.request(pod, spec).await,
                Err(error) => Err(error),
            };
            match request {
                Ok(request) => wanted.push(request),
                Err(error) => {
                    unprocessed.push(volume.name.clone());
                    errors.push(error.to_string());
                }
            }
        }
        let resolution = if errors.is_empty() {
            Resolution::Complete
        } else {
            Resolution::Partial
        };
        self.world.lock().want(&uid, wanted, resolution);
        self.changed.notify_waiters();
        let ready = |world: &StateOfWorld| world.unmounted(&uid, &used).is_empty();
        let is_ready = match resolution {
            Resolution::Complete => self.wait_until(ready).await,
            // The pod can go on if all its volumes are mounted already.
            Resolution::Partial => ready(&self.world.lock()),
        };
        if is_ready {
            return Ok(self.mounted(&uid, &used));
        }
        // Operations that fail during the wait emit their own events.
        let is_late = errors.is_empty();
        if is_late {
            errors.push(self.exceeded(&uid));
            let unattached = self.without_place(&uid, &used).await;
            if !unattached.is_empty() {
                return Err(VolumeError::AttachLimitExceeded {
                    unmounted: self.world.lock().unmounted(&uid, &used),
                    unattached,
                    why: errors.join("; "),
                });
            }
        }
        let error = VolumeError::NotMounted {
            unmounted: self.world.lock().unmounted(&uid, &used),
            unprocessed,
            why: errors.join("; "),
        };
        if !is_late {
            let message = format_args!("Unable to attach or mount volumes: {error}");
            let subject = Subject::Pod(pod);
            self.host
                .events
                .warning(subject, reason::FAILED_MOUNT, message);
        }
        Err(error)
    }

    /// Names of the volumes that cannot be attached, because the node has as many as it can have.
    async fn without_place(&self, uid: &PodUid, used: &[String]) -> Vec<String> {
        let mut without = Vec::new();
        let awaited = self.world.lock().awaiting_attachment(uid, used);
        for request in awaited {
            let Some(plugin) = self.plugin(&request.volume.plugin) else {
                continue;
            };
            match plugin.exceeds_attach_limit(&request.spec).await {
                Ok(true) => without.push(request.name().to_owned()),
                Ok(false) => {}
                Err(error) => debug!(
                    volume = request.name(), %error,
                    "cannot tell whether the node has a place for the volume"
                ),
            }
        }
        without
    }

    /// The request for the plugin of the volume, and whether to refresh a mounted volume.
    async fn request(
        &self,
        pod: &Arc<Pod>,
        spec: VolumeSpec,
    ) -> Result<(MountRequest, bool), VolumeError> {
        let plugin = self
            .plugins
            .iter()
            .find(|plugin| plugin.supports(&spec))
            .ok_or_else(|| VolumeError::Unsupported(spec.name.clone()))?;
        let device = plugin.device(&spec).await?.map(|name| Device {
            plugin: plugin.name().to_owned(),
            name,
        });
        let attachment = plugin.attachment(&spec).await?;
        let volume = PodVolume {
            uid: PodUid::of(pod),
            plugin: plugin.name_for(&spec),
            name: spec.dir_name(),
            mode: spec.mode,
        };
        let selinux_label = self.selinux_label(pod, &spec, &**plugin).await?;
        let refreshes = plugin.refreshes(&spec);
        let request = MountRequest {
            pod: Arc::clone(pod),
            dir: self.host.volume_dir(&volume),
            volume,
            device,
            attachment,
            fs_group: pod.spec.as_ref().and_then(fs_group),
            fs_user: pod.spec.as_ref().and_then(fs_user),
            selinux_label,
            ownership_progress: Arc::default(),
            spec,
        };
        Ok((request, refreshes))
    }

    /// The SELinux label to mount the volume with, if its plugin supports that.
    async fn selinux_label(
        &self,
        pod: &Pod,
        spec: &VolumeSpec,
        plugin: &dyn VolumePlugin,
    ) -> Result<Option<String>, VolumeError> {
        let (Some(selinux), Some(pod)) = (&self.host.selinux, &pod.spec) else {
            return Ok(None);
        };
        let label = selinux::mount_label(selinux, pod, spec)?;
        let takes = label.is_some() && plugin.takes_selinux_label(spec).await?;
        Ok(label.filter(|_| takes))
    }

    fn mounted(&self, uid: &PodUid, names: &[String]) -> MountedVolumes {
        let world = self.world.lock();
        let volumes = names.iter().filter_map(|name| {
            let (mounted, request) = world.mounted(uid, name)?;
            let volume = MountedVolume {
                mounted: mounted.clone(),
                attributes: self
                    .plugin(&request.volume.plugin)?
                    .attributes(&request.spec),
                spec: request.spec.clone(),
            };
            Some((name.clone(), volume))
        });
        volumes.collect()
    }

    /// How the usage of each of the pod's mounted volumes is measured, by their names in its spec.
    pub fn usage_sources(&self, uid: &PodUid) -> Vec<(String, UsageSource)> {
        let requests = self.world.lock().all_mounted(uid);
        let sources = requests.iter().filter_map(|request| {
            let plugin = self.plugin(&request.volume.plugin)?;
            Some((request.name().to_owned(), plugin.usage(request)))
        });
        sources.collect()
    }

    /// Unmounts all volumes of a pod, including those found only on disk, and waits for that. None
    /// of the pod's containers may be running.
    ///
    /// # Errors
    /// The pod's directory cannot be read, or volumes are still mounted after the time limit;
    /// unmounting continues.
    pub async fn wait_for_unmount(&self, uid: &PodUid) -> Result<(), VolumeError> {
        self.find_volumes(uid).await?;
        self.release(uid);
        self.wait_until_given_back(uid).await
    }

    /// Starts to unmount the known volumes of a pod that has ended or does not exist any more.
    pub fn release(&self, uid: &PodUid) {
        self.world.lock().release(uid);
        self.changed.notify_waiters();
    }

    /// Waits until all known volumes of the pod are unmounted.
    ///
    /// # Errors
    /// As [`wait_for_unmount`](Self::wait_for_unmount).
    pub async fn wait_until_given_back(&self, uid: &PodUid) -> Result<(), VolumeError> {
        if self.wait_until(|world| world.left(uid).is_empty()).await {
            return Ok(());
        }
        let mounted = self.world.lock().left(uid);
        Err(VolumeError::StillMounted {
            mounted,
            why: self.exceeded(uid),
        })
    }

    /// Whether the pod has volumes that are not unmounted yet, on disk or known.
    ///
    /// # Errors
    /// The pod's directory cannot be read.
    pub async fn has_volumes(&self, uid: &PodUid) -> Result<bool, VolumeError> {
        self.find_volumes(uid).await?;
        Ok(!self.world.lock().left(uid).is_empty())
    }

    /// Unique names of the volumes that must stay attached to this node, because its pods have
    /// them, may have them or want them. `None` until the volumes of an earlier kubelet were
    /// discovered.
    pub fn volumes_in_use(&self) -> Option<Vec<String>> {
        self.world.lock().in_use()
    }

    /// Retries volumes that wait for their attachment as soon as the node's status lists them as
    /// attached and in use, until cancelled.
    pub async fn follow_node(
        &self,
        mut node: watch::Receiver<Option<Arc<Node>>>,
        cancel: CancellationToken,
    ) {
        let mut known = BTreeSet::new();
        loop {
            let now = {
                let node = node.borrow_and_update();
                node.as_ref()
                    .map_or_else(BTreeSet::new, |node| usable(node))
            };
            let news: BTreeSet<&String> = now.difference(&known).collect();
            if !news.is_empty() {
                self.world.lock().retry(&news);
                self.changed.notify_waiters();
            }
            known = now;
            let changed = cancel.run_until_cancelled(node.changed());
            if !matches!(changed.await, Some(Ok(()))) {
                return;
            }
        }
    }

    /// All pod sources have been read: devices of earlier kubelets that no pod has named are
    /// orphans.
    pub fn settle(&self) {
        self.world.lock().settle();
        self.changed.notify_waiters();
    }

    pub(super) fn plugin(&self, name: &str) -> Option<&Arc<dyn VolumePlugin>> {
        self.plugins.iter().find(|plugin| plugin.owns(name))
    }

    /// Waits until a condition holds; `false` if it does not in time.
    async fn wait_until(&self, holds: impl Fn(&StateOfWorld) -> bool) -> bool {
        let deadline = Instant::now() + WAIT_LIMIT;
        loop {
            // Subscribe before checking, so that no change in between is missed.
            let changed = self.changed.notified();
            if holds(&self.world.lock()) {
                return true;
            }
            if timeout_at(deadline, changed).await.is_err() {
                return false;
            }
        }
    }

    /// Upstream's message, with the errors that upstream reports only as events.
    fn exceeded(&self, uid: &PodUid) -> String {
        let errors = self.world.lock().errors(uid);
        if errors.is_empty() {
            return "context deadline exceeded".to_owned();
        }
        format!("context deadline exceeded ({})", errors.join("; "))
    }
}

impl Collector for VolumeManager {
    /// Durations of operations, and numbers of mounted and wanted volumes.
    fn collect(&self, page: &mut Exposition) {
        self.metrics.collect(page);
        let counts = self.world.lock().counts();
        if counts.is_empty() {
            return;
        }
        let name = "volume_manager_total_volumes";
        page.family(name, "gauge", "[ALPHA] Number of volumes in Volume Manager");
        for ((plugin, state), count) in counts {
            let labels = [("plugin_name", plugin.as_str()), ("state", state)];
            page.sample(name, &labels, count, None);
        }
    }
}

/// Unique names of the volumes that the node's status lists as both attached and in use.
fn usable(node: &Node) -> BTreeSet<String> {
    let Some(status) = &node.status else {
        return BTreeSet::new();
    };
    let in_use = status.volumes_in_use.as_deref().unwrap_or_default();
    let attached = status.volumes_attached.iter().flatten();
    let names = attached.map(|volume| &volume.name);
    names
        .filter(|name| in_use.contains(name))
        .cloned()
        .collect()
}

fn fs_group(spec: &PodSpec) -> Option<FsGroup> {
    let context = spec.security_context.as_ref()?;
    Some(FsGroup {
        gid: u32::try_from(context.fs_group?).ok()?,
        on_root_mismatch: context.fs_group_change_policy.as_deref() == Some("OnRootMismatch"),
    })
}

/// The user that all containers of the pod run as, if their specs agree on one.
fn fs_user(spec: &PodSpec) -> Option<u32> {
    let context = spec.security_context.as_ref();
    let default = context.and_then(|context| context.run_as_user);
    let of = |container: &Container| {
        let context = container.security_context.as_ref();
        context.and_then(|c| c.run_as_user).or(default)
    };
    let containers = spec.init_containers.iter().flatten();
    let mut users = containers.chain(&spec.containers).map(of);
    let first = users.next()??;
    let same = users.all(|user| user == Some(first));
    same.then(|| u32::try_from(first).ok()).flatten()
}
