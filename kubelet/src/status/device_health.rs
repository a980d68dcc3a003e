//! The health of the devices of containers (`allocatedResourcesStatus`).

use k8s_openapi::api::core::v1::{PodStatus, ResourceHealth, ResourceStatus};
use kubelet_device_manager::DeviceManager;
use kubelet_pod_spec::identity::PodUid;

/// Sets the health of the devices of a pod's regular containers, as upstream.
pub(super) fn set(status: &mut PodStatus, pod: &PodUid, devices: &DeviceManager) {
    for container in status.container_statuses.iter_mut().flatten() {
        let resources = devices.health_of(pod, &container.name).into_iter();
        let statuses = resources.map(|(name, devices)| {
            let devices = devices.into_iter().map(|(id, is_healthy)| ResourceHealth {
                health: Some(if is_healthy { "Healthy" } else { "Unhealthy" }.to_owned()),
                resource_id: id,
                ..ResourceHealth::default()
            });
            ResourceStatus {
                name,
                resources: Some(devices.collect()),
            }
        });
        let statuses: Vec<ResourceStatus> = statuses.collect();
        if !statuses.is_empty() {
            container.allocated_resources_status = Some(statuses);
        }
    }
}
