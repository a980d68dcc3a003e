//! Termination of pods.

use cri_proto::runtime::v1::Signal;
use fake_runtime::{Behaviour, Exec, Fault, Times, Verb};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep};

use crate::node::{IMAGE, Node, SECOND, pod, until};

/// A container that ignores the stop signal.
fn stubborn() -> Behaviour {
    Behaviour {
        stops_after: None,
        ..Behaviour::default()
    }
}

fn deleted(mut pod: Pod, grace: i64) -> Pod {
    pod.metadata.deletion_timestamp = Some(Time(kubelet_host::clock::now()));
    pod.metadata.deletion_grace_period_seconds = Some(grace);
    pod
}

#[tokio::test(start_paused = true)]
async fn a_deletion_decides_how_long_the_end_takes() {
    // Every container gets at least two seconds.
    for (grace, seconds) in [(0, 2), (5, 5), (60, 60)] {
        let node = Node::new();
        node.runtime.behave("c", stubborn());
        let kubelet = node.start();
        kubelet.add(pod("web", "u1", json!({}))).await;
        kubelet.until_phase("web", "Running", 3 * SECOND).await;
        let begun = Instant::now();
        kubelet
            .update(deleted(pod("web", "u1", json!({})), grace))
            .await;
        until("its end", 70 * SECOND, || {
            node.runtime.running("c").is_empty()
        })
        .await;
        let took = begun.elapsed().as_secs();
        assert!((seconds..=seconds + 1).contains(&took), "{grace}: {took} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_grace_period_can_be_cut_short_but_not_prolonged() {
    let node = Node::new();
    node.runtime.behave("c", stubborn());
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let begun = Instant::now();
    for grace in [60, 10, 300] {
        let pod = deleted(pod("web", "u1", json!({})), grace);
        kubelet.update(pod).await;
        sleep(SECOND).await;
    }
    until("its end", 30 * SECOND, || {
        node.runtime.running("c").is_empty()
    })
    .await;
    let took = begun.elapsed().as_secs();
    assert!((10..=13).contains(&took), "{took} s");
}

#[tokio::test(start_paused = true)]
async fn a_container_that_is_being_ended_gets_no_more_time_when_its_pod_ends() {
    let node = Node::new();
    let behaviour = Behaviour {
        exec: Some(Exec {
            code: 1,
            ..Exec::default()
        }),
        ..stubborn()
    };
    node.runtime.behave("c", behaviour);
    let kubelet = node.start();
    let probe = json!({
        "exec": {"command": ["check"]}, "periodSeconds": 1, "failureThreshold": 1,
        "terminationGracePeriodSeconds": 20
    });
    let container = json!({"name": "c", "image": IMAGE, "livenessProbe": probe});
    let spec = json!({"terminationGracePeriodSeconds": 600, "containers": [container]});
    let web = pod("web", "u1", spec);
    kubelet.add(web.clone()).await;
    let stops = || node.runtime.calls(Verb::StopContainer);
    until("the probe to end it", 10 * SECOND, || stops() == 1).await;
    sleep(10 * SECOND).await;
    kubelet.remove(web).await;
    until("its end", 15 * SECOND, || node.ready_sandboxes().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn what_no_source_has_ends_soon() {
    let node = Node::new();
    node.runtime.behave("c", stubborn());
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    kubelet.stop().await;
    let _kubelet = node.start();
    until("its end", 10 * SECOND, || {
        node.runtime.sandboxes().is_empty()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_is_never_run_holds_nothing_up() {
    let node = Node::new();
    let kubelet = node.start();
    let spec = json!({"containers": [{
        "name": "c", "image": IMAGE, "lifecycle": {"preStop": {"tcpSocket": {"port": 1}}}
    }]});
    kubelet.add(pod("web", "u1", spec.clone())).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    kubelet.remove(pod("web", "u1", spec)).await;
    until("its end", 5 * SECOND, || {
        node.runtime.sandboxes().is_empty()
    })
    .await;
}

/// A pod whose container has a command as its preStop hook.
fn with_hook(spec: Value) -> Pod {
    let hook = json!({"preStop": {"exec": {"command": ["stop"]}}});
    let mut spec = spec;
    spec["containers"] = json!([{"name": "c", "image": IMAGE, "lifecycle": hook}]);
    pod("web", "u1", spec)
}

/// A container whose commands take this long.
fn commands_take(takes: Duration) -> Behaviour {
    Behaviour {
        exec: Some(Exec {
            takes,
            ..Exec::default()
        }),
        ..Behaviour::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_runs_once_however_often_the_pod_is_ended() {
    for (asked_again, ends_after) in [(30, 20), (300, 20), (10, 10)] {
        let node = Node::new();
        node.runtime.behave("c", commands_take(20 * SECOND));
        let kubelet = node.start();
        let spec = json!({"terminationGracePeriodSeconds": 30, "activeDeadlineSeconds": 5});
        kubelet.add(with_hook(spec.clone())).await;
        let commands = || node.runtime.calls(Verb::ExecSync);
        until("its hook", 10 * SECOND, || commands() == 1).await;
        let begun = Instant::now();
        kubelet.update(deleted(with_hook(spec), asked_again)).await;
        until("its end", 60 * SECOND, || {
            node.runtime.running("c").is_empty()
        })
        .await;
        let took = begun.elapsed().as_secs();
        let expected = ends_after - 1..=ends_after + 1;
        assert!(expected.contains(&took), "{asked_again}: {took} s");
        assert_eq!(commands(), 1, "{asked_again}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_outlives_the_grace_period_runs_until_its_container_is_killed() {
    let node = Node::new();
    node.runtime.behave(
        "c",
        Behaviour {
            exec: commands_take(600 * SECOND).exec,
            ..stubborn()
        },
    );
    let kubelet = node.start();
    let web = with_hook(json!({"terminationGracePeriodSeconds": 30}));
    kubelet.add(web.clone()).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let begun = Instant::now();
    kubelet.remove(web).await;
    until("its stop", 40 * SECOND, || {
        node.runtime.calls(Verb::StopContainer) == 1
    })
    .await;
    sleep(SECOND).await;
    assert_eq!(node.runtime.commands(), 1, "its hook was ended");
    until("its end", 10 * SECOND, || {
        node.runtime.running("c").is_empty()
    })
    .await;
    let took = begun.elapsed().as_secs();
    assert!((32..=33).contains(&took), "{took} s");
    until("the end of its hook", 10 * SECOND, || {
        node.runtime.commands() == 0
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_runtime_is_told_the_stop_signal() {
    let node = Node::new();
    let kubelet = node.start();
    let spec = json!({"os": {"name": "linux"}, "containers": [{
        "name": "c", "image": IMAGE, "lifecycle": {"stopSignal": "SIGUSR1"}
    }]});
    kubelet.add(pod("web", "u1", spec)).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let config = &node.runtime.running("c")[0].config;
    assert_eq!(config.stop_signal(), Signal::Sigusr1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_removed_while_it_is_made_leaves_nothing() {
    for verb in [
        Verb::RunPodSandbox,
        Verb::PullImage,
        Verb::CreateContainer,
        Verb::StartContainer,
    ] {
        for after in [0, 1, 3] {
            let node = Node::new();
            node.runtime
                .fault(verb, Fault::Delay(2 * SECOND), Times::Always);
            let kubelet = node.start();
            let spec = json!({
                "containers": [{"name": "c", "image": IMAGE, "imagePullPolicy": "Always"}],
                "volumes": [{"name": "v", "emptyDir": {}}]
            });
            kubelet.add(pod("web", "u1", spec.clone())).await;
            sleep(SECOND * after).await;
            kubelet.remove(pod("web", "u1", spec)).await;
            sleep(90 * SECOND).await;
            assert!(node.runtime.sandboxes().is_empty(), "{verb:?} {after}");
            assert!(node.runtime.containers().is_empty(), "{verb:?} {after}");
            let left = |dir: &str| node.dir.path().join(dir).exists();
            assert!(!left("kubelet/pods/u1"), "{verb:?} {after}");
            assert!(!left("logs/default_web_u1"), "{verb:?} {after}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_is_cut_off_is_made_again_and_gives_no_more_time() {
    // A container that ignores the signal, and two that exit on it: after the connection breaks,
    // and after the grace period.
    for (stops_after, seconds, code) in [(None, 30, 137), (Some(20), 20, 143), (Some(50), 30, 137)]
    {
        let node = Node::new();
        let behaviour = Behaviour {
            stops_after: stops_after.map(|seconds| seconds * SECOND),
            ..Behaviour::default()
        };
        node.runtime.behave("c", behaviour);
        let kubelet = node.start();
        // The deadline ends the pod without removing it, so the exit code can be observed.
        let web = pod("web", "u1", json!({"activeDeadlineSeconds": 5}));
        kubelet.add(web).await;
        let stops = || node.runtime.calls(Verb::StopContainer);
        until("its stop", 10 * SECOND, || stops() == 1).await;
        let begun = Instant::now();
        sleep(10 * SECOND).await;
        node.runtime.break_connections();
        sleep(SECOND).await;
        assert_eq!(node.runtime.running("c").len(), 1, "it runs on");
        until("its end", 30 * SECOND, || {
            node.runtime.running("c").is_empty()
        })
        .await;
        let took = begun.elapsed().as_secs();
        let expected = seconds..=seconds + 2;
        assert!(expected.contains(&took), "{stops_after:?}: {took} s");
        assert_eq!(node.runtime.containers()[0].exit_code, code);
        kubelet.until_phase("web", "Failed", 30 * SECOND).await;
        assert!(stops() >= 2);
    }
}
