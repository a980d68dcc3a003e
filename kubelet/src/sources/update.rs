//! Changes to the set of pods that this node should run.

use std::{fmt, sync::Arc};

use k8s_openapi::api::core::v1::Pod;

/// Where a pod was read from. The value of the `kubernetes.io/config.source`
/// annotation.
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
    /// The source's name as annotations and logs have it.
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

/// What happened to the pods of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PodOperation {
    /// New at their source.
    Add,
    /// Told by what the kubelet kept of their source, which does not answer. Told again
    /// when it does.
    Restore,
    /// Changed in what the kubelet acts on: spec, labels, annotations, deletion.
    Update,
    /// Marked for graceful deletion: the pod carries a deletion timestamp.
    Delete,
    /// Gone from their source.
    Remove,
    /// Changed in nothing but the status that the source holds.
    Reconcile,
}

/// Pods of one source that the same thing happened to.
#[derive(Clone, Debug)]
pub struct PodUpdate {
    /// The pods, each as its source has it now (for [`PodOperation::Remove`]:
    /// had it last).
    pub pods: Vec<Arc<Pod>>,
    /// What happened to them.
    pub operation: PodOperation,
    /// Where they come from.
    pub source: Source,
}
