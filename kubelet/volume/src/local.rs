//! `local`: a directory or disk of this node, as a persistent volume. A disk without a file system
//! is formatted, and a disk is mounted once for all of its pods.

use std::{
    fs,
    os::unix::fs::{FileTypeExt as _, symlink},
    path::{Component, Path, PathBuf},
};

use futures::future::FutureExt as _;
use k8s_openapi::api::core::v1::LocalVolumeSource;
use kubelet_host::mount_info;
use kubelet_pod_spec::{field::Faults, validation::mounts};

use super::{
    VolumeError, VolumeHost, blocking_at, blocking_on_own_files, entries, file_system, mount,
    ownership,
    plugin::{
        Attributes, FoundDevice, Growth, MountRequest, Mounted, PluginFuture, PodVolume,
        VolumePlugin,
    },
    spec::VolumeSpec,
    usage::UsageSource,
};
use crate::spec::VolumeMode;

const NAME: &str = "kubernetes.io/local-volume";
const DEFAULT_FS_TYPE: &str = "ext4";

/// The plugin.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) host: VolumeHost,
}

/// The type of a local volume's path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PathType {
    Directory,
    Disk,
}

impl VolumePlugin for Local {
    fn name(&self) -> &'static str {
        NAME
    }

    fn supports(&self, spec: &VolumeSpec) -> bool {
        source(spec).is_some()
    }

    fn attributes(&self, spec: &VolumeSpec) -> Attributes {
        Attributes {
            read_only: spec.read_only,
            managed: !spec.read_only,
            selinux_relabel: true,
        }
    }

    fn takes_mount_options(&self) -> bool {
        true
    }

    /// A directory counts as a whole file system too, as upstream.
    fn usage(&self, request: &MountRequest) -> UsageSource {
        let dir = request.dir.clone();
        match request.spec.mode {
            VolumeMode::Filesystem => UsageSource::FileSystem(dir),
            VolumeMode::Block => UsageSource::Device(dir),
        }
    }

    fn device<'a>(&'a self, spec: &'a VolumeSpec) -> PluginFuture<'a, Option<String>> {
        let mounted = spec.mode == VolumeMode::Filesystem;
        let name = mounted.then(|| spec.inner_name().to_owned());
        futures::future::ready(Ok(name)).boxed()
    }

    fn stage<'a>(&'a self, request: &'a MountRequest) -> PluginFuture<'a, ()> {
        let request = request.clone();
        let target = self.device_dir(request.spec.inner_name());
        let path = path_of(&request.spec);
        let work = move || {
            let source = known_source(&request.spec)?;
            let path = checked_path(&request, source)?;
            if kind(path)? == PathType::Directory || mount::is_mounted(&target)? {
                return Ok(());
            }
            let mut options = request.mount_options()?;
            let fs_type = operands(&request, source)?;
            mount::make_dir(&target, 0o750)?;
            if request.spec.read_only {
                options.push("ro".to_owned());
            }
            file_system::format_and_mount(path, &target, fs_type, &options)
        };
        async move { blocking_at(&path, work).await }.boxed()
    }

    fn set_up<'a>(&'a self, request: &'a MountRequest) -> PluginFuture<'a, Mounted> {
        let (request, host) = (request.clone(), self.host.clone());
        let device_dir = self.device_dir(request.spec.inner_name());
        let path = path_of(&request.spec);
        let work = move || {
            let source = known_source(&request.spec)?;
            let path = checked_path(&request, source)?;
            if request.spec.mode == VolumeMode::Block {
                return map_device(&request.dir, path);
            }
            let from = match kind(path)? {
                PathType::Directory => path,
                PathType::Disk => &device_dir,
            };
            let dir = &request.dir;
            if !mount::is_mounted(dir)? {
                bind(&request, source, from, &host)?;
            } else if request.spec.read_only {
                // The kubelet may have been killed right after it mounted the volume.
                let made = mount::make_read_only(dir);
                made.map_err(|error| VolumeError::io("make read-only", dir, error))?;
            }
            Ok(Mounted::Path(request.dir))
        };
        async move { blocking_at(&path, work).await }.boxed()
    }

    fn expands(&self, _: &VolumeSpec) -> bool {
        true
    }

    fn expand<'a>(&'a self, request: &'a MountRequest, _: i64) -> PluginFuture<'a, Growth> {
        let request = request.clone();
        let device_dir = self.device_dir(request.spec.inner_name());
        let path = path_of(&request.spec);
        let work = move || {
            let source = known_source(&request.spec)?;
            let path = checked_path(&request, source)?;
            if request.spec.mode == VolumeMode::Block || kind(path)? == PathType::Directory {
                return Ok(Growth::Needless);
            }
            operands(&request, source)?;
            file_system::grow(path, &device_dir)?;
            Ok(Growth::Done)
        };
        async move { blocking_at(&path, work).await }.boxed()
    }

    fn tear_down<'a>(&'a self, volume: &'a PodVolume) -> PluginFuture<'a, ()> {
        let dir = self.host.volume_dir(volume);
        async move { blocking_at(&dir.clone(), move || mount::clean_up(&dir)).await }.boxed()
    }

    fn unstage<'a>(&'a self, device: &'a str) -> PluginFuture<'a, ()> {
        let dir = self.device_dir(device);
        async move { blocking_at(&dir.clone(), move || mount::clean_up(&dir)).await }.boxed()
    }

    fn device_on_disk<'a>(
        &'a self,
        volume: &'a PodVolume,
    ) -> PluginFuture<'a, Option<FoundDevice>> {
        let mounted = volume.mode == VolumeMode::Filesystem;
        let name = mounted.then(|| FoundDevice::from(volume.name.clone()));
        futures::future::ready(Ok(name)).boxed()
    }

    fn devices_on_disk(&self) -> PluginFuture<'_, Vec<FoundDevice>> {
        let dir = self.devices_dir();
        blocking_on_own_files(move || {
            let children = entries::children(&dir)?;
            Ok(children.into_iter().map(|(name, _)| name.into()).collect())
        })
        .boxed()
    }
}

