//! Context and helpers that the volume plugins share.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use kubelet_api_client::{allocatable::allocatable, events::EventRecorder, objects::Objects};
use kubelet_host::{
    bounded_io::{self, IoPermit},
    repeatable,
    selinux::SeLinux,
};
use kubelet_pod_spec::{
    directory,
    identity::PodUid,
    resources::{self, ResourceList},
};
use tokio::task::JoinError;

use super::{VolumeError, plugin::PodVolume};
use crate::spec::VolumeMode;

/// The node as volume plugins see it.
#[derive(Clone, Debug)]
pub struct VolumeHost {
    /// Root directory of the kubelet (`--root-dir`).
    pub root_dir: PathBuf,
    /// Name of this node.
    pub node_name: String,
    /// SELinux, if this node has it enabled.
    pub selinux: Option<SeLinux>,
    /// API objects: config maps, secrets, claims and tokens.
    pub objects: Arc<dyn Objects>,
    /// The allocatable resources of the node without an API server.
    pub allocatable: Arc<ResourceList>,
    /// Recorder of volume events.
    pub events: EventRecorder,
}

impl VolumeHost {
    /// Directory of a pod.
    pub fn pod_dir(&self, uid: &PodUid) -> PathBuf {
        directory::pod_dir(&self.root_dir, uid)
    }

    /// Directory of one volume of a pod.
    pub fn volume_dir(&self, volume: &PodVolume) -> PathBuf {
        let volumes = match volume.mode {
            VolumeMode::Filesystem => "volumes",
            VolumeMode::Block => "volumeDevices",
        };
        self.pod_dir(&volume.uid)
            .join(volumes)
            .join(volume.plugin.replace('/', "~"))
            .join(&volume.name)
    }

    /// Allocatable memory of the node in bytes, also if the node object is not available.
    pub async fn allocatable_memory(&self) -> i64 {
        let own = memory(&self.allocatable).unwrap_or_default();
        let told = allocatable(&self.allocatable, &*self.objects).await.ok();
        let told = told.and_then(|amounts| memory(&amounts));
        told.map_or(own, |memory| memory.min(own))
    }

    /// Directory of a plugin's data that is not specific to a pod.
    pub fn plugin_dir(&self, plugin: &str) -> PathBuf {
        self.root_dir.join("plugins").join(plugin)
    }
}

fn memory(amounts: &ResourceList) -> Option<i64> {
    resources::quantity_units(amounts.get("memory")?)
}

/// Runs work that blocks on files mounted from a server and may hang. The number of threads per
/// server is limited, so that a dead server blocks only its own volumes.
///
/// # Errors
/// Errors and panics of `work`.
pub async fn blocking_on_server<T: Send + 'static>(
    server: &str,
    work: impl FnOnce() -> Result<T, VolumeError> + Send + 'static,
) -> Result<T, VolumeError> {
    unless_panicked(
        bounded_io::VOLUMES
            .acquire(server)
            .await
            .blocking(work)
            .await,
    )
}

/// As [`blocking_on_server`], for the file system that holds a path.
///
/// # Errors
/// Errors and panics of `work`, or `/proc` is not available.
pub async fn blocking_at<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> Result<T, VolumeError> + Send + 'static,
) -> Result<T, VolumeError> {
    unless_panicked(permit_for(path).await?.blocking(work).await)
}

/// Waits for a thread for work on the file system that holds a path.
pub(super) async fn permit_for(path: &Path) -> Result<IoPermit, VolumeError> {
    let permit = bounded_io::VOLUMES.acquire_for(path).await;
    permit.map_err(|error| VolumeError::io("check for mounts at", path, error))
}

/// As [`blocking_on_server`], for work on the kubelet's own files only: it cannot hang, and does
/// not wait for work that may.
///
/// # Errors
/// Errors and panics of `work`.
pub async fn blocking_on_own_files<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, VolumeError> + Send + 'static,
) -> Result<T, VolumeError> {
    unless_panicked(repeatable::blocking(work).await)
}

/// The result of work on a thread; a panic becomes an error.
pub(super) fn unless_panicked<T>(
    ended: Result<Result<T, VolumeError>, JoinError>,
) -> Result<T, VolumeError> {
    ended.map_err(|panic| VolumeError::Other(panic.into()))?
}
