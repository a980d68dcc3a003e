//! Measures the node and its pods.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use kubelet_eviction::{Observed, PodUsages, UsageDepth, pod_usages};
use kubelet_resource_analyzer::ResourceAnalyzer;
use kubelet_stats::{Depth, StatsProvider};

/// Pods are ranked by measurements that are not older than this.
const MAX_AGE: Duration = Duration::from_secs(1);

/// How long the measurement of files may take, before those of the last one count, or what this one
/// has found.
const FILES_LIMIT: Duration = Duration::from_secs(5);

/// Measures the node and its pods for eviction.
pub trait Measurements: fmt::Debug + Send + Sync {
    /// The signals of the node.
    fn observe(&self) -> BoxFuture<'_, Result<Observed, String>>;

    /// What pods use.
    fn usages(&self, depth: UsageDepth) -> BoxFuture<'_, Result<PodUsages, String>>;
}

/// Where measurements come from.
#[derive(Clone, Debug, Default)]
pub enum MeasurementSource {
    /// This machine.
    #[default]
    Machine,
    /// Elsewhere, such as a test.
    Given(Arc<dyn Measurements>),
}

/// The measurements of this machine.
#[derive(Debug)]
pub(crate) struct MachineMeasurements<'a> {
    pub(crate) stats: &'a StatsProvider,
    pub(crate) analyzer: &'a ResourceAnalyzer,
}

impl Measurements for MachineMeasurements<'_> {
    fn observe(&self) -> BoxFuture<'_, Result<Observed, String>> {
        Box::pin(async {
            let stats = self.stats.node().await;
            let stats = stats.map_err(|error| error.to_string())?;
            Ok(Observed::new(&stats))
        })
    }

    fn usages(&self, depth: UsageDepth) -> BoxFuture<'_, Result<PodUsages, String>> {
        Box::pin(async move {
            if depth == UsageDepth::Fresh {
                self.analyzer.measure(FILES_LIMIT).await;
            }
            let files = self.analyzer.usages_so_far();
            let depth = match depth {
                UsageDepth::Files => return Ok(pod_usages(None, &files)),
                UsageDepth::Kernel => Depth::Kernel,
                UsageDepth::Everything | UsageDepth::Fresh => Depth::Everything,
            };
            let stats = self.stats.younger_than(depth, MAX_AGE).await;
            let stats = stats.map_err(|error| error.to_string())?;
            Ok(pod_usages(Some(&stats), &files))
        })
    }
}
