//! The method of version v1alpha1.

use std::sync::Arc;

use cri_proto::podresources::v1alpha1::{
    ContainerDevices, ContainerResources, ListPodResourcesRequest, ListPodResourcesResponse,
    PodResources, pod_resources_lister_server::PodResourcesLister,
};
use k8s_openapi::api::core::v1::{Container, Pod};
use kubelet_pod_spec::identity::{self, PodUid};
use tonic::{Request, Response, Status, async_trait};

use crate::Shared;

pub(crate) struct Service(pub(crate) Arc<Shared>);

#[async_trait]
impl PodResourcesLister for Service {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        self.0.take_request()?;
        self.0.metrics.requested_v1alpha1();
        let pods = self.0.pods.pods();
        Ok(Response::new(ListPodResourcesResponse {
            pod_resources: pods.iter().map(|pod| self.of_pod(pod)).collect(),
        }))
    }
}

impl Service {
    fn of_pod(&self, pod: &Pod) -> PodResources {
        let uid = PodUid::of(pod);
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        PodResources {
            name: identity::name(pod).to_owned(),
            namespace: identity::namespace(pod).to_owned(),
            containers: containers.map(|it| self.of_container(&uid, it)).collect(),
        }
    }

    fn of_container(&self, uid: &PodUid, container: &Container) -> ContainerResources {
        let held = self.0.devices_of(uid, container).into_iter().flatten();
        let devices = held.flat_map(|(resource_name, nodes)| {
            let ids = nodes.into_values().flatten();
            ids.map(move |id| ContainerDevices {
                resource_name: resource_name.clone(),
                device_ids: vec![id],
            })
        });
        ContainerResources {
            name: container.name.clone(),
            devices: devices.collect(),
        }
    }
}
