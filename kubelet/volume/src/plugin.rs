//! What a kind of volume does for the volume manager.
//!
//! The manager decides when; a [`VolumePlugin`] says how. For one volume of one pod it
//! calls, in this order:
//!
//! 1. [`device`](VolumePlugin::device): is there something on the node that pods share?
//!    If so, [`stage`](VolumePlugin::stage) it, once for all of its pods.
//! 2. [`set_up`](VolumePlugin::set_up) for the pod, then, when the claim has grown,
//!    [`expand`](VolumePlugin::expand).
//! 3. `set_up` again with each sync of the pod while [`refreshes`](VolumePlugin::refreshes).
//! 4. [`tear_down`](VolumePlugin::tear_down) when the pod is gone, and
//!    [`unstage`](VolumePlugin::unstage) when the last of its pods is.
//!
//! Of one volume, and of one device, never two calls run at the same time, but that one
//! device may be torn down for several pods at once. Every call may be made any number of
//! times and must converge: the kubelet may be killed anywhere in one, and makes it again
//! after its restart. In particular `stage` and `set_up` leave
//! alone what is mounted already, and `tear_down` and `unstage` get no spec: what they
//! need to know must be found on disk. A call that fails is made again with a back-off.
//! Calls run in tasks of their own, never in the sync loop; what blocks belongs in
//! [`blocking_at`](super::blocking_at), or in
//! [`blocking_on_own_files`](super::blocking_on_own_files) where it cannot hang.

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
    spec::{VolumeMode, VolumeSpec},
};

/// What a call comes to.
pub type Work<'a, T> = BoxFuture<'a, Result<T, VolumeError>>;

/// One volume of one pod, as the kubelet's directory tells it:
/// `pods/<uid>/volumes/<plugin>/<name>`, or `volumeDevices` for devices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodVolume {
    /// The pod.
    pub uid: PodUid,
    /// Name of the plugin, with a slash.
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

/// Something on the node that the pods of one volume share: a mount to bind from, or a
/// device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// Name of the plugin.
    pub plugin: String,
    /// What the plugin knows it by. It must say where its files are.
    pub name: String,
}

/// A device that an earlier kubelet left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDevice {
    /// As [`Device::name`].
    pub name: String,
    /// As [`MountRequest::attachment`]; also that of a volume that may not have to be
    /// attached, where what is on disk does not tell.
    pub attachment: Option<String>,
}

impl From<String> for FoundDevice {
    /// One that no controller attaches.
    fn from(name: String) -> Self {
        Self {
            name,
            attachment: None,
        }
    }
}

/// What a pod wants of the ownership of a volume's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsGroup {
    /// The group (`fsGroup`).
    pub gid: u32,
    /// Nothing is changed where the root is right (`fsGroupChangePolicy: OnRootMismatch`).
    pub on_root_mismatch: bool,
}

/// A volume that a pod wants.
#[derive(Clone, Debug)]
pub struct MountRequest {
    /// The pod, as it was last synced.
    pub pod: Arc<Pod>,
    /// The volume.
    pub spec: VolumeSpec,
    /// Where it goes.
    pub volume: PodVolume,
    /// Its directory: that of [`PodVolume`].
    pub dir: PathBuf,
    /// What it is mounted from, when the plugin has named a device.
    pub device: Option<Device>,
    /// Unique name of the volume, by which the node's object says that it is attached and
    /// in use; `None` where no controller has to attach it before the node can have it.
    pub attachment: Option<String>,
    /// Group of its files.
    pub fs_group: Option<FsGroup>,
    /// The one user that all containers of the pod run as, when there is one.
    pub fs_user: Option<u32>,
    /// The SELinux label that its files get by an option of `mount`; `None` where the runtime
    /// relabels them, and where there is no SELinux.
    pub selinux_label: Option<String>,
}

impl MountRequest {
    /// The volume's name in the pod's spec.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// The field that the volume's source is in: the pod's, or that of the persistent volume.
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

    /// What the persistent volume asks for when it is mounted, one option after the other.
    ///
    /// # Errors
    /// An item holds what cannot be given to `mount`.
    pub fn mount_options(&self) -> Result<Vec<String>, VolumeError> {
        let spec = self.spec.persistent().and_then(|v| v.spec.as_ref());
        let items = spec.and_then(|spec| spec.mount_options.as_ref());
        let path = self.field().child("mountOptions");
        let mut faults = Faults::default();
        let mut all = Vec::new();
        for (index, item) in items.into_iter().flatten().enumerate() {
            match mounts::mount_options(item) {
                Ok(options) => all.extend(options.into_iter().map(str::to_owned)),
                Err(rule) => faults.invalid(&path.index(index), item, rule),
            }
        }
        faults.into_result()?;
        Ok(all)
    }
}

