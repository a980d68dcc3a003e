//! In-place resizes of pods that another kubelet ran before.

use fake_runtime::Verb;
use kubelet_cri_client::labels;
use serde_json::json;
use tokio::time::sleep;

use crate::{
    node::until,
    node::{Node, SECOND},
    resize::{actual, condition, resources, sized},
};

/// Forgets what this kubelet recorded: another one keeps its records elsewhere.
fn forget_records(node: &Node) {
    node.runtime.remove_annotation(labels::CONTAINER_RESOURCES);
    let record = node.dir.path().join("kubelet/pods/u1/resources.json");
    std::fs::remove_file(record).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_container_of_another_kubelet_is_resized() {
    let node = Node::new();
    let kubelet = node.start();
    let small = resources("100m", "64Mi");
    kubelet.add(sized(&small, "NotRequired")).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    kubelet.stop().await;
    forget_records(&node);

    let kubelet = node.start();
    kubelet.add(sized(&small, "NotRequired")).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let more = resources("200m", "128Mi");
    kubelet.update(sized(&more, "NotRequired")).await;
    until("the resize", 10 * SECOND, || {
        actual(&node) == (204, 128 << 20)
    })
    .await;
    assert_eq!(node.runtime.calls(Verb::CreateContainer), 1);
}

#[tokio::test(start_paused = true)]
async fn a_resize_that_another_kubelet_left_pending_is_decided() {
    let node = Node::new();
    let small = resources("100m", "64Mi");
    let kubelet = node.start();
    kubelet.add(sized(&small, "NotRequired")).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let status = kubelet.status("web");
    kubelet.stop().await;
    forget_records(&node);

    // No node has this much memory.
    let mut wanted = sized(&resources("200m", "1Ei"), "NotRequired");
    let mut status = serde_json::to_value(status).unwrap();
    status["containerStatuses"][0]["resources"] = small.clone();
    let pending = json!({"type": "PodResizePending", "status": "True", "reason": "Deferred"});
    status["conditions"].as_array_mut().unwrap().push(pending);
    wanted.status = Some(serde_json::from_value(status).unwrap());
    let kubelet = node.start();
    kubelet.add(wanted.clone()).await;
    until("the decision", 10 * SECOND, || {
        let pending = condition(&kubelet, "PodResizePending");
        pending.and_then(|it| it.reason).as_deref() == Some("Infeasible")
    })
    .await;
    sleep(70 * SECOND).await;
    assert_eq!(kubelet.phase("web"), "Running");
    assert_eq!(actual(&node), (102, 64 << 20));

    let fits = sized(&resources("200m", "128Mi"), "NotRequired");
    wanted.spec = fits.spec;
    kubelet.update(wanted).await;
    until("the resize", 10 * SECOND, || {
        actual(&node) == (204, 128 << 20)
    })
    .await;
    assert_eq!(node.runtime.calls(Verb::CreateContainer), 1);
}
