//! The servers' view of the node.

use std::{future::Future, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use kubelet_cri_client::CriClient;
use kubelet_host::local_node::LocalNode;
use kubelet_logs::{LogError, LogOptions, LogParts};
use kubelet_metrics::Exposition;
use kubelet_resource_analyzer::Usages;
use kubelet_stats::{Depth, NodeStats, StatsError};

use crate::{
    health_check::HealthCheck,
    reports::{GarbageReport, PressureReport},
};

/// The node's pods and health, as the kubelet knows them.
pub trait NodeView: Clone + Send + Sync + 'static {
    /// The node's name and directories.
    fn local_node(&self) -> Arc<LocalNode>;

    /// The pods assigned to this node, with their current status.
    fn pods(&self) -> Vec<Pod>;

    /// The pod with this name that is assigned to this node.
    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>>;

    /// The pods that the runtime runs, whether assigned or not. The error says why the runtime
    /// cannot list them.
    fn running_pods(&self) -> impl Future<Output = Result<Vec<Pod>, String>> + Send;

    /// The result of a health check.
    ///
    /// # Errors
    /// What is wrong.
    fn health(&self, check: HealthCheck) -> Result<(), String>;

    /// The log of a container of a pod on this node. The error says why there is none.
    fn container_log(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        options: LogOptions,
    ) -> impl Future<Output = Result<LogParts, LogError>> + Send;

    /// Writes the kubelet's metrics, for `/metrics`.
    fn collect(&self, page: &mut Exposition);

    /// Writes the metrics of the probes, for `/metrics/probes`.
    fn collect_probes(&self, page: &mut Exposition);

    /// Changes the log verbosity, like `-v`.
    ///
    /// # Errors
    /// Why the verbosity is unchanged.
    fn set_verbosity(&self, verbosity: u32) -> Result<(), String>;

    /// What the node, its pods and containers use. The error says what cannot be read.
    fn stats(
        &self,
        depth: Depth,
    ) -> impl Future<Output = Result<Arc<NodeStats>, StatsError>> + Send;

    /// What pods use of file systems, as last measured.
    fn pod_usages(&self) -> Arc<Usages>;

    /// The scarce resources of the node, and what was evicted for them.
    fn pressure(&self) -> PressureReport;

    /// What the next garbage collection would remove. The error says what cannot be determined.
    fn garbage(&self) -> impl Future<Output = Result<GarbageReport, String>> + Send;

    /// A client of the runtime, for requests that need its current state.
    fn cri(&self) -> CriClient;
}
