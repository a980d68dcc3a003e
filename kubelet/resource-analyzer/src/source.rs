//! What the analyzer needs to know of the node's pods.

use std::{fmt, path::PathBuf, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use kubelet_volume::usage::UsageSource;

/// The pods to measure.
pub trait PodSource: fmt::Debug + Send + Sync {
    /// The active pods of the node. Called once in each period; must not block.
    fn pods(&self) -> Vec<MeasuredPod>;
}

/// A pod to measure.
#[derive(Clone, Debug)]
pub struct MeasuredPod {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Its mounted volumes, by their names in its spec.
    pub volumes: Vec<(String, UsageSource)>,
    /// Directory of its logs, with one directory per container.
    pub log_dir: PathBuf,
    /// Path of its hosts file, which may not exist.
    pub etc_hosts: PathBuf,
}
