//! What the runtime measures.

use cri_proto::runtime::v1::{
    ListMetricDescriptorsRequest, ListPodSandboxMetricsRequest, ListPodSandboxStatsRequest,
    MetricDescriptor, PodSandboxMetrics, PodSandboxStats,
};

use super::{CriClient, CriError};

impl CriClient {
    /// What every sandbox uses, and each of its containers.
    ///
    /// # Errors
    /// The call failed.
    pub async fn list_pod_sandbox_stats(&self) -> Result<Vec<PodSandboxStats>, CriError> {
        let mut client = self.runtime.clone();
        let call = client.list_pod_sandbox_stats(ListPodSandboxStatsRequest::default());
        Ok(self.call("ListPodSandboxStats", "", call).await?.stats)
    }

    /// The metrics that the runtime has of sandboxes and containers.
    ///
    /// # Errors
    /// The call failed.
    pub async fn list_metric_descriptors(&self) -> Result<Vec<MetricDescriptor>, CriError> {
        let mut client = self.runtime.clone();
        let call = client.list_metric_descriptors(ListMetricDescriptorsRequest::default());
        Ok(self
            .call("ListMetricDescriptors", "", call)
            .await?
            .descriptors)
    }

    /// The values of those metrics.
    ///
    /// # Errors
    /// The call failed.
    pub async fn list_pod_sandbox_metrics(&self) -> Result<Vec<PodSandboxMetrics>, CriError> {
        let mut client = self.runtime.clone();
        let call = client.list_pod_sandbox_metrics(ListPodSandboxMetricsRequest::default());
        Ok(self
            .call("ListPodSandboxMetrics", "", call)
            .await?
            .pod_metrics)
    }
}