impl Local {
    fn devices_dir(&self) -> PathBuf {
        self.host.plugin_dir(NAME).join("mounts")
    }

    fn device_dir(&self, name: &str) -> PathBuf {
        self.devices_dir().join(name)
    }
}

fn source(spec: &VolumeSpec) -> Option<&LocalVolumeSource> {
    spec.persistent()?.spec.as_ref()?.local.as_ref()
}

/// The path on this node; empty if this is not a local volume.
fn path_of(spec: &VolumeSpec) -> PathBuf {
    source(spec)
        .map(|source| PathBuf::from(&source.path))
        .unwrap_or_default()
}

fn known_source(spec: &VolumeSpec) -> Result<&LocalVolumeSource, VolumeError> {
    source(spec).ok_or_else(|| VolumeError::Unsupported(spec.name.clone()))
}

fn checked_path<'a>(
    request: &MountRequest,
    source: &'a LocalVolumeSource,
) -> Result<&'a Path, VolumeError> {
    let path = Path::new(&source.path);
    let back = path.components().any(|part| part == Component::ParentDir);
    if source.path.is_empty() || back {
        let why = format!("invalid path: {:?}", source.path);
        return Err(VolumeError::invalid(request.name(), why));
    }
    Ok(path)
}

/// The file system type of a disk, for programs that also get the volume's path: both must be safe
/// to pass. The path of a directory that is bound without options may be anything.
fn operands<'a>(
    request: &MountRequest,
    source: &'a LocalVolumeSource,
) -> Result<&'a str, VolumeError> {
    let fs_type = source.fs_type.as_deref().unwrap_or_default();
    let fs_type = Some(fs_type).filter(|name| !name.is_empty());
    let fs_type = fs_type.unwrap_or(DEFAULT_FS_TYPE);
    let field = request.field().child("local");
    let mut faults = Faults::default();
    faults.text(&field.child("path"), &source.path, mounts::operand_path);
    faults.text(&field.child("fsType"), fs_type, mounts::file_system_type);
    faults.into_result()?;
    Ok(fs_type)
}

