//! The contract between the volume manager and the plugin of a kind of volume.
//!
//! The manager decides when to act, and a [`VolumePlugin`] how. For one volume of one pod the
//! manager calls, in this order:
//!
//! 1. [`device`](VolumePlugin::device) for the device that pods share on the node, if there is one,
//!    and [`stage`](VolumePlugin::stage) to prepare it, once for all of its pods.
//! 2. [`set_up`](VolumePlugin::set_up) for the pod, then [`expand`](VolumePlugin::expand) if the
//!    claim has grown.
//! 3. `set_up` again with each sync of the pod, if the volume
//!    [`refreshes`](VolumePlugin::refreshes).
//! 4. [`tear_down`](VolumePlugin::tear_down) when the pod is gone, and
//!    [`unstage`](VolumePlugin::unstage) when the last of the device's pods is gone.
//!
//! Calls for one volume or one device never overlap, except that volumes of several pods on one
//! device may be torn down at the same time. Every call may be repeated any number of times and
//! must converge: the kubelet may be killed in the middle of it and repeats it after the restart.
//! In particular, `stage` and `set_up` leave existing mounts alone, and `tear_down` and `unstage`
//! get no spec: they must find everything they need on disk. Failed calls are retried with a
//! back-off. Calls run in tasks of their own, never in the sync loop; blocking work belongs in
//! [`blocking_at`](super::blocking_at), or in
//! [`blocking_on_own_files`](super::blocking_on_own_files) if it cannot hang.

use std::{fmt, path::PathBuf, sync::Arc};

use futures::future::{self, BoxFuture, FutureExt as _};
use k8s_openapi::api::core::v1::Pod;
use kubelet_pod_spec::{
    field::{self, Faults},
    identity::PodUid,
    validation::mounts,
};

use super::{
    VolumeError,
    ownership_progress::OwnershipProgress,
    spec::{VolumeMode, VolumeSpec},
    usage::UsageSource,
};

/// Annotation of persistent volumes with mount options, older than the field.
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

/// The future of a plugin call.
pub type PluginFuture<'a, T> = BoxFuture<'a, Result<T, VolumeError>>;

/// One volume of one pod, as its directory identifies it: `pods/<uid>/volumes/<plugin>/<name>`, or
/// `volumeDevices` for devices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodVolume {
    /// The pod.
    pub uid: PodUid,
    /// Name of the plugin for this volume: [`VolumePlugin::name_for`].
    pub plugin: String,
    /// Name of the persistent volume, or of the volume in the pod's spec.
    pub name: String,
    /// Directory or device.
    pub mode: VolumeMode,
}

impl fmt::Display for PodVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.plugin, self.name)
    }
}

/// Something that the pods of one volume share on the node: a mount to bind from, or a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// Name of the plugin.
    pub plugin: String,
    /// Identifies the device to the plugin, which must be able to find its files by it.
    pub name: String,
}

/// A device that an earlier kubelet left on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDevice {
    /// As [`Device::name`].
    pub name: String,
    /// As [`MountRequest::attachment`], but also set if the data on disk does not tell whether the
    /// volume has to be attached.
    pub attachment: Option<String>,
}

impl From<String> for FoundDevice {
    /// A device that no controller attaches.
    fn from(name: String) -> Self {
        Self {
            name,
            attachment: None,
        }
    }
}

/// The ownership that a pod wants for a volume's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsGroup {
    /// The group (`fsGroup`).
    pub gid: u32,
    /// Skips volumes whose root is right already (`fsGroupChangePolicy: OnRootMismatch`).
    pub on_root_mismatch: bool,
}

/// A request to mount a volume for a pod.
#[derive(Clone, Debug)]
pub struct MountRequest {
    /// The pod, as of its last sync.
    pub pod: Arc<Pod>,
    /// The volume.
    pub spec: VolumeSpec,
    /// Identity of the volume on the node.
    pub volume: PodVolume,
    /// Directory of the volume, as described at [`PodVolume`].
    pub dir: PathBuf,
    /// Device to mount from, if the plugin has named one.
    pub device: Option<Device>,
    /// Unique name under which the node's status lists the volume as attached and in use; `None` if
    /// no controller has to attach it.
    pub attachment: Option<String>,
    /// Group of the volume's files.
    pub fs_group: Option<FsGroup>,
    /// User that all containers of the pod run as, if it is the same for all.
    pub fs_user: Option<u32>,
    /// SELinux label that the volume is mounted with (`-o context=`); `None` if the runtime
    /// relabels the files, or if SELinux is disabled.
    pub selinux_label: Option<String>,
    /// How far the change of the files' group has come.
    pub ownership_progress: Arc<OwnershipProgress>,
}

