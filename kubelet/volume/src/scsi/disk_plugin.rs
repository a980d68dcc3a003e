//! What the kinds of network disks have in common.
//!
//! The disk of a volume has a directory below the plugin's: where its file system is mounted for
//! all pods, or, below `volumeDevices`, with a link for each pod that has it as a device. Upstream
//! uses the same directories.

use std::{
    fmt, fs, io,
    os::unix::fs::{MetadataExt as _, symlink},
    path::{Path, PathBuf},
};

use futures::future::FutureExt as _;
use kubelet_host::mount_info;
use kubelet_pod_spec::{
    field::{self, Faults},
    identity::{self, PodUid},
    validation::mounts,
};

use super::kernel::Kernel;
use crate::{
    VolumeError, VolumeHost, attachment, blocking_at, blocking_on_own_files, blocking_on_server,
    entries::children,
    file_system, loop_device, mount, ownership,
    plugin::{
        Attributes, FoundDevice, MountRequest, Mounted, PluginFuture, PodVolume, VolumePlugin,
    },
    spec::{VolumeMode, VolumeSpec},
    usage::UsageSource,
};

/// Directory of the disks that pods use as devices.
const DEVICES: &str = "volumeDevices";
const DEFAULT_FS_TYPE: &str = "ext4";

/// A volume on a disk.
pub(crate) struct DiskSource<D> {
    pub(crate) disk: D,
    /// Name of the disk's directory.
    pub(crate) device: String,
    /// Identifies the disk among the node's attached volumes.
    pub(crate) volume: String,
    pub(crate) fs_type: Option<String>,
    pub(crate) read_only: bool,
}

/// A kind of network disks.
pub(crate) trait Transport: fmt::Debug + Send + Sync + Sized + 'static {
    type Disk: Clone + Send + Sync + 'static;
    /// Name of the plugin.
    const NAME: &'static str;
    /// Name of the field with the source.
    const FIELD: &'static str;

    /// The source of a volume of a pod in the namespace; `None` if it is of another kind.
    fn source(spec: &VolumeSpec, namespace: &str) -> Option<DiskSource<Self::Disk>>;

    /// Checks what is passed to programs, or is a part of a path.
    fn validate(disk: &Self::Disk, field: &field::Path, faults: &mut Faults);

    /// Names of the disks with a directory below `root`.
    fn devices(root: &Path) -> Result<Vec<String>, VolumeError>;

    /// What identifies a disk among the node's attached volumes, by the name of its directory.
    fn volume_of(device: &str) -> Option<String>;

    fn kernel(&self) -> &Kernel;

    /// Makes the kernel show a disk, whose directory is `dir`, and returns its device.
    fn attach<'a>(
        &'a self,
        disk: &'a Self::Disk,
        dir: &'a Path,
        host: &'a VolumeHost,
    ) -> PluginFuture<'a, PathBuf>;

    /// The block devices that lead to a disk. Blocks.
    fn paths(kernel: &Kernel, disk: &Self::Disk) -> Result<Vec<PathBuf>, VolumeError>;

    /// Removes the block devices of a disk, and then its directory. Nothing is mounted there any
    /// more; something `was_mounted` before.
    fn detach<'a>(
        &'a self,
        dirs: DiskDirs,
        device: &'a str,
        was_mounted: bool,
    ) -> PluginFuture<'a, ()>;

    /// Undoes what [`Self::attach`] recorded of a disk that could not be mounted. Blocks.
    fn forget(dir: &Path) -> Result<(), VolumeError> {
        let _ = dir;
        Ok(())
    }
}

/// The plugin of a kind of network disks.
#[derive(Debug)]
pub(crate) struct DiskPlugin<T> {
    pub(crate) host: VolumeHost,
    pub(crate) transport: T,
}

impl<T: Default> DiskPlugin<T> {
    pub(crate) fn new(host: VolumeHost) -> Self {
        Self {
            host,
            transport: T::default(),
        }
    }
}

/// The directories of the disks of a kind.
#[derive(Clone, Debug)]
pub(crate) struct DiskDirs {
    root: PathBuf,
}

impl DiskDirs {
    /// Name of the device of a disk, for volumes of a mode.
    fn name(device: String, mode: VolumeMode) -> String {
        match mode {
            VolumeMode::Filesystem => device,
            VolumeMode::Block => format!("{DEVICES}/{device}"),
        }
    }

    /// Name of the disk of a device.
    pub(crate) fn disk(device: &str) -> &str {
        let below = device.strip_prefix(DEVICES);
        let below = below.and_then(|device| device.strip_prefix('/'));
        below.unwrap_or(device)
    }

