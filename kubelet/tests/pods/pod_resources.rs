//! The pods that the pod resources API shows.

use std::path::Path;

use cri_proto::podresources::{
    v1::{
        GetPodResourcesRequest, ListPodResourcesRequest,
        pod_resources_lister_client::PodResourcesListerClient,
    },
    v1alpha1,
};
use fake_runtime::Behaviour;
use kubelet_pod_resources::{bind, socket_path};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tonic::{Code, transport::Channel};

use crate::node::{Node, Running, SECOND, pod};

fn serve(kubelet: &Running, dir: &Path) -> Channel {
    let listener = bind(dir).unwrap();
    let kubelet = kubelet.kubelet.clone();
    tokio::spawn(async move {
        let cancel = CancellationToken::new();
        kubelet.serve_pod_resources(listener, cancel).await;
    });
    kubelet_plugin_manager::socket::channel(&socket_path(dir))
}

/// The names of the pods that version 1 lists.
pub(crate) async fn listed(kubelet: &Running) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let mut client = PodResourcesListerClient::new(serve(kubelet, dir.path()));
    let listed = client.list(ListPodResourcesRequest {}).await.unwrap();
    let pods = listed.into_inner().pod_resources.into_iter();
    pods.map(|pod| pod.name).collect()
}

#[tokio::test(start_paused = true)]
async fn pods_that_have_ended_are_listed_only_on_demand() {
    for lists_active_pods in [true, false] {
        let node = Node::new();
        let mut options = node.options();
        options.lists_active_pods = lists_active_pods;
        let kubelet = node.start_with(options);
        let ends = Behaviour {
            exits_after: Some((SECOND, 0)),
            ..Behaviour::default()
        };
        node.runtime.behave("c", ends);
        let never = json!({"restartPolicy": "Never"});
        kubelet.add(pod("job", "u1", never)).await;
        kubelet.until_phase("job", "Succeeded", 5 * SECOND).await;
        node.runtime.behave("c", Behaviour::default());
        kubelet.add(pod("web", "u2", json!({}))).await;
        kubelet.until_phase("web", "Running", 5 * SECOND).await;
        tokio::time::sleep(5 * SECOND).await;

        let dir = tempfile::tempdir().unwrap();
        let channel = serve(&kubelet, dir.path());
        let mut client = PodResourcesListerClient::new(channel.clone());
        let listed = client.list(ListPodResourcesRequest {}).await.unwrap();
        let pods = listed.into_inner().pod_resources.into_iter();
        let names: Vec<String> = pods.map(|pod| pod.name).collect();
        match lists_active_pods {
            true => assert_eq!(names, ["web"]),
            false => assert_eq!(names, ["job", "web"]),
        }
        let mut get = async |name: &str| {
            let request = GetPodResourcesRequest {
                pod_name: name.to_owned(),
                pod_namespace: "default".to_owned(),
            };
            client.get(request).await
        };
        assert!(get("web").await.is_ok());
        for gone in ["job", "unknown"] {
            let refused = get(gone).await.unwrap_err();
            assert_eq!(refused.code(), Code::Unknown);
            let says = format!("pod {gone} in namespace default not found");
            assert_eq!(refused.message(), says);
        }
        let mut old = v1alpha1::pod_resources_lister_client::PodResourcesListerClient::new(channel);
        let listed = old.list(v1alpha1::ListPodResourcesRequest {}).await;
        assert_eq!(listed.unwrap().into_inner().pod_resources.len(), 2);
    }
}
