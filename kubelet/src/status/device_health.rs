//! The health of the devices of containers (`allocatedResourcesStatus`).

use k8s_openapi::api::core::v1::{Pod, PodStatus, ResourceHealth, ResourceStatus};
use kubelet_device_manager::DeviceManager;
use kubelet_dra_manager::{DraManager, Health};
use kubelet_pod_spec::identity::PodUid;

/// Sets the health of the devices of a pod's regular containers, as upstream: of device plugins by
/// resource, of claims by claim and request.
pub(super) fn set(
    status: &mut PodStatus,
    pod: &Pod,
    plugins: Option<&DeviceManager>,
    claims: &DraManager,
) {
    let uid = PodUid::of(pod);
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    for container in containers {
        let mut statuses = Vec::new();
        let of_plugins = plugins.map(|plugins| plugins.health_of(&uid, &container.name));
        for (name, devices) in of_plugins.into_iter().flatten() {
            let devices = devices.into_iter().map(|(id, is_healthy)| {
                let health = match is_healthy {
                    true => Health::Healthy,
                    false => Health::Unhealthy,
                };
                resource_health(id, health, None)
            });
            statuses.push(resource_status(name, devices));
        }
        for (name, devices) in claims.health_of(pod, container) {
            let devices = devices.into_iter();
            let devices = devices.map(|it| resource_health(it.id, it.health, it.message));
            statuses.push(resource_status(name, devices));
        }
        let mut shown = status.container_statuses.iter_mut().flatten();
        if let Some(shown) = shown.find(|shown| shown.name == container.name)
            && !statuses.is_empty()
        {
            shown.allocated_resources_status = Some(statuses);
        }
    }
}

fn resource_status(name: String, devices: impl Iterator<Item = ResourceHealth>) -> ResourceStatus {
    ResourceStatus {
        name,
        resources: Some(devices.collect()),
    }
}

fn resource_health(id: String, health: Health, message: Option<String>) -> ResourceHealth {
    ResourceHealth {
        health: Some(health.name().to_owned()),
        message,
        resource_id: id,
    }
}