    pub(crate) fn path(&self, device: &str) -> PathBuf {
        self.root.join(device)
    }

    /// Names of all devices. Blocks.
    pub(crate) fn all<T: Transport>(&self) -> Result<Vec<String>, VolumeError> {
        let mut all = T::devices(&self.root)?;
        all.retain(|device| device != DEVICES);
        let devices = T::devices(&self.root.join(DEVICES))?.into_iter();
        all.extend(devices.map(|device| Self::name(device, VolumeMode::Block)));
        Ok(all)
    }

    /// Whether the name is that of a directory below this one, and of no other directory.
    fn is_name(device: &str) -> bool {
        let disk = Self::disk(device);
        let mut parts = disk.split('/');
        !disk.is_empty() && disk != DEVICES && parts.all(|part| !matches!(part, "" | "." | ".."))
    }

    /// Name of the device that is mounted for a pod.
    fn mounted_from(&self, dir: &Path) -> Result<Option<String>, VolumeError> {
        let failed = |error| VolumeError::io("check for mounts at", dir, error);
        let Some(own) = mount_info::at(dir).map_err(failed)? else {
            return Ok(None);
        };
        // The mount table has no symlinks.
        let root = self.root.canonicalize().map_err(failed)?;
        let disks = mount_info::within(&root).map_err(failed)?;
        let disk = disks.into_iter().find(|disk| disk.device == own.device);
        Ok(disk.and_then(|disk| name_below(&root, &disk.mount_point)))
    }

    /// What a pod's device is held by in the directory of its disk. This kubelet's link leads
    /// there; that of upstream's leads to the device, which the disk has too.
    fn held<T: Transport>(
        &self,
        link: &Path,
        uid: &PodUid,
    ) -> Result<Option<PathBuf>, VolumeError> {
        let devices = self.root.join(DEVICES);
        let target = fs::read_link(link).ok();
        if let Some(held) = target.filter(|target| target.starts_with(&devices)) {
            return Ok(Some(held));
        }
        let all = T::devices(&devices)?.into_iter();
        let all = all.map(|disk| devices.join(disk).join(uid.as_str()));
        let all = all.filter(|held| fs::symlink_metadata(held).is_ok());
        let all: Vec<PathBuf> = all.collect();
        let number = |path: &Path| fs::metadata(path).ok().map(|device| device.rdev());
        let wanted = number(link);
        let same = all
            .iter()
            .find(|held| wanted.is_some() && number(held) == wanted);
        Ok(same.cloned().or(match &all[..] {
            [held] => Some(held.clone()),
            _ => None,
        }))
    }
}

impl<T: Transport> DiskPlugin<T> {
    pub(crate) fn dirs(&self) -> DiskDirs {
        DiskDirs {
            root: self.host.plugin_dir(T::NAME),
        }
    }

    /// The source in a request.
    fn source(request: &MountRequest) -> Result<DiskSource<T::Disk>, VolumeError> {
        let namespace = identity::namespace(&request.pod);
        let unsupported = || VolumeError::Unsupported(request.spec.name.clone());
        let source = T::source(&request.spec, namespace).ok_or_else(unsupported)?;
        let field = request.field().child(T::FIELD);
        let mut faults = Faults::default();
        T::validate(&source.disk, &field, &mut faults);
        if let Some(fs_type) = source.fs_type.as_deref().filter(|name| !name.is_empty()) {
            faults.text(&field.child("fsType"), fs_type, mounts::file_system_type);
        }
        faults.into_result()?;
        Ok(source)
    }

    fn unique_name(volume: &str) -> String {
        format!("{}/{volume}", T::NAME)
    }

    /// Makes a disk available, and mounts its file system.
    async fn open(&self, request: &MountRequest) -> Result<(), VolumeError> {
        let source = Self::source(request)?;
        let mode = request.spec.mode;
        let dirs = self.dirs();
        let dir = dirs.path(&DiskDirs::name(source.device, mode));
        let path = dir.clone();
        let is_mounted = blocking_at(&dirs.root, move || mount::is_mounted(&path)).await?;
        if mode == VolumeMode::Filesystem && is_mounted {
            return Ok(());
        }
        let name = Self::unique_name(&source.volume);
        let missing = attachment::missing_in_node(&*self.host.objects, &name);
        if let Some(why) = missing.await? {
            return Err(VolumeError::NotAttached {
                volume: source.volume,
                driver: T::NAME.to_owned(),
                why: why.to_owned(),
            });
        }
        let attached = self.transport.attach(&source.disk, &dir, &self.host);
        let device = attached.await?;
        if mode == VolumeMode::Block {
            return Ok(());
        }
        let mut options = request.mount_options()?;
        options.extend(source.read_only.then(|| "ro".to_owned()));
        let fs_type = source.fs_type.filter(|name| !name.is_empty());
        let fs_type = fs_type.unwrap_or_else(|| DEFAULT_FS_TYPE.to_owned());
        let work = move || {
            let mounted = file_system::format_and_mount(&device, &dir, &fs_type, &options);
            mounted.or_else(|error| T::forget(&dir).and(Err(error)))
        };
        blocking_on_server(&Self::unique_name(&source.volume), work).await
    }

