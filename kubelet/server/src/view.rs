//! What the servers need to know of the node.

use std::{future::Future, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use kubelet_cri_client::CriClient;
use kubelet_host::local_node::LocalNode;
use kubelet_logs::{LogError, LogOptions, LogParts};
use kubelet_metrics::Exposition;

/// The node's pods and health, as the kubelet knows them.
pub trait NodeView: Clone + Send + Sync + 'static {
    /// What the node is made from: its name and its directories.
    fn local_node(&self) -> Arc<LocalNode>;

    /// The pods that this node should run, with the status that it found.
    fn pods(&self) -> Vec<Pod>;

    /// The pod of a name that this node should run.
    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>>;

    /// The pods of which the runtime runs something, whoever wants them or not.
    /// In an error: why the runtime cannot tell.
    fn running_pods(&self) -> impl Future<Output = Result<Vec<Pod>, String>> + Send;

    /// Whether the sync loop still turns; if not, why it is thought to hang.
    ///
    /// # Errors
    /// What has not happened for too long.
    fn healthy(&self) -> Result<(), String>;

    /// The log of a container of a pod of this node. In an error: why there is
    /// none.
    fn container_log(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        options: LogOptions,
    ) -> impl Future<Output = Result<LogParts, LogError>> + Send;

    /// Writes what the kubelet counts and measures, for `/metrics`.
    fn collect(&self, page: &mut Exposition);

    /// Writes what the probes of the node's pods found, for `/metrics/probes`.
    fn collect_probes(&self, page: &mut Exposition);

    /// Changes the verbosity of the log, as of `-v`.
    ///
    /// # Errors
    /// Why it stays as it was.
    fn set_verbosity(&self, verbosity: u32) -> Result<(), String>;

    /// The runtime, for what is asked of it anew each time.
    fn cri(&self) -> CriClient;
}
