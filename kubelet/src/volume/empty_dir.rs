//! `emptyDir`: a directory that lives as long as its pod, on the node's disk or, by its
//! medium, in memory or in huge pages.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use futures::future::FutureExt as _;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod};

use super::{
    VolumeError, VolumeHost, blocking, huge_pages, mount, mount_info, ownership,
    plugin::{Attributes, MountRequest, Mounted, PodVolume, VolumePlugin, Work},
    spec::VolumeSpec,
};
use crate::runtime::resources;

const NAME: &str = "kubernetes.io/empty-dir";

/// The plugin.
#[derive(Debug)]
pub(super) struct EmptyDir {
    pub(super) host: VolumeHost,
}

impl VolumePlugin for EmptyDir {
    fn name(&self) -> &'static str {
        NAME
    }

    fn supports(&self, spec: &VolumeSpec) -> bool {
        spec.inline()
            .is_some_and(|volume| volume.empty_dir.is_some())
    }

    fn attributes(&self, _: &VolumeSpec) -> Attributes {
        Attributes {
            read_only: false,
            managed: true,
            selinux_relabel: true,
        }
    }

    fn set_up<'a>(&'a self, request: &'a MountRequest) -> Work<'a, Mounted> {
        let (request, host) = (request.clone(), self.host.clone());
        blocking(move || {
            let source = request.spec.inline().and_then(|v| v.empty_dir.as_ref());
            let medium = Medium::of(&request, source, host.memory)?;
            let marker = marker(&host, &request.volume);
            if is_ready(&request.dir, &medium, &marker)? {
                return Ok(Mounted::Path(request.dir));
            }
            make(&request.dir, &medium)?;
            if let Some(group) = request.fs_group {
                ownership::set(&request.dir, whole(group), false)?;
            }
            mark(&marker)?;
            Ok(Mounted::Path(request.dir))
        })
        .boxed()
    }

    fn tear_down<'a>(&'a self, volume: &'a PodVolume) -> Work<'a, ()> {
        let (dir, marker) = (self.host.volume_dir(volume), marker(&self.host, volume));
        blocking(move || {
            mount::remove_contents(&marker)?;
            mount::remove_contents(&dir)
        })
        .boxed()
    }
}

/// Upstream gives such volumes to the group whatever the policy is.
pub(super) const fn whole(group: super::plugin::FsGroup) -> super::plugin::FsGroup {
    super::plugin::FsGroup {
        on_root_mismatch: false,
        ..group
    }
}

/// What a directory is made of.
#[derive(Debug)]
pub(super) enum Medium {
    Disk,
    /// With the most bytes that it may have.
    Memory(i64),
    /// With the bytes of a page.
    HugePages(i64),
}

impl Medium {
    fn of(
        request: &MountRequest,
        source: Option<&EmptyDirVolumeSource>,
        memory: i64,
    ) -> Result<Self, VolumeError> {
        let medium = source.and_then(|source| source.medium.as_deref());
        match medium.unwrap_or_default() {
            "" => Ok(Self::Disk),
            "Memory" => {
                let limit = source.and_then(|source| source.size_limit.as_ref());
                let limit = limit.and_then(resources::units);
                Ok(Self::Memory(memory_size(&request.pod, limit, memory)))
            }
            huge if huge.starts_with("HugePages") => huge_pages::page_size(huge, &request.pod)
                .map(Self::HugePages)
                .map_err(|why| VolumeError::invalid(request.name(), why)),
            other => Err(VolumeError::invalid(
                request.name(),
                format!("unknown storage medium {other:?}"),
            )),
        }
    }
}

/// The smallest of what the volume, the pod and the node may have.
pub(super) fn memory_size(pod: &Pod, limit: Option<i64>, node: i64) -> i64 {
    let pod = pod.spec.as_ref().and_then(|spec| {
        let resources = resources::sandbox_resources(spec);
        Some(resources.memory_limit_in_bytes).filter(|_| is_limited(spec))
    });
    let limits = [pod, limit].into_iter().flatten();
    limits.filter(|limit| *limit > 0).fold(node, i64::min)
}

/// Whether every container has a memory limit: else the pod has none.
fn is_limited(spec: &k8s_openapi::api::core::v1::PodSpec) -> bool {
    let pod = spec.resources.as_ref().and_then(|r| r.limits.as_ref());
    if pod.is_some_and(|limits| limits.contains_key("memory")) {
        return true;
    }
    let mut containers = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers);
    containers.all(|container| {
        let limits = container.resources.as_ref().and_then(|r| r.limits.as_ref());
        limits.is_some_and(|limits| limits.contains_key("memory"))
    })
}

/// Makes the directory, with everybody's access, and mounts what it is made of.
pub(super) fn make(dir: &Path, medium: &Medium) -> Result<(), VolumeError> {
    mount::make_dir(dir, 0o777)?;
    let fs_type = match medium {
        Medium::Disk => None,
        Medium::Memory(_) => Some("tmpfs"),
        Medium::HugePages(_) => Some("hugetlbfs"),
    };
    if fs_type.is_some() && mounted_type(dir)?.as_deref() == fs_type {
        return Ok(());
    }
    // Making it obeyed the umask.
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777))
        .map_err(|error| VolumeError::io("set the mode of", dir, error))?;
    match medium {
        Medium::Disk => Ok(()),
        Medium::Memory(size) => mount::tmpfs(dir, Some(*size).filter(|size| *size > 0)),
        Medium::HugePages(size) => {
            let options = format!("pagesize={size}");
            mount::file_system("nodev", "hugetlbfs", dir, &options)
                .map_err(|error| VolumeError::io("mount huge pages on", dir, error))
        }
    }
}

fn mounted_type(dir: &Path) -> Result<Option<String>, VolumeError> {
    let mount =
        mount_info::at(dir).map_err(|error| VolumeError::io("look for mounts at", dir, error))?;
    Ok(mount.map(|mount| mount.fs_type))
}

fn is_ready(dir: &Path, medium: &Medium, marker: &Path) -> Result<bool, VolumeError> {
    let is_there = match medium {
        Medium::Disk => dir.is_dir(),
        Medium::Memory(_) => mounted_type(dir)?.as_deref() == Some("tmpfs"),
        Medium::HugePages(_) => mounted_type(dir)?.as_deref() == Some("hugetlbfs"),
    };
    Ok(is_there && marker.join("ready").exists())
}

/// Upstream's directory of the file that says that a volume was made wholly.
fn marker(host: &VolumeHost, volume: &PodVolume) -> PathBuf {
    let plugins = host.pod_dir(&volume.uid).join("plugins");
    plugins.join(NAME.replace('/', "~")).join(&volume.name)
}

fn mark(marker: &Path) -> Result<(), VolumeError> {
    mount::make_dir(marker, 0o750)?;
    let path = marker.join("ready");
    fs::write(&path, "").map_err(|error| VolumeError::io("create", &path, error))
}
