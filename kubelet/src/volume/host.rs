//! What all volume plugins share.

use std::{path::PathBuf, sync::Arc};

use super::{
    VolumeError,
    plugin::{PodVolume, VolumeMode},
};
use crate::{
    apiserver::objects::Objects,
    config::options::Options,
    pod::{directory, identity::PodUid},
    repeatable,
    runtime::machine::Machine,
};

/// The node as volume plugins see it.
#[derive(Clone, Debug)]
pub struct VolumeHost {
    /// The kubelet's options.
    pub options: Arc<Options>,
    /// Where config data, claims and tokens come from.
    pub objects: Arc<dyn Objects>,
    /// What the machine has.
    pub machine: Arc<Machine>,
}

impl VolumeHost {
    /// Directory of a pod.
    pub fn pod_dir(&self, uid: &PodUid) -> PathBuf {
        directory::pod_dir(&self.options, uid)
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

    /// Directory of what a plugin keeps for all pods.
    pub fn plugin_dir(&self, plugin: &str) -> PathBuf {
        self.options.root_dir.join("plugins").join(plugin)
    }
}

/// Runs what blocks on the file system where it blocks nobody.
///
/// # Errors
/// Those of `work`, and its panics.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, VolumeError> + Send + 'static,
) -> Result<T, VolumeError> {
    repeatable::blocking(work)
        .await
        .map_err(|panic| VolumeError::Other(panic.into()))?
}
