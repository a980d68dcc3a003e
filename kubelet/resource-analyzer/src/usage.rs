//! The results of measurements.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Volume};
use kubelet_pod_spec::identity::{self, PodUid};
use kubelet_volume::{spec, usage::Amounts};

/// The last results for all active pods. A pod without results yet has an empty entry.
pub type Usages = BTreeMap<PodUid, Arc<PodUsage>>;

/// What a pod uses on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// Its mounted volumes, by their names in its spec. A volume that cannot be measured, or is not
    /// measured yet, is missing.
    pub volumes: BTreeMap<String, VolumeUsage>,
    /// Its logs and files, once they are measured.
    pub files: Option<PodFiles>,
}

/// The usage of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeUsage {
    /// The claim that the pod refers to.
    pub claim: Option<Claim>,
    /// The time of the measurement.
    pub at: Timestamp,
    /// Bytes. A directory of a file system that it shares has the file system's capacity.
    pub bytes: Amounts,
    /// Inodes, as for the bytes.
    pub inodes: Amounts,
    /// Whether the volume does not work properly; `None` if its driver does not monitor that.
    pub is_abnormal: Option<bool>,
    /// The volume uses the node's disk and exists as long as its pod: it counts as the pod's
    /// `ephemeral-storage`.
    pub is_local_ephemeral: bool,
}

/// A persistent volume claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What the kubelet and the runtime store for a pod on the node's disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFiles {
    /// The time of the measurement.
    pub at: Timestamp,
    /// The logs of each container that has a log directory, rotated ones included.
    pub container_logs: BTreeMap<String, FileUsage>,
    /// The files of the pod's own log directory, those of its containers excluded.
    pub pod_logs: FileUsage,
    /// The hosts file, if the kubelet has made one.
    pub etc_hosts: Option<FileUsage>,
}

/// What files take on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileUsage {
    /// In bytes.
    pub bytes: u64,
    /// Number of files.
    pub inodes: u64,
}

impl VolumeUsage {
    /// A volume of a pod's spec that is not measured.
    pub(crate) fn of(pod: &Pod, name: &str) -> Self {
        let spec = pod.spec.iter();
        let mut volumes = spec.flat_map(|spec| spec.volumes.iter().flatten());
        let volume = volumes.find(|volume| volume.name == name);
        Self {
            claim: volume.and_then(|volume| claim(pod, volume)),
            is_local_ephemeral: volume.is_some_and(is_local_ephemeral),
            ..Self::default()
        }
    }
}

/// The claim of a volume in a pod's spec.
fn claim(pod: &Pod, volume: &Volume) -> Option<Claim> {
    Some(Claim {
        namespace: identity::namespace(pod).to_owned(),
        name: spec::claim_name(pod, volume)?,
    })
}

/// Whether the volume counts as `ephemeral-storage`, by upstream's `IsLocalEphemeralVolume`.
fn is_local_ephemeral(volume: &Volume) -> bool {
    let on_disk = volume.empty_dir.as_ref().is_some_and(|source| {
        let medium = source.medium.as_deref();
        medium.unwrap_or_default().is_empty()
    });
    on_disk || volume.config_map.is_some() || volume.git_repo.is_some()
}
