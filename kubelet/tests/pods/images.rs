//! Where the images of containers come from.

use e2e::fake_runtime::{Fault, Times, Verb};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tonic::Status;

use crate::node::{IMAGE, Node, SECOND, pod, until};

fn with_image(name: &str, image: &str, policy: &str) -> Pod {
    let container = json!({"name": "c", "image": image, "imagePullPolicy": policy});
    pod(name, name, json!({"containers": [container]}))
}

#[tokio::test(start_paused = true)]
async fn the_policy_decides_what_is_pulled() {
    let node = Node::new();
    node.runtime.add_pullable_image(IMAGE);
    node.runtime.add_pullable_image("other:latest");
    let kubelet = node.start();
    for (name, image, policy, pulls) in [
        ("present", IMAGE, "IfNotPresent", 0),
        ("never", IMAGE, "Never", 0),
        ("always", IMAGE, "Always", 1),
        ("absent", "other", "IfNotPresent", 2),
    ] {
        kubelet.add(with_image(name, image, policy)).await;
        kubelet.until_phase(name, "Running", 5 * SECOND).await;
        assert_eq!(node.runtime.pulls().len(), pulls, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_had_is_shown_by_reason() {
    let node = Node::new();
    let kubelet = node.start();
    for (name, image, policy, reason) in [
        ("never", "absent:1", "Never", "ErrImageNeverPull"),
        ("invalid", "Not Valid", "IfNotPresent", "InvalidImageName"),
    ] {
        kubelet.add(with_image(name, image, policy)).await;
        until(reason, 5 * SECOND, || kubelet.waiting(name) == reason).await;
        assert_eq!(kubelet.phase(name), "Pending");
    }
    assert!(node.runtime.pulls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn failed_pulls_back_off_and_recover() {
    let node = Node::new();
    node.runtime.add_pullable_image("other:1");
    let fault = Fault::Error(Status::unknown("registry is away"));
    node.runtime.fault(Verb::PullImage, fault, Times::Always);
    let kubelet = node.start();
    kubelet
        .add(with_image("web", "other:1", "IfNotPresent"))
        .await;
    until("the error", 3 * SECOND, || {
        kubelet.waiting("web") == "ErrImagePull"
    })
    .await;
    until("the back-off", 5 * SECOND, || {
        kubelet.waiting("web") == "ImagePullBackOff"
    })
    .await;
    let waiting = kubelet.container("web").state.unwrap().waiting.unwrap();
    assert!(waiting.message.unwrap().contains("registry is away"));
    tokio::time::sleep(100 * SECOND).await;
    // At about 0, 10, 30 and 70 seconds.
    assert_eq!(node.runtime.calls(Verb::PullImage), 4);
    node.runtime.clear_faults();
    kubelet.until_phase("web", "Running", 100 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn pulls_run_one_by_one_unless_told_otherwise() {
    for (serialize, limit, seconds) in [(true, None, 40), (false, Some(2), 20), (false, None, 10)] {
        let node = Node::new();
        let delay = Fault::Delay(10 * SECOND);
        node.runtime.fault(Verb::PullImage, delay, Times::Always);
        let mut options = node.options();
        options.serialize_image_pulls = serialize;
        options.max_parallel_image_pulls = limit;
        let kubelet = node.start_with(options);
        let begun = tokio::time::Instant::now();
        for index in 0..4 {
            let image = format!("image-{index}:1");
            node.runtime.add_pullable_image(&image);
            let name = format!("web-{index}");
            kubelet.add(with_image(&name, &image, "IfNotPresent")).await;
        }
        for index in 0..4 {
            let name = format!("web-{index}");
            kubelet.until_phase(&name, "Running", 60 * SECOND).await;
        }
        let took = begun.elapsed().as_secs();
        assert!(
            (seconds..seconds + 5).contains(&took),
            "{took} s for {seconds} s"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_that_runs_as_root_is_refused_where_it_must_not() {
    let node = Node::new();
    let id = node.runtime.add_image("root:1");
    node.runtime.set_image_user(&id, Some(0), "");
    let kubelet = node.start();
    let spec = json!({
        "securityContext": {"runAsNonRoot": true},
        "containers": [{"name": "c", "image": "root:1", "imagePullPolicy": "Never"}]
    });
    kubelet.add(pod("web", "u1", spec)).await;
    let reason = "CreateContainerConfigError";
    until(reason, 5 * SECOND, || kubelet.waiting("web") == reason).await;
}
