//! Compatibility with workloads of cri-dockerd.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::{collections::BTreeMap, time::Duration};

use cri_proto::runtime::v1::{
    ContainerConfig, ContainerMetadata, CreateContainerRequest, HugepageLimit, ImageSpec,
    LinuxContainerConfig, LinuxContainerResources, LinuxPodSandboxConfig, PodSandboxConfig,
    PodSandboxMetadata, RemoveImageRequest, RunPodSandboxRequest, StatusRequest,
    image_service_server::ImageService as _, runtime_service_server::RuntimeService as _,
};
use serde_json::{Value, json};
use support::{FakeEngine, node::Node};
use tokio::time::{sleep, timeout};
use tonic::{Code, Request};

const APP: &str = "e2e.local/app:1";

fn pod(name: &str) -> PodSandboxConfig {
    let pairs = [
        ("vendor.io/memory", "1"),
        ("run.oci.handler", "krun"),
        ("org.systemd.property.DevicePolicy", "'auto'"),
        ("org.criu.config", "/etc/shadow"),
        ("bundle", "/"),
    ];
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.into(),
            uid: "uid".into(),
            namespace: "default".into(),
            attempt: 0,
        }),
        annotations: pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: "/kubepods/poduid".into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

async fn run(node: &Node, name: &str, handler: &str) -> Result<String, tonic::Status> {
    let request = RunPodSandboxRequest {
        config: Some(pod(name)),
        runtime_handler: handler.into(),
    };
    let answer = node.service.run_pod_sandbox(Request::new(request)).await?;
    Ok(answer.into_inner().pod_sandbox_id)
}

#[tokio::test]
async fn handlers_are_those_that_the_engine_takes() {
    let engine = FakeEngine::start();
    let node = Node::synced(&engine).await;
    for (index, (handler, runtime)) in [
        ("", Value::Null),
        ("docker", Value::Null),
        ("runc", json!("runc")),
        ("io.containerd.runsc.v1", json!("io.containerd.runsc.v1")),
    ]
    .into_iter()
    .enumerate()
    {
        let id = run(&node, &format!("pod{index}"), handler).await.unwrap();
        assert_eq!(engine.host_config(&id)["Runtime"], runtime, "{handler:?}");
    }
    let refused = run(&node, "other", "kata").await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("runtime_handler"), "{refused}");
}

#[tokio::test]
async fn a_runtime_that_is_added_while_the_engine_runs_is_a_handler() {
    let engine = FakeEngine::start();
    let node = Node::synced(&engine).await;
    engine.add_runtime("kata", false);
    let id = run(&node, "pod", "kata").await.unwrap();
    assert_eq!(engine.host_config(&id)["Runtime"], "kata");

    engine.add_runtime("runsc", true);
    let reported = timeout(Duration::from_secs(60), async {
        loop {
            let status = node.service.status(Request::new(StatusRequest::default()));
            let status = status.await.unwrap().into_inner();
            if status.runtime_handlers.iter().any(|it| it.name == "runsc") {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    });
    reported.await.expect("the new runtime is reported");
}

#[tokio::test]
async fn a_runtime_that_was_asked_for_by_name_gets_the_pods_annotations() {
    let engine = FakeEngine::start();
    engine.add_image(APP, false);
    let node = Node::synced(&engine).await;
    for handler in ["", "docker"] {
        let plain = run(&node, &format!("plain{handler}"), handler).await;
        let given = &engine.host_config(&plain.unwrap())["Annotations"];
        assert_eq!(*given, Value::Null, "{handler}");
    }
    let sandbox = run(&node, "sandboxed", "runc").await.unwrap();
    let container = node.create(&sandbox, "main", APP).await.unwrap();
    for id in [&sandbox, &container] {
        // A pod cannot set annotations that runtimes themselves interpret.
        let expected = json!({ "vendor.io/memory": "1" });
        assert_eq!(engine.host_config(id)["Annotations"], expected);
    }
}

#[tokio::test]
async fn a_container_is_in_the_cgroup_of_its_pod_whatever_the_client_says_of_it() {
    let engine = FakeEngine::start();
    engine.add_image(APP, false);
    let node = Node::synced(&engine).await;
    let sandbox = run(&node, "web", "").await.unwrap();
    let limits = LinuxContainerResources {
        hugepage_limits: vec![HugepageLimit {
            page_size: "2MB".into(),
            limit: 4 << 20,
        }],
        ..Default::default()
    };
    let request = CreateContainerRequest {
        pod_sandbox_id: sandbox,
        config: Some(ContainerConfig {
            metadata: Some(ContainerMetadata {
                name: "main".into(),
                attempt: 0,
            }),
            image: Some(ImageSpec {
                image: APP.into(),
                ..Default::default()
            }),
            linux: Some(LinuxContainerConfig {
                resources: Some(limits),
                ..Default::default()
            }),
            ..Default::default()
        }),
        sandbox_config: None,
    };
    let created = node.service.create_container(Request::new(request)).await;
    let id = created.unwrap().into_inner().container_id;
    let parent = engine.host_config(&id)["CgroupParent"].clone();
    assert_eq!(parent, "/kubepods/poduid");
}

#[tokio::test]
async fn an_image_in_use_keeps_all_its_names() {
    let engine = FakeEngine::start();
    engine.add_image(APP, false);
    let node = Node::synced(&engine).await;
    let sandbox = run(&node, "web", "").await.unwrap();
    let container = node.create(&sandbox, "main", APP).await.unwrap();
    let request = RemoveImageRequest {
        image: Some(ImageSpec {
            image: APP.into(),
            annotations: BTreeMap::new(),
            ..Default::default()
        }),
    };
    let refused = node.service.remove_image(Request::new(request)).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains(&container), "{refused}");
    let removals = engine.calls(&format!("DELETE {APP}"));
    assert_eq!((removals, engine.calls("DELETE images")), (0, 0));
}
