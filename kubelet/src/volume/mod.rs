//! Volumes of pods: host paths and empty directories.

mod empty_dir;
mod error;
mod host;
mod host_path;
pub mod plugin;
pub mod spec;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{PodSpec, Volume};

pub use self::{
    error::VolumeError,
    host::{VolumeHost, blocking},
};

/// The volumes of a pod that are ready to be mounted into containers.
#[derive(Clone, Debug, Default)]
pub struct MountedVolumes(BTreeMap<String, PathBuf>);

impl MountedVolumes {
    /// Where a volume is on the node.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn path(&self, name: &str) -> Result<&Path, VolumeError> {
        match self.0.get(name) {
            Some(path) => Ok(path),
            None => Err(VolumeError::invalid(name, "the pod has none of that name")),
        }
    }
}

/// Makes the volumes of a pod ready; does nothing for those that are. Blocks on
/// the file system.
///
/// # Errors
/// The first volume that cannot be had.
pub fn set_up(spec: &PodSpec, pod_dir: &Path) -> Result<MountedVolumes, VolumeError> {
    let fs_group = spec.security_context.as_ref().and_then(|c| c.fs_group);
    let mut mounted = BTreeMap::new();
    for volume in spec.volumes.iter().flatten() {
        mounted.insert(volume.name.clone(), set_up_one(volume, pod_dir, fs_group)?);
    }
    Ok(MountedVolumes(mounted))
}

fn set_up_one(
    volume: &Volume,
    pod_dir: &Path,
    fs_group: Option<i64>,
) -> Result<PathBuf, VolumeError> {
    if let Some(source) = &volume.host_path {
        host_path::set_up(source)
    } else if let Some(source) = &volume.empty_dir {
        empty_dir::set_up(&volume.name, source, pod_dir, fs_group)
    } else {
        Err(VolumeError::Unsupported(volume.name.clone()))
    }
}

/// Takes away what [`set_up`] made for a pod, with its contents. Blocks on the
/// file system.
///
/// # Errors
/// Something cannot be unmounted or removed.
pub fn tear_down(pod_dir: &Path) -> Result<(), VolumeError> {
    empty_dir::tear_down(pod_dir)
}