    /// Unmounts a disk, and lets it go.
    async fn close(&self, device: &str) -> Result<(), VolumeError> {
        if !DiskDirs::is_name(device) {
            let why = format!("{device:?} is no device of {}", T::NAME);
            return Err(VolumeError::Other(why.into()));
        }
        let dirs = self.dirs();
        let dir = dirs.path(device);
        let work = move || {
            let was_mounted = mount::is_mounted(&dir)?;
            mount::unmount_all(&dir)?;
            Ok((dir.exists(), was_mounted))
        };
        match blocking_on_server(&format!("{}/{device}", T::NAME), work).await? {
            (true, was_mounted) => self.transport.detach(dirs, device, was_mounted).await,
            (false, _) => Ok(()),
        }
    }

    /// A disk that is on the node. Its name may have more than the volume's spec, such as a port; so
    /// has upstream's after a restart.
    fn found(&self, device: String) -> FoundDevice {
        let volume = T::volume_of(DiskDirs::disk(&device));
        let volume = volume.filter(|_| !self.host.objects.is_standalone());
        FoundDevice {
            attachment: volume.map(|volume| Self::unique_name(&volume)),
            name: device,
        }
    }
}

impl<T: Transport> VolumePlugin for DiskPlugin<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn supports(&self, spec: &VolumeSpec) -> bool {
        T::source(spec, "").is_some()
    }

    fn attributes(&self, spec: &VolumeSpec) -> Attributes {
        let read_only = T::source(spec, "").is_some_and(|source| source.read_only);
        Attributes {
            read_only,
            managed: !read_only,
            selinux_relabel: true,
        }
    }

    fn takes_mount_options(&self) -> bool {
        true
    }

    fn usage(&self, request: &MountRequest) -> UsageSource {
        let dir = request.dir.clone();
        match request.spec.mode {
            VolumeMode::Filesystem => UsageSource::FileSystem(dir),
            VolumeMode::Block => UsageSource::Device(dir),
        }
    }

    fn device<'a>(&'a self, spec: &'a VolumeSpec) -> PluginFuture<'a, Option<String>> {
        futures::future::ready(device_name::<T>(spec)).boxed()
    }

    /// The controller has nothing to attach, but decides which node has the disk.
    fn attachment<'a>(&'a self, spec: &'a VolumeSpec) -> PluginFuture<'a, Option<String>> {
        let source = T::source(spec, "").filter(|_| !self.host.objects.is_standalone());
        let name = source.map(|source| Self::unique_name(&source.volume));
        futures::future::ready(Ok(name)).boxed()
    }

    fn stage<'a>(&'a self, request: &'a MountRequest) -> PluginFuture<'a, ()> {
        self.open(request).boxed()
    }

    fn set_up<'a>(&'a self, request: &'a MountRequest) -> PluginFuture<'a, Mounted> {
        async move {
            let source = Self::source(request)?;
            let dirs = self.dirs();
            let dir = dirs.path(&DiskDirs::name(source.device, request.spec.mode));
            let (request, kernel) = (request.clone(), self.transport.kernel().clone());
            let work = move || match request.spec.mode {
                VolumeMode::Filesystem => bind(&request, &dir, source.read_only),
                VolumeMode::Block => {
                    let paths = T::paths(&kernel, &source.disk)?;
                    map(&request, &dir, &kernel, &paths)
                }
            };
            blocking_on_server(&Self::unique_name(&source.volume), work).await
        }
        .boxed()
    }

    fn tear_down<'a>(&'a self, volume: &'a PodVolume) -> PluginFuture<'a, ()> {
        async move {
            let (dirs, dir) = (self.dirs(), self.host.volume_dir(volume));
            let (path, volume) = (dir.clone(), volume.clone());
            let work = move || {
                if volume.mode == VolumeMode::Block
                    && let Some(held) = dirs.held::<T>(&dir, &volume.uid)?
                {
                    loop_device::detach(&held)?;
                    mount::clean_up(&held)?;
                }
                mount::clean_up(&dir)
            };
            blocking_on_server(&path.to_string_lossy(), work).await
        }
        .boxed()
    }

    fn unstage<'a>(&'a self, device: &'a str) -> PluginFuture<'a, ()> {
        self.close(device).boxed()
    }

    fn device_on_disk<'a>(
        &'a self,
        volume: &'a PodVolume,
    ) -> PluginFuture<'a, Option<FoundDevice>> {
        async move {
            let (dirs, dir) = (self.dirs(), self.host.volume_dir(volume));
            let (root, volume) = (dirs.root.clone(), volume.clone());
            let work = move || match volume.mode {
                VolumeMode::Filesystem => dirs.mounted_from(&dir),
                VolumeMode::Block => {
                    let held = dirs.held::<T>(&dir, &volume.uid)?;
                    Ok(held.and_then(|held| name_below(&dirs.root, held.parent()?)))
                }
            };
            let device = blocking_at(&root, work).await?;
            Ok(device.map(|device| self.found(device)))
        }
        .boxed()
    }

    fn devices_on_disk(&self) -> PluginFuture<'_, Vec<FoundDevice>> {
        async move {
            let dirs = self.dirs();
            let devices = blocking_on_own_files(move || dirs.all::<T>()).await?;
            let devices = devices.into_iter();
            Ok(devices.map(|device| self.found(device)).collect())
        }
        .boxed()
    }
}

