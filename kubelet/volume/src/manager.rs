//! The volume manager: pods say what they want of it and wait; it brings the node there.

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

use super::{
    VolumeError, VolumeHost, in_tree,
    metrics::StorageMetrics,
    mounted::{MountedVolume, MountedVolumes},
    plugin::{Device, FsGroup, MountRequest, PodVolume, VolumePlugin},
    selinux,
    spec::{self, VolumeSpec},
    world::{Wants, World},
};
use crate::spec::VolumeMode;

/// How long a pod waits for its volumes, or for their end, before its sync fails. The
/// manager goes on meanwhile.
const WAIT_LIMIT: Duration = Duration::from_secs(2 * 60 + 3);

/// Mounts and unmounts the volumes of pods. Its [`run`](Self::run) does the work.
#[derive(Debug)]
pub struct VolumeManager {
    pub(super) host: VolumeHost,
    pub(super) plugins: Vec<Arc<dyn VolumePlugin>>,
    pub(super) world: Mutex<World>,
    /// Something in the world is other than it was. Wakes in the order in which was
    /// waited, unlike a watch channel.
    pub(super) changed: Notify,
    pub(super) metrics: StorageMetrics,
}

impl VolumeManager {
    /// A manager of the volumes that `plugins` know.
    pub fn new(host: VolumeHost, plugins: Vec<Arc<dyn VolumePlugin>>) -> Self {
        Self {
            host,
            plugins,
            world: Mutex::default(),
            changed: Notify::new(),
            metrics: StorageMetrics::default(),
        }
    }

    /// Sees to it that the pod has the volumes that its containers use, and that what they
    /// hold is up to date; waits for those that it does not have.
    ///
    /// # Errors
    /// It is not known what is behind a volume, or some are not ready in time.
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
        let wants = if errors.is_empty() {
            Wants::All
        } else {
            Wants::Some
        };
        self.world.lock().want(&uid, wanted, wants);
        self.changed.notify_waiters();
        let ready = |world: &World| world.unmounted(&uid, &used).is_empty();
        let is_ready = match wants {
            Wants::All => self.wait_until(ready).await,
            // A pod that has everything already can go on.
            Wants::Some => ready(&self.world.lock()),
        };
        if is_ready {
            return Ok(self.mounted(&uid, &used));
        }
        // Of what fails while it is waited for, its own events tell.
        let is_late = errors.is_empty();
        if is_late {
            errors.push(self.exceeded(&uid));
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

    /// What is asked of the plugin that the volume belongs to, and whether it is to be done
    /// again when it was done.
    async fn request(
        &self,
        pod: &Arc<Pod>,
        spec: VolumeSpec,
    ) -> Result<(MountRequest, bool), VolumeError> {
        let plugin = self
            .plugins
            .iter()
            .find(|plugin| plugin.supports(&spec))
            .ok_or_else(|| in_tree::unsupported(&spec))?;
        let device = plugin.device(&spec)?.map(|name| Device {
            plugin: plugin.name().to_owned(),
            name,
        });
        let attachment = plugin.attachment(&spec).await?;
        let volume = PodVolume {
            uid: PodUid::of(pod),
            plugin: plugin.name().to_owned(),
            name: spec.inner_name().to_owned(),
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
            spec,
        };
        Ok((request, refreshes))
    }

    /// The SELinux label that the volume is to be mounted with, if it can be.
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

    /// Gives back what a pod has on the node, known to this kubelet or not, and waits for
    /// it. For a pod of which nothing runs.
    ///
    /// # Errors
    /// The pod's directory cannot be read, or something is still there after a while; it
    /// goes on being given back.
    pub async fn wait_for_unmount(&self, uid: &PodUid) -> Result<(), VolumeError> {
        self.find_volumes(uid).await?;
        self.release(uid);
        self.wait_until_given_back(uid).await
    }

    /// The pod is over, or nobody has it: begins to give back what is known of it on the
    /// node.
    pub fn release(&self, uid: &PodUid) {
        self.world.lock().release(uid);
        self.changed.notify_waiters();
    }

    /// Waits until everything is given back that is known of the pod.
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

    /// Unique names of the volumes that have to be attached to this node as long as its
    /// pods have them, or may have them, or are to have them. `None` until it is known
    /// what an earlier kubelet left.
    pub fn volumes_in_use(&self) -> Option<Vec<String>> {
        self.world.lock().in_use()
    }

    /// Has volumes that wait for being attached looked after again when this node's object
    /// says that they are, until cancelled.
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

    /// Every source of pods was read: what earlier kubelets left and no pod has named is
    /// left over.
    pub fn settle(&self) {
        self.world.lock().settle();
        self.changed.notify_waiters();
    }

    pub(super) fn plugin(&self, name: &str) -> Option<&Arc<dyn VolumePlugin>> {
        self.plugins.iter().find(|plugin| plugin.name() == name)
    }

    /// Whether it holds in time.
    async fn wait_until(&self, holds: impl Fn(&World) -> bool) -> bool {
        let deadline = Instant::now() + WAIT_LIMIT;
        loop {
            // Before the look, so that nothing that comes after it is missed.
            let changed = self.changed.notified();
            if holds(&self.world.lock()) {
                return true;
            }
            if timeout_at(deadline, changed).await.is_err() {
                return false;
            }
        }
    }

    /// Upstream's words, and what it says in events alone.
    fn exceeded(&self, uid: &PodUid) -> String {
        let errors = self.world.lock().errors(uid);
        if errors.is_empty() {
            return "context deadline exceeded".to_owned();
        }
        format!("context deadline exceeded ({})", errors.join("; "))
    }
}

impl Collector for VolumeManager {
    /// How long operations took, and how many volumes there are and are to be.
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

/// Unique names of the volumes that are attached to a node, and in use there.
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

/// The user that every container says it runs as.
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