impl MountRequest {
    /// The volume's name in the pod's spec.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Path of the field with the volume's source, in the pod or in the persistent volume.
    pub fn field(&self) -> field::Path {
        if self.spec.persistent().is_some() {
            let name = self.spec.inner_name();
            return field::Path::new(&format!("PersistentVolume {name}: spec"));
        }
        let volumes = self.pod.spec.iter().flat_map(|spec| &spec.volumes);
        let index = volumes.flatten().position(|v| v.name == self.spec.name);
        let list = field::Path::new("spec").child("volumes");
        index.map_or(list.clone(), |index| list.index(index))
    }

    /// The mount options of the persistent volume, one per item. Its older annotation takes
    /// precedence over its spec, as upstream.
    ///
    /// # Errors
    /// An item is not safe to pass to `mount`.
    pub fn mount_options(&self) -> Result<Vec<String>, VolumeError> {
        let volume = self.spec.persistent();
        let annotations = volume.and_then(|volume| volume.metadata.annotations.as_ref());
        let annotation = annotations.and_then(|all| all.get(MOUNT_OPTIONS));
        let spec = volume.and_then(|volume| volume.spec.as_ref());
        let items = spec.and_then(|spec| spec.mount_options.as_ref());
        let name = self.spec.inner_name();
        let (items, path) = match annotation {
            Some(items) => {
                let path = format!("PersistentVolume {name}: metadata.annotations");
                let path = field::Path::new(&path).key(MOUNT_OPTIONS);
                (std::slice::from_ref(items), path)
            }
            None => {
                let items = items.map(Vec::as_slice).unwrap_or_default();
                (items, self.field().child("mountOptions"))
            }
        };
        let mut faults = Faults::default();
        let mut all = Vec::new();
        for (index, item) in items.iter().enumerate() {
            match mounts::mount_options(item) {
                Ok(options) => all.extend(options.into_iter().map(str::to_owned)),
                Err(rule) if annotation.is_some() => faults.invalid(&path, item, rule),
                Err(rule) => faults.invalid(&path.index(index), item, rule),
            }
        }
        faults.into_result()?;
        Ok(all)
    }
}

/// A volume that is ready for containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mounted {
    /// A directory or file of the node.
    Path(PathBuf),
    /// A device of the node.
    Device(PathBuf),
    /// An image, which the runtime mounts.
    Image,
}

/// Attributes of all mounts of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Read-only, whatever the container's mount says.
    pub read_only: bool,
    /// The kubelet may change the ownership and labels of the files.
    pub managed: bool,
    /// The runtime relabels the files with the pod's SELinux label, if they have labels.
    pub selinux_relabel: bool,
}

/// The result of an expansion.
#[derive(Debug)]
pub enum Growth {
    /// The volume has the new size.
    Done,
    /// The volume needs no expansion on the node.
    Needless,
    /// The driver cannot expand volumes on the node.
    Unsupported(VolumeError),
    /// The volume cannot be expanded while it is in use.
    InUse(VolumeError),
    /// The expansion was refused, and is not in progress.
    Refused {
        /// The cause.
        error: VolumeError,
        /// A retry would be refused too.
        infeasible: bool,
    },
}

