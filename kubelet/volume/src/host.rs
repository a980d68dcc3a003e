//! What all volume plugins share.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use kubelet_api_client::{allocatable::allocatable, events::EventRecorder, objects::Objects};
use kubelet_host::{
    bounded_io::{self, IoPermit},
    machine::Machine,
    repeatable,
    selinux::SeLinux,
};
use kubelet_pod_spec::{directory, identity::PodUid, resources};
use tokio::task::JoinError;

use super::{VolumeError, plugin::PodVolume};
use crate::spec::VolumeMode;

/// The node as volume plugins see it.
#[derive(Clone, Debug)]
pub struct VolumeHost {
    /// The kubelet's own files (`--root-dir`).
    pub root_dir: PathBuf,
    /// Name of this node.
    pub node_name: String,
    /// SELinux, if this node has it enabled.
    pub selinux: Option<SeLinux>,
    /// Config data, claims and tokens.
    pub objects: Arc<dyn Objects>,
    /// Resources of the machine.
    pub machine: Arc<Machine>,
    /// Receives the events of volumes.
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

    /// Bytes of memory that the node offers to pods; all that it has, when the node's own
    /// object cannot be had.
    pub async fn allocatable_memory(&self) -> i64 {
        let (objects, root_dir) = (&*self.objects, &self.root_dir);
        let allocatable = allocatable(&self.machine, objects, root_dir).await.ok();
        let memory =
            allocatable.and_then(|amounts| resources::quantity_units(amounts.get("memory")?));
        memory.map_or(self.machine.memory, |memory| {
            memory.min(self.machine.memory)
        })
    }

    /// Directory of what a plugin keeps for all pods.
    pub fn plugin_dir(&self, plugin: &str) -> PathBuf {
        self.root_dir.join("plugins").join(plugin)
    }
}

/// Runs what blocks on what is mounted from a server, and may hang there, where it blocks
/// nobody. There is only so much of it at a time for each server.
///
/// # Errors
/// Those of `work`, and its panics.
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

/// As [`blocking_on_server`], for the file system that a path is on, whatever that is.
///
/// # Errors
/// Those of `work`, and its panics; `/proc` is not there.
pub async fn blocking_at<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> Result<T, VolumeError> + Send + 'static,
) -> Result<T, VolumeError> {
    unless_panicked(permit_for(path).await?.blocking(work).await)
}

/// Waits for a thread for work on the file system that holds a path.
pub(super) async fn permit_for(path: &Path) -> Result<IoPermit, VolumeError> {
    let permit = bounded_io::VOLUMES.acquire_for(path).await;
    permit.map_err(|error| VolumeError::io("look for mounts at", path, error))
}

/// As [`blocking_on_server`], for what touches the kubelet's own files alone: it does not hang, and
/// waits for nothing that does.
///
/// # Errors
/// Those of `work`, and its panics.
pub async fn blocking_on_own_files<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, VolumeError> + Send + 'static,
) -> Result<T, VolumeError> {
    unless_panicked(repeatable::blocking(work).await)
}

/// What came of work of a thread.
pub(super) fn unless_panicked<T>(
    ended: Result<Result<T, VolumeError>, JoinError>,
) -> Result<T, VolumeError> {
    ended.map_err(|panic| VolumeError::Other(panic.into()))?
}