fn kind(path: &Path) -> Result<PathType, VolumeError> {
    let found = fs::metadata(path).map_err(|error| VolumeError::io("inspect", path, error))?;
    if found.is_dir() {
        Ok(PathType::Directory)
    } else if found.file_type().is_block_device() {
        Ok(PathType::Disk)
    } else {
        let error = std::io::Error::other("only directory and block device are supported");
        Err(VolumeError::io("use", path, error))
    }
}

/// Bind-mounts the volume at the pod's directory. The files get the `fsGroup` of the first of the
/// pods that use them.
fn bind(
    request: &MountRequest,
    source: &LocalVolumeSource,
    from: &Path,
    host: &VolumeHost,
) -> Result<(), VolumeError> {
    let dir = &request.dir;
    let failed = |error| VolumeError::io("bind-mount the local volume to", dir, error);
    let mut options = request.mount_options()?;
    if !options.is_empty() {
        operands(request, source)?;
    }
    mount::make_dir(dir, 0o750)?;
    if options.is_empty() {
        mount::bind(from, dir).map_err(failed)?;
        if request.spec.read_only {
            mount::make_read_only(dir).map_err(failed)?;
        }
    } else {
        options.insert(0, "bind".to_owned());
        options.extend(request.spec.read_only.then(|| "ro".to_owned()));
        mount::mount_program(&from.to_string_lossy(), dir, "", &options)?;
    }
    match request.fs_group {
        Some(group) if !request.spec.read_only && !is_shared(dir, host).map_err(failed)? => {
            ownership::set(dir, group, false, &request.ownership_progress)
        }
        _ => Ok(()),
    }
}

/// Whether another pod has the same directory mounted.
fn is_shared(dir: &Path, host: &VolumeHost) -> std::io::Result<bool> {
    let Some(own) = mount_info::at(dir)? else {
        return Ok(false);
    };
    let pods = mount_info::within(&kubelet_pod_spec::directory::pods_dir(&host.root_dir))?;
    Ok(pods.iter().any(|other| {
        other.mount_point != own.mount_point
            && (&other.device, &other.root) == (&own.device, &own.root)
    }))
}

/// Creates the symlink through which containers get a device.
fn map_device(link: &Path, device: &Path) -> Result<Mounted, VolumeError> {
    if kind(device)? != PathType::Disk {
        let error = std::io::Error::other("it is not a block device");
        return Err(VolumeError::io("use", device, error));
    }
    if fs::read_link(link).ok().as_deref() != Some(device) {
        mount::remove_mount_point(link)?;
        if let Some(parent) = link.parent() {
            mount::make_dir(parent, 0o750)?;
        }
        symlink(device, link).map_err(|error| VolumeError::io("create", link, error))?;
    }
    Ok(Mounted::Device(link.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::{plugin, spec::VolumeSource};

    #[tokio::test]
    async fn a_mount_that_was_interrupted_becomes_read_only() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        fs::create_dir(&data).unwrap();
        let volume = json!({"metadata": {"name": "pv"}, "spec": {"local": {"path": data}}});
        let spec = VolumeSpec {
            name: "v".to_owned(),
            source: VolumeSource::Persistent(Arc::new(serde_json::from_value(volume).unwrap())),
            read_only: true,
            mode: VolumeMode::Filesystem,
            capacity: None,
            migrated: false,
        };
        let local = Local {
            host: plugin::tests::host(&dir.path().join("kubelet")),
        };
        let mut request = plugin::tests::request(Arc::default(), spec, NAME);
        request.dir = dir.path().join("mounted");
        mount::make_dir(&request.dir, 0o750).unwrap();
        mount::bind(&data, &request.dir).unwrap();
        let set_up = local.set_up(&request).await;
        let mounted = mount_info::at(&request.dir).unwrap().unwrap();
        mount::unmount_all(dir.path()).unwrap();
        set_up.unwrap();
        assert!(mounted.has_option("ro"), "{mounted:?}");
    }
}
