//! Volumes of pods: host paths and empty directories.

mod empty_dir;
mod host_path;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{PodSpec, Volume};

/// Why a volume cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A container mounts a volume that the pod does not have.
    #[error("volume {0:?} is mounted and the pod has none of that name")]
    Unknown(String),
    /// The volume is of a kind that is not built.
    #[error("volume {0:?}: this kind of volume is not supported")]
    Unsupported(String),
    /// What is at the host path is not what the volume asks for.
    #[error("volume {name:?}: hostPath {path:?} is not of type {wanted:?}: it {found}")]
    HostPathType {
        /// Name of the volume.
        name: String,
        /// The path on the node.
        path: PathBuf,
        /// The type that the spec names.
        wanted: String,
        /// What is there.
        found: &'static str,
    },
    /// The file system refuses.
    #[error("volume {name:?}: cannot {action} {path:?}: {source}")]
    Io {
        /// Name of the volume.
        name: String,
        /// What was attempted.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The volumes of a pod that are ready to be mounted into containers.
#[derive(Clone, Debug, Default)]
pub struct MountedVolumes(BTreeMap<String, PathBuf>);

impl MountedVolumes {
    /// Where a volume is on the node.
    ///
    /// # Errors
    /// [`VolumeError::Unknown`].
    pub fn path(&self, name: &str) -> Result<&Path, VolumeError> {
        match self.0.get(name) {
            Some(path) => Ok(path),
            None => Err(VolumeError::Unknown(name.to_owned())),
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
        host_path::set_up(&volume.name, source)
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

fn io_error(name: &str, action: &'static str, path: &Path, source: io::Error) -> VolumeError {
    VolumeError::Io {
        name: name.to_owned(),
        action,
        path: path.to_owned(),
        source,
    }
}
