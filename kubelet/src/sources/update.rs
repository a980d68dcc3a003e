//! Changes to the set of pods that this node should run.

use std::{fmt, sync::Arc};

use k8s_openapi::api::core::v1::Pod;

/// The source of a pod. The value of the `kubernetes.io/config.source` annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A file or directory of manifests.
    File,
    /// A URL that serves manifests.
    Http,
    /// The API server.
    Api,
}

impl Source {
    /// The source's name in annotations and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
            Self::Api => "api",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The operation of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PodOperation {
    /// New at their source.
    Add,
    /// Restored from the checkpoint, because their source does not respond. Sent again once it
    /// does.
    Restore,
    /// Changed in spec, labels, annotations or deletion, which the kubelet acts on.
    Update,
    /// Marked for graceful deletion: the pod has a deletion timestamp.
    Delete,
    /// Removed from their source.
    Remove,
    /// Only the status at the source changed, or the API server now sends a restored pod itself.
    Reconcile,
}

/// Pods of one source with the same operation.
#[derive(Clone, Debug)]
pub struct PodUpdate {
    /// The pods, as the source has them now (for [`PodOperation::Remove`]: as it had them last).
    pub pods: Vec<Arc<Pod>>,
    /// The operation.
    pub operation: PodOperation,
    /// The source.
    pub source: Source,
}