/// Name of the device of a volume, if it is on a disk.
fn device_name<T: Transport>(spec: &VolumeSpec) -> Result<Option<String>, VolumeError> {
    let Some(source) = T::source(spec, "") else {
        return Ok(None);
    };
    // It becomes the name of a directory, which is removed even if the disk was never opened.
    let mut faults = Faults::default();
    T::validate(&source.disk, &field::Path::new(T::FIELD), &mut faults);
    faults.into_result()?;
    let device = DiskDirs::name(source.device, spec.mode);
    match DiskDirs::is_name(&device) {
        true => Ok(Some(device)),
        false => {
            let why = format!("{}: {device:?} cannot be a directory", T::FIELD);
            Err(VolumeError::invalid(&spec.name, why))
        }
    }
}

/// Mounts the file system of a disk for a pod.
fn bind(request: &MountRequest, from: &Path, read_only: bool) -> Result<Mounted, VolumeError> {
    let dir = &request.dir;
    let failed = |error| VolumeError::io("bind-mount the disk to", dir, error);
    if !mount::is_mounted(dir)? {
        if !mount::is_mounted(from)? {
            let error = io::Error::other("nothing is mounted there");
            return Err(VolumeError::io("use the disk at", from, error));
        }
        // Before the pod has it, so that a restart of the kubelet completes it.
        if let Some(group) = request.fs_group.filter(|_| !read_only) {
            ownership::set(from, group, false, &request.ownership_progress)?;
        }
        mount::make_dir(dir, 0o750)?;
        mount::bind(from, dir).map_err(failed)?;
    }
    if read_only {
        mount::make_read_only(dir).map_err(failed)?;
    }
    Ok(Mounted::Path(dir.clone()))
}

/// Makes the links by which a pod gets a disk as a device.
fn map(
    request: &MountRequest,
    dir: &Path,
    kernel: &Kernel,
    paths: &[PathBuf],
) -> Result<Mounted, VolumeError> {
    let Some(first) = paths.first() else {
        let error = io::Error::other("the kernel does not show it");
        return Err(VolumeError::io("use the disk at", dir, error));
    };
    let device = kernel.multipath(paths)?.unwrap_or_else(|| first.clone());
    let held = dir.join(request.volume.uid.as_str());
    link(&device, &held)?;
    link(&held, &request.dir)?;
    Ok(Mounted::Device(request.dir.clone()))
}

/// Makes a symlink, in place of another one.
fn link(target: &Path, at: &Path) -> Result<(), VolumeError> {
    if fs::read_link(at).ok().as_deref() == Some(target) {
        return Ok(());
    }
    mount::remove_mount_point(at)?;
    if let Some(parent) = at.parent() {
        mount::make_dir(parent, 0o750)?;
    }
    symlink(target, at).map_err(|error| VolumeError::io("create", at, error))
}

/// The path below a directory, as a name.
fn name_below(root: &Path, path: &Path) -> Option<String> {
    let name = path.strip_prefix(root).ok()?;
    Some(name.to_string_lossy().into_owned())
}

/// Names of the entries of a directory. Blocks.
pub(crate) fn names(dir: &Path) -> Result<Vec<String>, VolumeError> {
    Ok(children(dir)?.into_iter().map(|(name, _)| name).collect())
}
