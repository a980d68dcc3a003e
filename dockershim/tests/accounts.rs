//! The shim reads the users of containers from the image's own files, through a container created
//! for this purpose, and does so as rarely as possible.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use cri_proto::runtime::v1::{
    ContainerConfig, ContainerMetadata, ContainerStatusRequest, CreateContainerRequest, ImageSpec,
    Int64Value, LinuxContainerConfig, LinuxContainerSecurityContext, SupplementalGroupsPolicy,
    runtime_service_server::RuntimeService as _,
};
use support::{FakeEngine, node::Node};
use tonic::Request;

fn of_user(name: &str, context: LinuxContainerSecurityContext) -> ContainerConfig {
    ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: name.into(),
            attempt: 0,
        }),
        image: Some(ImageSpec {
            image: "dockershim.local/pause:1".into(),
            ..Default::default()
        }),
        linux: Some(LinuxContainerConfig {
            security_context: Some(context),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn number(value: i64) -> Option<Int64Value> {
    Some(Int64Value { value })
}

async fn create(node: &Node, sandbox: &str, config: ContainerConfig) -> String {
    let request = CreateContainerRequest {
        pod_sandbox_id: sandbox.into(),
        config: Some(config),
        sandbox_config: None,
    };
    let created = node.service.create_container(Request::new(request)).await;
    created.unwrap().into_inner().container_id
}

/// The UID and GID in a container's status.
async fn user(node: &Node, id: &str) -> (i64, i64) {
    let request = Request::new(ContainerStatusRequest {
        container_id: id.into(),
        verbose: false,
    });
    let status = node.service.container_status(request).await.unwrap();
    let user = status.into_inner().status.unwrap().user.unwrap();
    let user = user.linux.unwrap();
    (user.uid, user.gid)
}

#[tokio::test]
async fn an_image_is_read_once_for_all_creates_and_restarts() {
    let engine = FakeEngine::start();
    let as_web = || LinuxContainerSecurityContext {
        run_as_username: "web".into(),
        ..Default::default()
    };
    let node = Node::synced(&engine).await;
    let sandbox = node.run("web").await.unwrap();
    let before = engine.calls("POST create");
    let (first, second) = tokio::join!(
        create(&node, &sandbox, of_user("first", as_web())),
        create(&node, &sandbox, of_user("second", as_web())),
    );
    for id in [&first, &second] {
        assert_eq!(user(&node, id).await, (1000, 1001));
    }
    assert_eq!(engine.calls("POST create") - before, 2 + 1);

    drop(node);
    let node = Node::synced(&engine).await;
    let third = create(&node, &sandbox, of_user("third", as_web())).await;
    assert_eq!(user(&node, &third).await, (1000, 1001));
    assert_eq!(engine.calls("POST create") - before, 3 + 1);
}

#[tokio::test]
async fn an_image_is_not_read_for_numbers_that_it_has_no_say_in() {
    let engine = FakeEngine::start();
    let node = Node::synced(&engine).await;
    let sandbox = node.run("web").await.unwrap();
    let before = engine.calls("POST create");
    let strict = LinuxContainerSecurityContext {
        run_as_user: number(1000),
        run_as_group: number(7),
        supplemental_groups_policy: SupplementalGroupsPolicy::Strict.into(),
        ..Default::default()
    };
    let id = create(&node, &sandbox, of_user("strict", strict)).await;
    assert_eq!(user(&node, &id).await, (1000, 7));
    assert_eq!(engine.calls("POST create") - before, 1);
}