/// The plugin of a kind of volume; see the module for the contract.
pub trait VolumePlugin: fmt::Debug + Send + Sync + 'static {
    /// Name of the plugin, with a slash: `kubernetes.io/secret`. Directory names have `~` instead
    /// of the slash.
    fn name(&self) -> &'static str;

    /// Name in a volume's directory, which may differ from [`name`](Self::name) if volumes have
    /// drivers.
    fn name_for(&self, spec: &VolumeSpec) -> String {
        let _ = spec;
        self.name().to_owned()
    }

    /// Whether volumes with this name in their directory belong to the plugin, also if an earlier
    /// kubelet mounted them. The first plugin that owns a name has its volumes.
    fn owns(&self, name: &str) -> bool {
        name == self.name()
    }

    /// Whether the volume is of this kind. At most one plugin supports a volume.
    fn supports(&self, spec: &VolumeSpec) -> bool;

    /// The attributes of all mounts of the volume.
    fn attributes(&self, spec: &VolumeSpec) -> Attributes;

    /// Whether volumes are mounted with [`MountRequest::mount_options`].
    fn takes_mount_options(&self) -> bool {
        false
    }

    /// How the usage of a mounted volume is measured.
    fn usage(&self, request: &MountRequest) -> UsageSource;

    /// Name of the device that the volume's pods share on this node, if any.
    ///
    /// # Errors
    /// The spec lacks a part of the name.
    fn device<'a>(&'a self, spec: &'a VolumeSpec) -> PluginFuture<'a, Option<String>> {
        let _ = spec;
        future::ready(Ok(None)).boxed()
    }

    /// Unique name of the volume if a controller has to attach it to the node: see
    /// [`MountRequest::attachment`]. Only volumes with a device are attached.
    fn attachment<'a>(&'a self, spec: &'a VolumeSpec) -> PluginFuture<'a, Option<String>> {
        let _ = spec;
        future::ready(Ok(None)).boxed()
    }

    /// Whether the volume, which is not attached, cannot be: the node has as many volumes of its
    /// kind as it can have.
    fn exceeds_attach_limit<'a>(&'a self, spec: &'a VolumeSpec) -> PluginFuture<'a, bool> {
        let _ = spec;
        future::ready(Ok(false)).boxed()
    }

    /// Whether the volume can be mounted with [`MountRequest::selinux_label`].
    fn takes_selinux_label<'a>(&'a self, spec: &'a VolumeSpec) -> PluginFuture<'a, bool> {
        let _ = spec;
        future::ready(Ok(false)).boxed()
    }

    /// Whether the contents change while the volume is mounted.
    fn refreshes(&self, spec: &VolumeSpec) -> bool {
        let _ = spec;
        false
    }

    /// Prepares the device of the request. Fails and is called again, rather than waiting for
    /// something slow such as the attachment.
    fn stage<'a>(&'a self, request: &'a MountRequest) -> PluginFuture<'a, ()> {
        let _ = request;
        done()
    }

    /// Makes the volume ready for the pod, or refreshes its contents.
    fn set_up<'a>(&'a self, request: &'a MountRequest) -> PluginFuture<'a, Mounted>;

    /// Whether the node has a part in expanding the volume.
    fn expands(&self, spec: &VolumeSpec) -> bool {
        let _ = spec;
        false
    }

    /// Expands a mounted volume to `bytes`. After an error, the outcome is unknown.
    fn expand<'a>(&'a self, request: &'a MountRequest, bytes: i64) -> PluginFuture<'a, Growth> {
        let _ = (request, bytes);
        future::ready(Ok(Growth::Needless)).boxed()
    }

    /// Undoes [`set_up`](Self::set_up), and removes the volume's directory and everything that
    /// belongs only to the pod.
    fn tear_down<'a>(&'a self, volume: &'a PodVolume) -> PluginFuture<'a, ()>;

    /// Undoes [`stage`](Self::stage).
    fn unstage<'a>(&'a self, device: &'a str) -> PluginFuture<'a, ()> {
        let _ = device;
        done()
    }

    /// The device of a volume that an earlier kubelet left on the node.
    fn device_on_disk<'a>(
        &'a self,
        volume: &'a PodVolume,
    ) -> PluginFuture<'a, Option<FoundDevice>> {
        let _ = volume;
        future::ready(Ok(None)).boxed()
    }

    /// All devices that an earlier kubelet left on the node, in use or not.
    fn devices_on_disk(&self) -> PluginFuture<'_, Vec<FoundDevice>> {
        future::ready(Ok(Vec::new())).boxed()
    }
}

fn done<'a>() -> PluginFuture<'a, ()> {
    future::ready(Ok(())).boxed()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use kubelet_api_client::{events::EventRecorder, objects::NoObjects};

    use super::*;
    use crate::VolumeHost;

    /// A node without an API server.
    pub(crate) fn host(root_dir: &Path) -> VolumeHost {
        VolumeHost {
            root_dir: root_dir.to_owned(),
            node_name: "node".to_owned(),
            selinux: None,
            objects: Arc::new(NoObjects),
            allocatable: Arc::default(),
            events: EventRecorder::default(),
        }
    }

    /// A request for a volume of a plugin, without a directory.
    pub(crate) fn request(pod: Arc<Pod>, spec: VolumeSpec, plugin: &str) -> MountRequest {
        MountRequest {
            volume: PodVolume {
                uid: PodUid::from("u"),
                plugin: plugin.to_owned(),
                name: spec.inner_name().to_owned(),
                mode: spec.mode,
            },
            pod,
            spec,
            dir: "/dir".into(),
            device: None,
            attachment: None,
            fs_group: None,
            fs_user: None,
            selinux_label: None,
            ownership_progress: Arc::default(),
        }
    }
}
