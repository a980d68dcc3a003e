//! Cgroup files that the shim writes after it has started a container.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use cri_proto::runtime::v1::{
    ContainerState, StartContainerRequest, runtime_service_server::RuntimeService as _,
};
use support::{FakeEngine, node::Node};
use tonic::Request;

#[tokio::test]
async fn a_container_whose_cgroup_cannot_be_written_runs() {
    let engine = FakeEngine::start();
    let sandbox = engine.add_sandbox("web", true, false);
    let id = engine.add_created_container(&sandbox, "main", r#"{"memory.high":"1"}"#);
    let node = Node::synced(&engine).await;
    // The process is not the container's, so its cgroup must not be written.
    engine.start_as(std::process::id());
    let request = StartContainerRequest {
        container_id: id.clone(),
    };
    let started = node.service.start_container(Request::new(request)).await;
    started.unwrap();
    let known = node.shim.model.snapshot().container(&id).unwrap();
    assert_eq!(known.status.state(), ContainerState::ContainerRunning);
    assert_eq!(node.shim.cgroup_settings.failed(), 1);
}
