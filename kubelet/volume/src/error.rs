//! Errors of volume operations.

use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
};

use kubelet_api_client::objects::ObjectError;
use kubelet_pod_spec::field::FieldError;
use tree_walk::RemoveError;

use crate::spec::VolumeMode;

/// Why a volume cannot be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The kind of volume is not supported, or the volume has no source.
    #[error("volume {0:?}: no volume plugin matches this kind of volume")]
    Unsupported(String),
    /// A volume on disk belongs to a plugin that this kubelet does not have.
    #[error("{0:?} belongs to a volume plugin that this kubelet does not have")]
    UnknownPlugin(PathBuf),
    /// A persistent volume claim cannot be used.
    #[error("error processing PVC {claim}: {why}")]
    Claim {
        /// Namespace and name of the claim.
        claim: String,
        /// Why not.
        why: String,
    },
    /// The claim of a generic ephemeral volume is not owned by the pod.
    #[error("PVC {claim} was not created for pod {pod} (pod is not owner)")]
    NotOwned {
        /// Namespace and name of the claim.
        claim: String,
        /// Namespace and name of the pod.
        pod: String,
    },
    /// A block device is used as a directory, or a directory as a block device.
    #[error("volume {name} has volumeMode {mode:?}, but is specified in {}", field(*.used_as))]
    Mode {
        /// Name of the volume.
        name: String,
        /// Its mode.
        mode: VolumeMode,
        /// How the containers use it.
        used_as: VolumeMode,
    },
    /// An API object that the volume needs is not available.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// A config map or secret lacks a requested key.
    #[error("{kind} key: {key}")]
    Key {
        /// Upstream's wording for the object.
        kind: &'static str,
        /// The key.
        key: String,
    },
    /// The host path is not of the required type.
    #[error("hostPath type check failed: {path} is not {wanted}")]
    HostPathType {
        /// Path on the node.
        path: String,
        /// The required type, in words.
        wanted: &'static str,
    },
    /// The spec, or something that it refers to, is invalid for this kind of volume.
    #[error("volume {name:?}: {why}")]
    Invalid {
        /// Name of the volume.
        name: String,
        /// The reason, for humans.
        why: String,
    },
    /// A field of the pod or the persistent volume is not safe to pass to a program.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The volume is `ReadWriteOncePod`, and another pod uses it.
    #[error("volume uses the ReadWriteOncePod access mode and is already in use by another pod")]
    UsedByAnotherPod,
    /// The volume is still mounted for another pod, with that pod's SELinux label.
    #[error(
        "waiting for unmount of volume {0:?}, because it is already mounted to a different pod \
         with a different SELinux label"
    )]
    OtherLabel(String),
    /// The volume's node affinity excludes this node; upstream's wording.
    #[error("no matching NodeSelectorTerms")]
    OtherNode,
    /// The volume waits for a controller to attach it.
    #[error("volume {volume:?} of driver {driver} is not attached to this node: {why}")]
    NotAttached {
        /// The driver's handle of the volume.
        volume: String,
        /// Name of the driver.
        driver: String,
        /// Why not.
        why: String,
    },
    /// A file system operation failed.
    #[error("cannot {action} {path:?}: {source}")]
    Io {
        /// The operation.
        action: &'static str,
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A directory cannot be removed with its contents.
    #[error(transparent)]
    Remove(#[from] RemoveError),
    /// An external program failed, such as `mount` or `mkfs`.
    #[error("{program} failed: {output}")]
    Program {
        /// Its name and arguments.
        program: String,
        /// Its output, or why it did not run.
        output: String,
    },
    /// A FlexVolume driver is not installed, or failed.
    #[error("flexVolume driver {driver:?}: {why}")]
    FlexVolumeDriver {
        /// Name of the driver.
        driver: String,
        /// The call and its error, or why the driver cannot be called.
        why: String,
    },
    /// The persistent volume has mount options, which its kind does not have.
    #[error("mount options are not supported for this volume type")]
    NoMountOptions,
    /// A volume of the pod cannot be attached, because the node has as many as it can have.
    #[error(
        "Node has reached its volume attachment limit, rejecting pod. unmounted volumes={}, \
         unattached volumes={}, failed to process volumes=[]: {why}",
        List(unmounted),
        List(unattached)
    )]
    AttachLimitExceeded {
        /// Names of the volumes that the pod's containers use and that are not mounted.
        unmounted: Vec<String>,
        /// Names of those that are not attached.
        unattached: Vec<String>,
        /// The reasons, as far as they are known.
        why: String,
    },
    /// Volumes of the pod are not ready.
    #[error(
        "unmounted volumes={}, unattached volumes=[], failed to process volumes={}: {why}",
        List(unmounted),
        List(unprocessed)
    )]
    NotMounted {
        /// Names of the volumes that the pod's containers use and that are not mounted.
        unmounted: Vec<String>,
        /// Names of the volumes that could not be resolved.
        unprocessed: Vec<String>,
        /// The reasons, as far as they are known.
        why: String,
    },
    /// Volumes were not unmounted in time.
    #[error("mounted volumes={}: {why}", List(mounted))]
    StillMounted {
        /// Volumes that are, or may be, still mounted.
        mounted: Vec<String>,
        /// The reasons, as far as they are known.
        why: String,
    },
    /// A plugin's own error, or a panic.
    #[error(transparent)]
    Other(Box<dyn Error + Send + Sync>),
}

impl VolumeError {
    pub(super) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    pub(super) fn invalid(name: &str, why: impl Into<String>) -> Self {
        Self::Invalid {
            name: name.to_owned(),
            why: why.into(),
        }
    }
}

/// Names as upstream lists them: `[a b]`.
struct List<'a>(&'a [String]);

impl std::fmt::Display for List<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{}]", self.0.join(" "))
    }
}

const fn field(mode: VolumeMode) -> &'static str {
    match mode {
        VolumeMode::Filesystem => "volumeMounts",
        VolumeMode::Block => "volumeDevices",
    }
}
