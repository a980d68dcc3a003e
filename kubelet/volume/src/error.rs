//! Why volumes cannot be had.

use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
};

use kubelet_api_client::objects::ObjectError;
use kubelet_pod_spec::field::FieldError;
use tree_walk::RemoveError;

use crate::spec::VolumeMode;

/// Why a volume cannot be had, or given back.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The volume is of a kind that is not built, or has no source.
    #[error("volume {0:?}: no volume plugin matches this kind of volume")]
    Unsupported(String),
    /// The persistent volume is of a kind that a CSI driver took over.
    #[error(
        "volume {volume:?}: persistent volume {persistent:?} is of the kind {kind}, which this \
         kubelet does not translate: make it anew with spec.csi.driver {driver}"
    )]
    NotTranslated {
        /// Name of the volume in the pod.
        volume: String,
        /// Name of the persistent volume.
        persistent: String,
        /// The field of its spec.
        kind: &'static str,
        /// Name of the driver.
        driver: &'static str,
    },
    /// What is on disk was made by a plugin that this kubelet does not have.
    #[error("{0:?} belongs to a volume plugin that this kubelet does not have")]
    UnknownPlugin(PathBuf),
    /// A claim cannot be used.
    #[error("error processing PVC {claim}: {why}")]
    Claim {
        /// Namespace and name of the claim.
        claim: String,
        /// Why not.
        why: String,
    },
    /// The claim of a generic ephemeral volume is somebody else's.
    #[error("PVC {claim} was not created for pod {pod} (pod is not owner)")]
    NotOwned {
        /// Namespace and name of the claim.
        claim: String,
        /// Namespace and name of the pod.
        pod: String,
    },
    /// A device is mounted as a directory, or the other way round.
    #[error("volume {name} has volumeMode {mode:?}, but is specified in {}", field(*.used_as))]
    Mode {
        /// Name of the volume.
        name: String,
        /// What it is.
        mode: VolumeMode,
        /// What the containers take it for.
        used_as: VolumeMode,
    },
    /// An object that fills the volume cannot be had.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// An object that fills the volume lacks a key that is asked for.
    #[error("{kind} key: {key}")]
    Key {
        /// Upstream's words for what lacks it.
        kind: &'static str,
        /// The key.
        key: String,
    },
    /// What is at the host path is not what the volume asks for.
    #[error("hostPath type check failed: {path} is not {wanted}")]
    HostPathType {
        /// The path on the node.
        path: String,
        /// What the spec says that it is, in words.
        wanted: &'static str,
    },
    /// The spec, or what it names, makes no sense for this kind of volume.
    #[error("volume {name:?}: {why}")]
    Invalid {
        /// Name of the volume.
        name: String,
        /// For people.
        why: String,
    },
    /// A field of the pod, or of the persistent volume, cannot be given to a program.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// One pod alone may have the volume, and it is not this one.
    #[error("volume uses the ReadWriteOncePod access mode and is already in use by another pod")]
    UsedByAnotherPod,
    /// The volume is still there for another pod, whose label its files have.
    #[error(
        "waiting for unmount of volume {0:?}, because it is already mounted to a different pod \
         with a different SELinux label"
    )]
    OtherLabel(String),
    /// The volume is not for this node; in upstream's words.
    #[error("no matching NodeSelectorTerms")]
    OtherNode,
    /// The volume waits for a controller.
    #[error("volume {volume:?} of driver {driver} is not attached to this node: {why}")]
    NotAttached {
        /// What the driver calls the volume.
        volume: String,
        /// Name of the driver.
        driver: String,
        /// Why not.
        why: String,
    },
    /// The file system refuses.
    #[error("cannot {action} {path:?}: {source}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What is in a directory cannot be removed with it.
    #[error(transparent)]
    Remove(#[from] RemoveError),
    /// A program that mounts, makes or grows file systems failed.
    #[error("{program} failed: {output}")]
    Program {
        /// Its name and arguments.
        program: String,
        /// What it wrote, or why it did not run.
        output: String,
    },
    /// Volumes are not ready.
    #[error(
        "unmounted volumes={}, unattached volumes=[], failed to process volumes={}: {why}",
        List(unmounted),
        List(unprocessed)
    )]
    NotMounted {
        /// Names of the volumes that the pod's containers use and do not have.
        unmounted: Vec<String>,
        /// Those of them of which it is not known what is behind them.
        unprocessed: Vec<String>,
        /// Why not, as far as it is known.
        why: String,
    },
    /// Volumes were not given back in time.
    #[error("mounted volumes={}: {why}", List(mounted))]
    StillMounted {
        /// What is still mounted.
        mounted: Vec<String>,
        /// Why, as far as it is known.
        why: String,
    },
    /// Something that a plugin has an error of its own for.
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
