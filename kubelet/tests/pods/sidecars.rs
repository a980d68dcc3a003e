//! Sidecars (restartable init containers).

use fake_runtime::{Behaviour, Verb};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::node::{IMAGE, Node, SECOND, pod, until};

/// A pod with two sidecars and an init container between them.
fn spec(fields: Value) -> Value {
    let container = |name: &str| json!({"name": name, "image": IMAGE});
    let sidecar = |name: &str| json!({"name": name, "image": IMAGE, "restartPolicy": "Always"});
    let mut spec = json!({
        "initContainers": [sidecar("s1"), container("i"), sidecar("s2")],
        "containers": [container("c")],
    });
    for (key, value) in fields.as_object().unwrap() {
        spec[key] = value.clone();
    }
    spec
}

fn exits(seconds: u32, code: i32) -> Behaviour {
    Behaviour {
        exits_after: Some((SECOND * seconds, code)),
        ..Behaviour::default()
    }
}

fn stops(seconds: u32) -> Behaviour {
    Behaviour {
        stops_after: Some(SECOND * seconds),
        ..Behaviour::default()
    }
}

#[tokio::test(start_paused = true)]
async fn sidecars_start_in_their_place_and_run_on() {
    let node = Node::new();
    node.runtime.behave("i", exits(5, 0));
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", spec(json!({})))).await;
    until("the init container", 3 * SECOND, || {
        node.runtime.running("i").len() == 1
    })
    .await;
    sleep(SECOND).await;
    assert_eq!(node.runtime.running("s1").len(), 1);
    assert_eq!(node.runtime.containers().len(), 2);
    assert_eq!(kubelet.phase("web"), "Pending");
    kubelet.until_phase("web", "Running", 10 * SECOND).await;
    let made: Vec<String> = node
        .runtime
        .containers()
        .iter()
        .map(|c| c.name().to_owned())
        .collect();
    assert_eq!(made, ["s1", "i", "s2", "c"]);
    for name in ["s1", "s2", "c"] {
        assert_eq!(node.runtime.running(name).len(), 1, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_comes_next_waits_for_the_post_start_hook() {
    let node = Node::new();
    let kubelet = node.start();
    let spec = json!({
        "initContainers": [{
            "name": "s", "image": IMAGE, "restartPolicy": "Always",
            "lifecycle": {"postStart": {"sleep": {"seconds": 8}}}
        }]
    });
    kubelet.add(pod("web", "u1", spec)).await;
    until("the sidecar", 3 * SECOND, || {
        node.runtime.running("s").len() == 1
    })
    .await;
    sleep(6 * SECOND).await;
    assert!(node.runtime.running("c").is_empty());
    until("the container", 6 * SECOND, || {
        node.runtime.running("c").len() == 1
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_that_ends_is_restarted_and_disturbs_nobody() {
    for code in [0, 1] {
        let node = Node::new();
        node.runtime.behave("i", exits(1, 0));
        let kubelet = node.start();
        let spec = spec(json!({"restartPolicy": "Never"}));
        kubelet.add(pod("web", "u1", spec)).await;
        kubelet.until_phase("web", "Running", 10 * SECOND).await;
        let served = node.runtime.running("c")[0].id.clone();
        let starts = node.runtime.calls(Verb::StartContainer);
        node.runtime.exit_container("s1", code);
        until("the restart", 5 * SECOND, || {
            node.runtime.running("s1").len() == 1
        })
        .await;
        sleep(30 * SECOND).await;
        assert_eq!(node.runtime.calls(Verb::StartContainer), starts + 1);
        assert_eq!(node.runtime.running("c")[0].id, served);
        assert_eq!(kubelet.phase("web"), "Running");
        let init = kubelet.status("web").init_container_statuses.unwrap();
        assert_eq!(init[0].restart_count, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn sidecars_keep_no_pod_from_its_end() {
    for (code, phase) in [(0, "Succeeded"), (1, "Failed")] {
        let node = Node::new();
        node.runtime.behave("i", exits(1, 0));
        node.runtime.behave("c", exits(10, code));
        let kubelet = node.start();
        let spec = spec(json!({"restartPolicy": "Never"}));
        kubelet.add(pod("job", "u1", spec)).await;
        kubelet.until_phase("job", phase, 30 * SECOND).await;
        sleep(30 * SECOND).await;
        assert!(node.runtime.running("s1").is_empty() && node.runtime.running("s2").is_empty());
        assert!(node.ready_sandboxes().is_empty());
        assert_eq!(node.runtime.calls(Verb::StartContainer), 4);
        assert_eq!(kubelet.phase("job"), phase);
    }
}

#[tokio::test(start_paused = true)]
async fn sidecars_end_after_what_they_serve_the_last_first() {
    let node = Node::new();
    node.runtime.behave("i", exits(1, 0));
    node.runtime.behave("c", stops(6));
    node.runtime.behave("s2", stops(3));
    node.runtime.behave("s1", stops(2));
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", spec(json!({})))).await;
    kubelet.until_phase("web", "Running", 10 * SECOND).await;
    let begun = Instant::now();
    kubelet.remove(pod("web", "u1", spec(json!({})))).await;
    for (name, seconds) in [("c", 6), ("s2", 9), ("s1", 11)] {
        until(name, 15 * SECOND, || node.runtime.running(name).is_empty()).await;
        let took = begun.elapsed().as_secs();
        assert!((seconds..=seconds + 1).contains(&took), "{name}: {took} s");
    }
    until("its end", 5 * SECOND, || {
        node.runtime.sandboxes().is_empty()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_gets_what_is_left_of_the_grace_period() {
    let node = Node::new();
    let never = Behaviour {
        stops_after: None,
        ..Behaviour::default()
    };
    node.runtime.behave("i", exits(1, 0));
    for name in ["s1", "s2", "c"] {
        node.runtime.behave(name, never.clone());
    }
    let kubelet = node.start();
    let spec = spec(json!({"terminationGracePeriodSeconds": 10}));
    kubelet.add(pod("web", "u1", spec.clone())).await;
    kubelet.until_phase("web", "Running", 10 * SECOND).await;
    let begun = Instant::now();
    kubelet.remove(pod("web", "u1", spec)).await;
    until("its end", 30 * SECOND, || {
        node.runtime.sandboxes().is_empty()
    })
    .await;
    let took = begun.elapsed().as_secs();
    // No container waits longer than the grace period, and each gets at least two seconds.
    assert!((12..=14).contains(&took), "{took} s");
}
