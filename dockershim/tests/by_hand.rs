//! CRI states of containers that were changed by hand.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use cri_proto::runtime::v1::{
    ContainerMetadata, ContainerStatusRequest, ListContainersRequest, ListPodSandboxRequest,
    PodSandboxMetadata, PodSandboxState, PodSandboxStatusRequest, RemovePodSandboxRequest,
    StopPodSandboxRequest, runtime_service_server::RuntimeService as _,
};
use support::{FakeEngine, eventually, node::Node};
use tonic::Request;

fn state(node: &Node, id: &str) -> PodSandboxState {
    let sandbox = node.shim.model.snapshot().sandbox(id);
    sandbox.unwrap().status.state()
}

#[tokio::test]
async fn a_sandbox_that_was_started_again_is_not_ready_and_can_be_stopped() {
    let engine = FakeEngine::start();
    let earlier = engine.add_sandbox("earlier", true, false);
    engine.restart_container(&earlier);
    let node = Node::synced(&engine).await;
    let now = node.run("now").await.unwrap();
    assert_eq!(state(&node, &now), PodSandboxState::SandboxReady);
    engine.restart_container(&now);
    for id in [&earlier, &now] {
        let not_ready = PodSandboxState::SandboxNotready;
        eventually("it is not ready", || state(&node, id) == not_ready).await;
        assert!(engine.runs(id));
        let stop = StopPodSandboxRequest {
            pod_sandbox_id: id.clone(),
        };
        let stopped = node.service.stop_pod_sandbox(Request::new(stop)).await;
        stopped.unwrap();
        assert!(!engine.runs(id));
        let remove = RemovePodSandboxRequest {
            pod_sandbox_id: id.clone(),
        };
        let removed = node.service.remove_pod_sandbox(Request::new(remove)).await;
        removed.unwrap();
    }
    assert!(engine.names().is_empty());
}

#[tokio::test]
async fn a_sandbox_is_made_while_its_image_is_being_pruned() {
    let engine = FakeEngine::start();
    let node = Node::synced(&engine).await;
    engine.prune_images();
    let id = node.run("web").await.unwrap();
    assert_eq!(state(&node, &id), PodSandboxState::SandboxReady);
}

#[tokio::test]
async fn a_renamed_container_is_what_it_was() {
    let engine = FakeEngine::start();
    let pod = engine.add_sandbox("web", true, false);
    let main = engine.add_container(&pod, "main", &engine.socket.with_extension("log"));
    let node = Node::synced(&engine).await;
    for (pod_name, main_name) in [
        ("mine", "my-main"),
        ("k8s_POD_other_default_uid_7", "k8s_other_pod_default_uid_7"),
        // The sandbox's name looks like a container's, and vice versa.
        ("k8s_other_pod_default_uid_8", "k8s_POD_other_default_uid_8"),
    ] {
        let looks = || engine.calls("GET json");
        let before = looks();
        engine.rename(&pod, pod_name);
        engine.rename(&main, main_name);
        eventually("both were inspected", || looks() >= before + 2).await;

        let request = Request::new(ListPodSandboxRequest::default());
        let listed = node.service.list_pod_sandbox(request).await.unwrap();
        let [sandbox] = &listed.into_inner().items[..] else {
            panic!("{pod_name}: not one sandbox");
        };
        let metadata = PodSandboxMetadata {
            name: "web".into(),
            uid: "uid".into(),
            namespace: "default".into(),
            attempt: 0,
        };
        assert_eq!(sandbox.metadata, Some(metadata), "{pod_name}");
        let request = Request::new(ListContainersRequest::default());
        let listed = node.service.list_containers(request).await.unwrap();
        let [container] = &listed.into_inner().containers[..] else {
            panic!("{main_name}: not one container");
        };
        let metadata = ContainerMetadata {
            name: "main".into(),
            attempt: 0,
        };
        assert_eq!(container.metadata, Some(metadata), "{main_name}");
    }
    let request = PodSandboxStatusRequest {
        pod_sandbox_id: pod,
        ..Default::default()
    };
    let status = node.service.pod_sandbox_status(Request::new(request)).await;
    assert!(status.is_ok());
    let request = ContainerStatusRequest {
        container_id: main,
        ..Default::default()
    };
    let status = node.service.container_status(Request::new(request)).await;
    assert!(status.is_ok());
}
