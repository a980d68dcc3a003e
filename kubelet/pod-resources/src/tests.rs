use cri_proto::podresources::{
    v1::{
        AllocatableResourcesRequest, ContainerMemory, ContainerResources, GetPodResourcesRequest,
        ListPodResourcesRequest, NumaNode, TopologyInfo,
        pod_resources_lister_client::PodResourcesListerClient,
    },
    v1alpha1,
};
use kubelet_api_client::objects::NoObjects;
use kubelet_cpu_manager::StaticOptions;
use kubelet_dra_manager::DraParts;
use kubelet_machine_info::{Core, MachineInfo, Node};
use kubelet_pod_spec::identity;
use kubelet_resource_managers::{CpuOptions, ResourceManagerOptions};
use serde_json::json;
use tonic::{Code, transport::Channel};

use super::*;

const GIB: u64 = 1 << 30;

#[derive(Debug)]
struct Pods(Vec<Arc<Pod>>);

impl PodSource for Pods {
    fn pods(&self) -> Vec<Arc<Pod>> {
        self.0.clone()
    }

    fn listed_pods(&self) -> Vec<Arc<Pod>> {
        self.pods()
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let mut pods = self.0.iter();
        let is_it =
            |pod: &Pod| (identity::namespace(pod), identity::name(pod)) == (namespace, name);
        pods.find(|pod| is_it(pod)).cloned()
    }
}

/// A machine with 4 CPUs and 8 GiB.
fn managers(root_dir: &Path) -> ResourceManagers {
    let core = |cpu| Core {
        core_id: cpu,
        thread_ids: vec![cpu],
        ..Core::default()
    };
    let machine = MachineInfo {
        topology: vec![Node {
            memory: 8 * GIB,
            cores: (0..4).map(core).collect(),
            ..Node::default()
        }],
        ..MachineInfo::default()
    };
    let options = ResourceManagerOptions {
        cpu: Some(CpuOptions {
            policy: StaticOptions::default(),
            reserved: "0".parse().unwrap(),
            reserved_count: 1,
            keeps_quota: false,
        }),
        memory: Some([(0, [("memory".to_owned(), GIB)].into())].into()),
        topology: None,
    };
    ResourceManagers::start(&options, &machine, root_dir).unwrap()
}

fn pod() -> Pod {
    let container = |name: &str, cpu: &str| {
        let list = json!({"cpu": cpu, "memory": "1Gi"});
        json!({"name": name, "resources": {"requests": list, "limits": list}})
    };
    let mut sidecar = container("sidecar", "500m");
    sidecar["restartPolicy"] = json!("Always");
    let pod = json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {
            "initContainers": [container("init", "1"), sidecar],
            "containers": [container("own", "2")]
        }
    });
    serde_json::from_value(pod).unwrap()
}

fn memory(bytes: u64) -> ContainerMemory {
    ContainerMemory {
        memory_type: "memory".to_owned(),
        size: bytes,
        topology: Some(TopologyInfo {
            nodes: vec![NumaNode { id: 0 }],
        }),
    }
}

async fn serve(dir: &Path) -> (PodResources, PodResourcesListerClient<Channel>) {
    let managers = managers(dir);
    managers.admit(&pod(), false).unwrap();
    let pods = Box::new(Pods(vec![Arc::new(pod())]));
    let claims = DraManager::start(DraParts {
        root_dir: dir.to_owned(),
        objects: Arc::new(NoObjects),
        cluster: None,
    });
    let api = PodResources::new(pods, Arc::new(managers), claims);
    let listener = bind(dir).unwrap();
    tokio::spawn(api.clone().serve(listener, CancellationToken::new()));
    let channel = kubelet_plugin_manager::socket::channel(&socket_path(dir));
    (api, PodResourcesListerClient::new(channel))
}

#[tokio::test]
async fn containers_and_the_node_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let (api, mut client) = serve(dir.path()).await;
    let listed = client.list(ListPodResourcesRequest {}).await.unwrap();
    let pods = listed.into_inner().pod_resources;
    assert_eq!(pods.len(), 1);
    assert_eq!((&*pods[0].name, &*pods[0].namespace), ("p", "ns"));
    let container = |name: &str, cpu_ids: &[i64]| ContainerResources {
        name: name.to_owned(),
        cpu_ids: cpu_ids.to_vec(),
        memory: vec![memory(GIB)],
        ..ContainerResources::default()
    };
    let expected = [container("sidecar", &[]), container("own", &[1, 2])];
    assert_eq!(pods[0].containers, expected);

    let allocatable = client.get_allocatable_resources(AllocatableResourcesRequest {});
    let allocatable = allocatable.await.unwrap().into_inner();
    assert_eq!(allocatable.cpu_ids, [1, 2, 3]);
    assert_eq!(allocatable.memory, [memory(7 * GIB)]);

    let request = |name: &str| GetPodResourcesRequest {
        pod_name: name.to_owned(),
        pod_namespace: "ns".to_owned(),
    };
    let got = client.get(request("p")).await.unwrap().into_inner();
    assert_eq!(got.pod_resources.as_ref(), Some(&pods[0]));
    let error = client.get(request("q")).await.unwrap_err();
    assert_eq!(error.message(), "pod q in namespace ns not found");

    let mut page = Exposition::default();
    api.collect(&mut page);
    let text = page.into_text();
    for (name, count) in [
        ("requests_total", 4),
        ("requests_list", 1),
        ("requests_get", 2),
        ("errors_get", 1),
        ("requests_get_allocatable", 1),
    ] {
        let line =
            format!("kubelet_pod_resources_endpoint_{name}{{server_api_version=\"v1\"}} {count}\n");
        assert!(text.contains(&line), "{line} is not in {text}");
    }
}

#[tokio::test]
async fn agents_that_know_no_later_version_see_the_containers() {
    use v1alpha1::pod_resources_lister_client::PodResourcesListerClient;
    let dir = tempfile::tempdir().unwrap();
    let (api, _) = serve(dir.path()).await;
    let channel = kubelet_plugin_manager::socket::channel(&socket_path(dir.path()));
    let mut client = PodResourcesListerClient::new(channel);
    let listed = client.list(v1alpha1::ListPodResourcesRequest {}).await;
    let expected = v1alpha1::PodResources {
        name: "p".to_owned(),
        namespace: "ns".to_owned(),
        containers: vec![v1alpha1::ContainerResources {
            name: "own".to_owned(),
            devices: Vec::new(),
        }],
    };
    assert_eq!(listed.unwrap().into_inner().pod_resources, [expected]);
    let mut page = Exposition::default();
    api.collect(&mut page);
    let line = "kubelet_pod_resources_endpoint_requests_total{server_api_version=\"v1alpha1\"} 1\n";
    let text = page.into_text();
    assert!(text.contains(line), "{line} is not in {text}");
}

/// The clock stands still.
#[tokio::test(start_paused = true)]
async fn requests_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let (_, mut client) = serve(dir.path()).await;
    for _ in 0..BURST {
        client.list(ListPodResourcesRequest {}).await.unwrap();
    }
    let error = client.list(ListPodResourcesRequest {}).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    tokio::time::advance(std::time::Duration::from_secs(1)).await;
    client.list(ListPodResourcesRequest {}).await.unwrap();
}

#[tokio::test]
async fn a_socket_of_an_earlier_kubelet_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    drop(bind(dir.path()).unwrap());
    let (_, mut client) = serve(dir.path()).await;
    client.list(ListPodResourcesRequest {}).await.unwrap();
}
