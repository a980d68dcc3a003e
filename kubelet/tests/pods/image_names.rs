//! A runtime that reports full image names, whatever names the pods use.

use fake_runtime::Verb;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio::time::sleep;

use crate::node::{Node, SECOND, pod, until};

fn of_image(name: &str, image: &str, policy: &str) -> Pod {
    let container = json!({"name": "c", "image": image, "imagePullPolicy": policy});
    pod(name, name, json!({"containers": [container]}))
}

#[tokio::test(start_paused = true)]
async fn an_image_is_found_by_any_of_its_names() {
    let node = Node::new();
    node.runtime.add_pullable_image("team/app");
    let kubelet = node.start();
    kubelet
        .add(of_image("first", "team/app", "IfNotPresent"))
        .await;
    kubelet.until_phase("first", "Running", 5 * SECOND).await;
    let images = node.runtime.images();
    let mut digests = images.iter().flat_map(|image| &image.repo_digests);
    let digest = digests.next().unwrap();
    let short = digest.trim_start_matches("docker.io/");
    // As upstream, a pulled image is available to pods by the name that was pulled; a pod with
    // another name must pull successfully first.
    for (index, (name, pulls)) in [
        ("team/app:latest", 1),
        (short, 1),
        ("docker.io/team/app", 2),
        (digest, 2),
        ("index.docker.io/team/app:latest", 3),
    ]
    .into_iter()
    .enumerate()
    {
        for policy in ["IfNotPresent", "Never"] {
            let pod_name = format!("pod-{index}-{}", policy.to_lowercase());
            kubelet.add(of_image(&pod_name, name, policy)).await;
            kubelet.until_phase(&pod_name, "Running", 5 * SECOND).await;
            let shown = kubelet.container(&pod_name);
            assert_eq!(shown.image, "docker.io/team/app:latest", "{name}");
            assert_eq!(shown.image_id, *digest, "{name}");
            assert_eq!(node.runtime.pulls().len(), pulls, "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_that_was_there_before_is_anybodys_by_any_of_its_names() {
    let node = Node::new();
    node.runtime.add_image("other:1");
    let kubelet = node.start();
    for (index, name) in ["other:1", "docker.io/other:1", "docker.io/library/other:1"]
        .into_iter()
        .enumerate()
    {
        let pod_name = format!("pod-{index}");
        kubelet.add(of_image(&pod_name, name, "Never")).await;
        kubelet.until_phase(&pod_name, "Running", 5 * SECOND).await;
        let shown = kubelet.container(&pod_name);
        assert_eq!(shown.image, "docker.io/library/other:1", "{name}");
    }
    assert_eq!(node.runtime.calls(Verb::PullImage), 0);
}

#[tokio::test(start_paused = true)]
async fn a_container_is_the_same_whatever_the_runtime_calls_its_image() {
    let node = Node::new();
    node.runtime.add_image("other");
    let kubelet = node.start();
    kubelet.add(of_image("web", "other", "IfNotPresent")).await;
    kubelet.until_phase("web", "Running", 5 * SECOND).await;
    kubelet.stop().await;
    let kubelet = node.start();
    kubelet.add(of_image("web", "other", "IfNotPresent")).await;
    until("its status", 10 * SECOND, || {
        kubelet.container("web").image == "docker.io/library/other:latest"
    })
    .await;
    sleep(60 * SECOND).await;
    assert_eq!(node.runtime.calls(Verb::CreateContainer), 1);
    assert_eq!(kubelet.container("web").restart_count, 0);
}
