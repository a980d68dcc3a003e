//! A runtime whose lists lag behind, while its statuses are current.

use std::time::Duration;

use fake_runtime::{Behaviour, Fault, Times, Verb};
use serde_json::json;
use tokio::time::sleep;
use tonic::Status;

use crate::node::{IMAGE, Node, SECOND, pod, until};

/// From less than one relist period to more than two.
const LAGS: [Duration; 3] = [
    Duration::from_millis(300),
    Duration::from_millis(1100),
    Duration::from_millis(2500),
];

/// Nodes with such runtimes, with and without events.
fn nodes() -> impl Iterator<Item = (String, Node)> {
    let cases = LAGS.into_iter().flat_map(|lag| [(lag, true), (lag, false)]);
    cases.map(|(lag, has_events)| {
        let node = Node::new();
        node.runtime.lag_lists(lag);
        if !has_events {
            let none = Fault::Error(Status::unimplemented("no events"));
            node.runtime
                .fault(Verb::GetContainerEvents, none, Times::Always);
        }
        (format!("{lag:?}, events: {has_events}"), node)
    })
}

#[tokio::test(start_paused = true)]
async fn nothing_runs_twice_and_all_that_ends_is_restarted_once() {
    for (case, node) in nodes() {
        let done = Behaviour {
            exits_after: Some((SECOND, 0)),
            ..Behaviour::default()
        };
        node.runtime.behave("i", done);
        let kubelet = node.start();
        let spec = json!({
            "initContainers": [{"name": "i", "image": IMAGE}],
            "containers": [{"name": "a", "image": IMAGE}, {"name": "b", "image": IMAGE}]
        });
        kubelet.add(pod("web", "u1", spec)).await;
        kubelet.until_phase("web", "Running", 15 * SECOND).await;
        sleep(30 * SECOND).await;
        let counted = |name| node.runtime.creations("u1", name);
        assert_eq!(["i", "a", "b"].map(counted), [1, 1, 1], "{case}");

        node.runtime.exit_container("a", 1);
        until("another run", 60 * SECOND, || {
            let statuses = kubelet.status("web").container_statuses.unwrap();
            statuses[0].restart_count == 1 && statuses[0].ready
        })
        .await;
        sleep(60 * SECOND).await;
        assert_eq!(["i", "a", "b"].map(counted), [1, 2, 1], "{case}");
        assert_eq!(node.ready_sandboxes().len(), 1, "{case}");
        assert_eq!(node.runtime.sandboxes().len(), 1, "{case}");
        assert_eq!(node.runtime.started_twice(), Vec::<String>::new());
        assert_eq!(node.runtime.calls(Verb::StopPodSandbox), 0, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_is_done_once() {
    for (case, node) in nodes() {
        let done = Behaviour {
            exits_after: Some((SECOND, 0)),
            ..Behaviour::default()
        };
        node.runtime.behave("c", done);
        let kubelet = node.start();
        let spec = json!({"restartPolicy": "OnFailure"});
        kubelet.add(pod("job", "u1", spec)).await;
        kubelet.until_phase("job", "Succeeded", 15 * SECOND).await;
        sleep(60 * SECOND).await;
        assert_eq!(node.runtime.creations("u1", "c"), 1, "{case}");
        assert_eq!(kubelet.phase("job"), "Succeeded");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_removed_leaves_nothing_whenever_that_is() {
    // Before the sandbox is listed, before the container is listed, and after both.
    for after in [0, 1, 2, 4, 20] {
        for (case, node) in nodes() {
            let kubelet = node.start();
            let web = pod("web", "u1", json!({"terminationGracePeriodSeconds": 5}));
            kubelet.add(web.clone()).await;
            sleep(SECOND / 2 * after).await;
            kubelet.remove(web).await;
            let gone =
                || node.runtime.sandboxes().is_empty() && node.runtime.containers().is_empty();
            until(&format!("its end, {case} {after}"), 60 * SECOND, gone).await;
            sleep(20 * SECOND).await;
            assert!(gone(), "{case} {after}");
            assert!(!node.dir.path().join("kubelet/pods/u1").exists());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_replaced_waits_for_the_end_of_the_old() {
    for (case, node) in nodes() {
        let slow = Behaviour {
            stops_after: Some(10 * SECOND),
            ..Behaviour::default()
        };
        node.runtime.behave("c", slow);
        let kubelet = node.start();
        kubelet.add(pod("web", "u1", json!({}))).await;
        kubelet.until_phase("web", "Running", 10 * SECOND).await;
        // Static pods of the same name never run at the same time.
        kubelet.remove(pod("web", "u1", json!({}))).await;
        kubelet.add(pod("web", "u2", json!({}))).await;
        until(&format!("the other pod, {case}"), 60 * SECOND, || {
            assert!(node.runtime.running("c").len() < 2, "{case}");
            node.runtime.creations("u2", "c") == 1 && node.runtime.running("c").len() == 1
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_started_a_moment_ago_is_not_started_again_for_the_sake_of_another() {
    for (case, node) in nodes() {
        // The first container starts when the sandbox is already listed. The last one cannot start,
        // so the pod is synced repeatedly.
        node.runtime.add_pullable_image("slow:1");
        let slow = Fault::Delay(4 * SECOND);
        node.runtime.fault(Verb::PullImage, slow, Times::Once);
        let kubelet = node.start();
        let spec = json!({"containers": [
            {"name": "a", "image": "slow:1", "imagePullPolicy": "IfNotPresent"},
            {"name": "b", "image": "absent:1", "imagePullPolicy": "Never"}
        ]});
        kubelet.add(pod("web", "u1", spec)).await;
        until(&case, 20 * SECOND, || !node.runtime.running("a").is_empty()).await;
        sleep(30 * SECOND).await;
        assert_eq!(node.runtime.started_twice(), Vec::<String>::new(), "{case}");
        assert_eq!(node.runtime.creations("u1", "a"), 1, "{case}");
        let statuses = kubelet.status("web").container_statuses.unwrap();
        assert!(statuses[0].ready, "{case}");
        assert_eq!(statuses[0].restart_count, 0, "{case}");
    }
}
