//! The methods of version 1.

use std::{collections::BTreeMap, sync::Arc};

use cri_proto::podresources::v1::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, CdiDevice, ClaimResource,
    ContainerDevices, ContainerMemory, ContainerResources, DynamicResource, GetPodResourcesRequest,
    GetPodResourcesResponse, ListPodResourcesRequest, ListPodResourcesResponse, NumaNode,
    PodResources, TopologyInfo, pod_resources_lister_server::PodResourcesLister,
};
use k8s_openapi::api::core::v1::{Container, Pod};
use kubelet_device_manager::{DeviceManager, DevicesPerNode};
use kubelet_dra_manager::PreparedClaim;
use kubelet_memory_manager::Block;
use kubelet_pod_spec::{
    identity::{self, PodUid},
    restart_rules::is_sidecar,
};
use tonic::{Request, Response, Status, async_trait};

use crate::{Shared, metrics::Method};

#[derive(Debug)]
pub(crate) struct Service(pub(crate) Arc<Shared>);

#[async_trait]
impl PodResourcesLister for Service {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        self.begin(Method::List)?;
        let pods = self.0.pods.listed_pods();
        Ok(Response::new(ListPodResourcesResponse {
            pod_resources: pods.iter().map(|pod| self.of_pod(pod)).collect(),
        }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        self.begin(Method::GetAllocatable)?;
        let managers = &self.0.managers;
        let allocatable = managers.devices().map(DeviceManager::allocatable);
        Ok(Response::new(AllocatableResourcesResponse {
            devices: devices(allocatable),
            cpu_ids: managers.allocatable_cpus().iter().map(i64::from).collect(),
            memory: managers.allocatable_memory().iter().map(memory).collect(),
        }))
    }

    async fn get(
        &self,
        request: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        self.begin(Method::Get)?;
        let GetPodResourcesRequest {
            pod_name,
            pod_namespace,
        } = request.into_inner();
        let Some(pod) = self.0.pods.pod(&pod_namespace, &pod_name) else {
            self.0.metrics.get_failed();
            let message = format!("pod {pod_name} in namespace {pod_namespace} not found");
            return Err(Status::unknown(message));
        };
        Ok(Response::new(GetPodResourcesResponse {
            pod_resources: Some(self.of_pod(&pod)),
        }))
    }
}

impl Service {
    fn begin(&self, method: Method) -> Result<(), Status> {
        self.0.take_request()?;
        self.0.metrics.requested(method);
        Ok(())
    }

    fn of_pod(&self, pod: &Pod) -> PodResources {
        let containers = pod.spec.iter().flat_map(|spec| {
            let init = spec.init_containers.iter().flatten();
            init.filter(|init| is_sidecar(init)).chain(&spec.containers)
        });
        let uid = PodUid::of(pod);
        PodResources {
            name: identity::name(pod).to_owned(),
            namespace: identity::namespace(pod).to_owned(),
            containers: containers
                .map(|it| self.of_container(pod, &uid, it))
                .collect(),
        }
    }

    fn of_container(&self, pod: &Pod, uid: &PodUid, container: &Container) -> ContainerResources {
        let managers = &self.0.managers;
        let cpus = managers.exclusive_cpus(uid, &container.name);
        let blocks = managers.memory(uid, &container.name);
        ContainerResources {
            name: container.name.clone(),
            devices: devices(self.0.devices_of(uid, container)),
            cpu_ids: cpus.iter().map(i64::from).collect(),
            memory: blocks.iter().map(memory).collect(),
            dynamic_resources: self
                .0
                .dra
                .claims_of(pod, container)
                .iter()
                .map(claim)
                .collect(),
        }
    }
}

/// One entry for each device and each of its NUMA nodes, as upstream.
fn devices(devices: Option<BTreeMap<String, DevicesPerNode>>) -> Vec<ContainerDevices> {
    let resources = devices.into_iter().flatten();
    let nodes = resources.flat_map(|(resource, nodes)| {
        let nodes = nodes.into_iter();
        nodes.map(move |(node, ids)| (resource.clone(), node, ids))
    });
    let entries = nodes.flat_map(|(resource_name, node, ids)| {
        ids.into_iter().map(move |id| ContainerDevices {
            resource_name: resource_name.clone(),
            device_ids: vec![id],
            topology: (node >= 0).then(|| TopologyInfo {
                nodes: vec![NumaNode { id: node }],
            }),
        })
    });
    entries.collect()
}

fn claim(claim: &PreparedClaim) -> DynamicResource {
    let devices = claim.drivers.iter().flat_map(|(driver, devices)| {
        devices.iter().map(move |device| {
            let cdi = device.cdi.iter().cloned();
            ClaimResource {
                cdi_devices: cdi.map(|name| CdiDevice { name }).collect(),
                driver_name: driver.clone(),
                pool_name: device.pool.clone(),
                device_name: device.name.clone(),
                share_id: device.share_id.clone(),
            }
        })
    });
    DynamicResource {
        claim_name: claim.key.name.clone(),
        claim_namespace: claim.key.namespace.clone(),
        claim_resources: devices.collect(),
    }
}

fn memory(block: &Block) -> ContainerMemory {
    let nodes = block.numa_affinity.iter();
    let nodes = nodes.map(|node| NumaNode {
        id: i64::from(*node),
    });
    ContainerMemory {
        memory_type: block.resource.clone(),
        size: block.size,
        topology: Some(TopologyInfo {
            nodes: nodes.collect(),
        }),
    }
}