/// A volume that containers can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mounted {
    /// This directory or file of the node.
    Path(PathBuf),
    /// This device of the node.
    Device(PathBuf),
    /// The runtime mounts an image.
    Image,
}

/// What holds for every mount of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// No container may write, whatever its mount says.
    pub read_only: bool,
    /// The files are the kubelet's to change.
    pub managed: bool,
    /// The runtime is to give the files the pod's SELinux label, where they have labels.
    pub selinux_relabel: bool,
}

/// What came of letting a volume grow.
#[derive(Debug)]
pub enum Growth {
    /// It has as much now.
    Done,
    /// On a node there is nothing to do for it.
    Needless,
    /// Whoever it belongs to cannot do that on a node.
    Unsupported(VolumeError),
    /// It cannot be done as long as the volume is used.
    InUse(VolumeError),
    /// It was refused, and nothing is being done.
    Refused {
        /// Why.
        error: VolumeError,
        /// It will be refused again.
        infeasible: bool,
    },
}

/// A kind of volume; see the module for the contract.
pub trait VolumePlugin: fmt::Debug + Send + Sync + 'static {
    /// Its name, with a slash: `kubernetes.io/secret`. In directories the slash is a `~`.
    fn name(&self) -> &'static str;

    /// Whether the volume is of this kind. Exactly one plugin says so.
    fn supports(&self, spec: &VolumeSpec) -> bool;

    /// What holds for mounts of the volume.
    fn attributes(&self, spec: &VolumeSpec) -> Attributes;

    /// Name of the device that the volume's pods share on this node.
    ///
    /// # Errors
    /// The spec lacks what the name is made of.
    fn device(&self, spec: &VolumeSpec) -> Result<Option<String>, VolumeError> {
        let _ = spec;
        Ok(None)
    }

    /// Unique name of the volume where a controller has to attach it to the node: see
    /// [`MountRequest::attachment`]. Only what has a device is attached.
    fn attachment<'a>(&'a self, spec: &'a VolumeSpec) -> Work<'a, Option<String>> {
        let _ = spec;
        future::ready(Ok(None)).boxed()
    }

    /// Whether the volume can be mounted with [`MountRequest::selinux_label`].
    fn takes_selinux_label<'a>(&'a self, spec: &'a VolumeSpec) -> Work<'a, bool> {
        let _ = spec;
        future::ready(Ok(false)).boxed()
    }

    /// Whether what is in the volume changes while it is mounted.
    fn refreshes(&self, spec: &VolumeSpec) -> bool {
        let _ = spec;
        false
    }

    /// Makes the device of the request ready. Waits for nothing that may take long, such
    /// as its being attached: fails, and is called again.
    fn stage<'a>(&'a self, request: &'a MountRequest) -> Work<'a, ()> {
        let _ = request;
        done()
    }

    /// Makes the volume ready for the pod, or brings its contents up to date.
    fn set_up<'a>(&'a self, request: &'a MountRequest) -> Work<'a, Mounted>;

    /// Lets a mounted volume grow to `bytes`. An error leaves it open what was done.
    fn expand<'a>(&'a self, request: &'a MountRequest, bytes: i64) -> Work<'a, Growth> {
        let _ = (request, bytes);
        future::ready(Ok(Growth::Needless)).boxed()
    }

    /// Takes away what [`set_up`](Self::set_up) made, with what belongs to the pod alone,
    /// and its directory.
    fn tear_down<'a>(&'a self, volume: &'a PodVolume) -> Work<'a, ()>;

    /// Takes away what [`stage`](Self::stage) made.
    fn unstage<'a>(&'a self, device: &'a str) -> Work<'a, ()> {
        let _ = device;
        done()
    }

    /// The device that a volume which an earlier kubelet left uses.
    fn device_on_disk<'a>(&'a self, volume: &'a PodVolume) -> Work<'a, Option<FoundDevice>> {
        let _ = volume;
        future::ready(Ok(None)).boxed()
    }

    /// The devices that an earlier kubelet left, used or not.
    fn devices_on_disk(&self) -> Work<'_, Vec<FoundDevice>> {
        future::ready(Ok(Vec::new())).boxed()
    }
}

fn done<'a>() -> Work<'a, ()> {
    future::ready(Ok(())).boxed()
}
