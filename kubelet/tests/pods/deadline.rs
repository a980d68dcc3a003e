//! Active deadlines of pods (`activeDeadlineSeconds`).

use fake_runtime::{Behaviour, Verb};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::node::{Node, Running, SECOND, pod, until};

fn assert_exceeded(kubelet: &Running) {
    let status = kubelet.status("job");
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(
        status.message.as_deref(),
        Some("Pod was active on the node longer than the specified deadline")
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_past_its_deadline_is_ended_and_failed() {
    for stop_code in [143, 0] {
        let node = Node::new();
        let behaviour = Behaviour {
            stop_code,
            ..Behaviour::default()
        };
        node.runtime.behave("c", behaviour);
        let kubelet = node.start();
        let spec = json!({"activeDeadlineSeconds": 20});
        let begun = Instant::now();
        kubelet.add(pod("job", "u1", spec)).await;
        kubelet.until_phase("job", "Running", 3 * SECOND).await;
        until("its end", 30 * SECOND, || {
            node.runtime.running("c").is_empty()
        })
        .await;
        let took = begun.elapsed().as_secs();
        assert!((18..=22).contains(&took), "{took} s");
        sleep(60 * SECOND).await;
        assert_exceeded(&kubelet);
        assert!(node.ready_sandboxes().is_empty());
        assert_eq!(node.runtime.calls(Verb::StartContainer), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_kubelet_gives_no_more_time() {
    let node = Node::new();
    let kubelet = node.start();
    let spec = json!({"activeDeadlineSeconds": 20});
    let begun = Instant::now();
    kubelet.add(pod("job", "u1", spec.clone())).await;
    kubelet.until_phase("job", "Running", 3 * SECOND).await;
    sleep(10 * SECOND).await;
    kubelet.stop().await;
    let kubelet = node.start();
    kubelet.add(pod("job", "u1", spec)).await;
    kubelet.until_phase("job", "Failed", 30 * SECOND).await;
    let took = begun.elapsed().as_secs();
    assert!((18..=22).contains(&took), "{took} s");
    assert_exceeded(&kubelet);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_done_in_time_has_succeeded() {
    let node = Node::new();
    let exits = Behaviour {
        exits_after: Some((5 * SECOND, 0)),
        ..Behaviour::default()
    };
    node.runtime.behave("c", exits);
    let kubelet = node.start();
    let spec = json!({"activeDeadlineSeconds": 20, "restartPolicy": "Never"});
    kubelet.add(pod("job", "u1", spec)).await;
    kubelet.until_phase("job", "Succeeded", 15 * SECOND).await;
    sleep(60 * SECOND).await;
    assert_eq!(kubelet.phase("job"), "Succeeded");
    assert_eq!(kubelet.status("job").reason, None);
}
