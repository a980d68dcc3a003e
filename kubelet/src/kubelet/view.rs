//! The kubelet as its HTTP servers and its node object see it.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::api::resource::Quantity};
use kubelet_cri_client::CriClient;
use kubelet_device_manager::DeviceManager;
use kubelet_eviction::Condition;
use kubelet_host::local_node::LocalNode;
use kubelet_logs::{LogError, LogOptions, LogParts};
use kubelet_metrics::Exposition;
use kubelet_node::status_source::{DeviceResources, NodeStatusSource, Pressure};
use kubelet_resource_analyzer::Usages;
use kubelet_server::{
    HealthCheck, NodeView,
    reports::{GarbageReport, PressureReport},
};
use kubelet_stats::{Depth, NodeStats, StatsError};
use tokio::sync::watch;

use super::{Kubelet, reports};
use crate::logging;

impl NodeStatusSource for Kubelet {
    fn problems(&self) -> Vec<String> {
        let pleg = self.pleg_healthy().err();
        pleg.map(|error| format!("PLEG is not healthy: {error}"))
            .into_iter()
            .chain(self.csi_node_problem())
            .chain(self.shutdown().problem())
            .collect()
    }

    fn shutting_down(&self) -> watch::Receiver<bool> {
        self.shutdown().subscribe()
    }

    fn pressure(&self) -> Pressure {
        let conditions = self.0.eviction.conditions();
        Pressure {
            memory: conditions.contains(&Condition::Memory),
            disk: conditions.contains(&Condition::Disk),
            pid: conditions.contains(&Condition::Pid),
        }
    }

    fn devices(&self) -> DeviceResources {
        let capacity = self.device_manager().map(DeviceManager::capacity);
        let capacity = capacity.unwrap_or_default();
        let quantities = |counts: BTreeMap<String, usize>| {
            let counts = counts.into_iter();
            let quantities = counts.map(|(name, count)| (name, Quantity(count.to_string())));
            quantities.collect()
        };
        DeviceResources {
            capacity: quantities(capacity.capacity),
            allocatable: quantities(capacity.allocatable),
        }
    }

    fn is_new_machine(&self) -> bool {
        self.device_manager()
            .is_some_and(DeviceManager::is_unrecorded)
    }

    fn registered(&self) {
        if let Some(devices) = self.device_manager() {
            devices.record();
        }
    }

    fn volumes_in_use(&self) -> Option<Vec<String>> {
        Self::volumes_in_use(self)
    }
}

impl NodeView for Kubelet {
    fn local_node(&self) -> Arc<LocalNode> {
        Arc::clone(Self::local_node(self))
    }

    fn pods(&self) -> Vec<Pod> {
        Self::pods(self)
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.pod_manager()
            .get_by_full_name(&format!("{name}_{namespace}"))
    }

    async fn running_pods(&self) -> Result<Vec<Pod>, String> {
        Self::running_pods(self)
            .await
            .map_err(|error| error.to_string())
    }

    fn health(&self, check: HealthCheck) -> Result<(), String> {
        match check {
            HealthCheck::SyncLoop => self.sync_loop_healthy(),
            HealthCheck::DevicePlugin => self.device_plugins_healthy(),
        }
    }

    async fn container_log(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        options: LogOptions,
    ) -> Result<LogParts, LogError> {
        Self::container_log(self, namespace, pod, container, options).await
    }

    fn collect(&self, page: &mut Exposition) {
        Self::collect(self, page);
    }

    fn collect_probes(&self, page: &mut Exposition) {
        Self::collect_probes(self, page);
    }

    fn set_verbosity(&self, verbosity: u32) -> Result<(), String> {
        logging::set_verbosity(verbosity).map_err(|error| error.to_string())
    }

    async fn stats(&self, depth: Depth) -> Result<Arc<NodeStats>, StatsError> {
        self.0.stats.stats(depth).await
    }

    fn pod_usages(&self) -> Arc<Usages> {
        Self::pod_usages(self)
    }

    fn pressure(&self) -> PressureReport {
        reports::pressure(&self.0.eviction)
    }

    async fn garbage(&self) -> Result<GarbageReport, String> {
        let (images, containers) = (&self.0.images, &self.0.containers);
        reports::garbage(images, containers).await
    }

    fn cri(&self) -> CriClient {
        Self::cri(self).clone()
    }
}
