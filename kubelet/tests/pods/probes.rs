//! The effects of probes on pods.

use fake_runtime::{Behaviour, Exec, Verb};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::node::{IMAGE, Node, Running, SECOND, pod, until};

/// The behaviour of a container whose commands exit with `code`.
fn commands_exit(code: i32) -> Behaviour {
    Behaviour {
        exec: Some(Exec {
            code,
            ..Exec::default()
        }),
        ..Behaviour::default()
    }
}

/// An exec probe with a period of two seconds.
fn probe(failure_threshold: i32) -> Value {
    json!({
        "exec": {"command": ["check"]}, "periodSeconds": 2, "timeoutSeconds": 1,
        "failureThreshold": failure_threshold
    })
}

/// The pod `web` with one container with these probes.
fn probed(probes: Value) -> Pod {
    let mut container = json!({"name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent"});
    for (key, value) in probes.as_object().unwrap() {
        container[key] = value.clone();
    }
    pod("web", "u1", json!({"containers": [container]}))
}

fn condition(kubelet: &Running, kind: &str) -> String {
    let conditions = kubelet.status("web").conditions.unwrap_or_default();
    let found = conditions.into_iter().find(|c| c.type_ == kind);
    found.map(|condition| condition.status).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn the_back_off_of_a_container_that_is_killed_counts_from_the_end_of_its_run_before() {
    let node = Node::new();
    node.runtime.behave("c", commands_exit(1));
    let kubelet = node.start();
    // Each run lasts half a minute.
    kubelet
        .add(probed(json!({"livenessProbe": probe(15)})))
        .await;
    kubelet.until_phase("web", "Running", 5 * SECOND).await;
    for runs in 2..=5 {
        until("the next run", 35 * SECOND, || {
            assert_eq!(kubelet.waiting("web"), "");
            node.runtime.creations("u1", "c") == runs
        })
        .await;
    }
    // Of the fifth run, the back-off is 40 s.
    until("the back-off", 35 * SECOND, || {
        kubelet.waiting("web") == "CrashLoopBackOff"
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn readiness_follows_its_probe() {
    let node = Node::new();
    node.runtime.behave("c", commands_exit(1));
    let kubelet = node.start();
    kubelet
        .add(probed(json!({"readinessProbe": probe(2)})))
        .await;
    kubelet.until_phase("web", "Running", 5 * SECOND).await;
    tokio::time::sleep(20 * SECOND).await;
    assert!(!kubelet.container("web").ready);
    for kind in ["Ready", "ContainersReady"] {
        assert_eq!(condition(&kubelet, kind), "False");
    }
    for (code, ready) in [(0, true), (1, false), (0, true)] {
        node.runtime.behave("c", commands_exit(code));
        until("the other readiness", 10 * SECOND, || {
            kubelet.container("web").ready == ready
        })
        .await;
        let expected = if ready { "True" } else { "False" };
        assert_eq!(condition(&kubelet, "Ready"), expected);
    }
    assert_eq!(node.runtime.calls(Verb::StartContainer), 1);
}

#[tokio::test(start_paused = true)]
async fn a_startup_probe_keeps_the_others_back() {
    let node = Node::new();
    node.runtime.behave("c", commands_exit(1));
    let kubelet = node.start();
    kubelet
        .add(probed(json!({
            "startupProbe": probe(100),
            "livenessProbe": probe(1),
            "readinessProbe": probe(1),
        })))
        .await;
    kubelet.until_phase("web", "Running", 5 * SECOND).await;
    tokio::time::sleep(60 * SECOND).await;
    let container = kubelet.container("web");
    assert_eq!((container.started, container.ready), (Some(false), false));
    assert_eq!(node.runtime.calls(Verb::StartContainer), 1);
    node.runtime.behave("c", commands_exit(0));
    // Readiness is probed as soon as the startup probe has succeeded.
    until("its start", 5 * SECOND, || {
        kubelet.container("web").started == Some(true)
    })
    .await;
    until("its readiness", SECOND, || kubelet.container("web").ready).await;
}

#[tokio::test(start_paused = true)]
async fn probes_end_with_their_pod() {
    let node = Node::new();
    node.runtime.behave("c", commands_exit(0));
    let kubelet = node.start();
    let pod = probed(json!({"livenessProbe": probe(1), "readinessProbe": probe(1)}));
    kubelet.add(pod.clone()).await;
    until("its readiness", 20 * SECOND, || {
        node.runtime.calls(Verb::ExecSync) > 3
    })
    .await;
    kubelet.remove(pod).await;
    until("its end", 10 * SECOND, || {
        node.runtime.sandboxes().is_empty()
    })
    .await;
    let calls = node.runtime.calls(Verb::ExecSync);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(node.runtime.calls(Verb::ExecSync), calls);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_outlives_its_time_fails_and_holds_up_no_other() {
    for outlives_deadline in [false, true] {
        let node = Node::new();
        let behaviour = Behaviour {
            exec: Some(Exec {
                takes: 600 * SECOND,
                outlives_deadline,
                ..Exec::default()
            }),
            ..Behaviour::default()
        };
        node.runtime.behave("c", behaviour);
        let kubelet = node.start();
        kubelet
            .add(probed(json!({"livenessProbe": probe(3)})))
            .await;
        let commands = || node.runtime.calls(Verb::ExecSync);
        until("its restart", 40 * SECOND, || {
            kubelet.container("web").restart_count == 1
        })
        .await;
        assert_eq!(commands(), 3, "{outlives_deadline}");
        // The commands end with their container.
        until("their end", SECOND, || node.runtime.commands() == 0).await;
        let ready = node.runtime.running("c").len();
        assert_eq!(ready, 1, "{outlives_deadline}");
    }
}
