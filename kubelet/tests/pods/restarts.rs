//! Containers and sandboxes that end.

use fake_runtime::{Behaviour, Verb};
use serde_json::json;

use crate::{
    metrics::{metrics_of, value},
    node::{Node, SECOND, pod, until},
};

fn exits(code: i32) -> Behaviour {
    Behaviour {
        exits_after: Some((SECOND / 10, code)),
        ..Behaviour::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_that_dies_is_restarted_and_counted() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    node.runtime.exit_container("c", 137);
    until("the restart", 3 * SECOND, || {
        kubelet.container("web").restart_count == 1
    })
    .await;
    let container = kubelet.container("web");
    let last = container.last_state.unwrap().terminated.unwrap();
    assert_eq!(
        (last.exit_code, last.reason.as_deref()),
        (137, Some("Error"))
    );
    assert_eq!(node.runtime.running("c").len(), 1);
    assert_eq!(node.runtime.sandboxes().len(), 1);
    // The status follows the events; the phase stayed Running.
    assert_eq!(kubelet.phase("web"), "Running");
}

#[tokio::test(start_paused = true)]
async fn restarts_back_off_and_say_so() {
    let node = Node::new();
    node.runtime.behave("c", exits(1));
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    until("the back-off", 10 * SECOND, || {
        kubelet.waiting("web") == "CrashLoopBackOff"
    })
    .await;
    let started = |node: &Node| -> Vec<i64> {
        node.runtime
            .containers()
            .iter()
            .map(|c| c.started_at)
            .collect()
    };
    let state = kubelet.container("web").state.unwrap().waiting.unwrap();
    assert_eq!(
        state.message.unwrap(),
        "back-off 10s restarting failed container=c pod=web_default(u1)"
    );
    assert_eq!(kubelet.phase("web"), "Running");
    let newest = || started(&node).into_iter().max().unwrap();
    assert_eq!(node.runtime.calls(Verb::StartContainer), 2);
    let mut gaps = Vec::new();
    for _ in 0..6 {
        let last = newest();
        until("a start", 320 * SECOND, || newest() > last).await;
        gaps.push((newest() - last) / 1_000_000_000);
    }
    for (gap, delay) in gaps.iter().zip([10, 20, 40, 80, 160, 300]) {
        assert!((delay..=delay + 2).contains(gap), "{gaps:?}");
    }
    // One dead container is kept for the last termination state.
    until("the rest to be pruned", 5 * SECOND, || {
        node.runtime.containers().len() <= 2
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_is_one_termination() {
    let node = Node::new();
    let exits = Behaviour {
        exits_after: Some((3 * SECOND, 1)),
        ..Behaviour::default()
    };
    node.runtime.behave("c", exits);
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    until("some restarts", 300 * SECOND, || {
        node.runtime.creations("u1", "c") == 5 && kubelet.waiting("web").is_empty()
    })
    .await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(node.runtime.running("c").len(), 1);
    let labels = "container_type=\"container\",exit_code=\"1\",reason=\"Error\"";
    let series = format!("kubelet_terminated_containers_total{{{labels}}}");
    let metrics = metrics_of(&kubelet.kubelet);
    assert_eq!(value(&metrics, &series), Some(4.0), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn after_a_run_of_ten_minutes_restarts_are_quick_again() {
    let node = Node::new();
    node.runtime.behave("c", exits(1));
    let mut options = node.options();
    options.restart_delays.longest = 40 * SECOND;
    let kubelet = node.start_with(options);
    kubelet.add(pod("web", "u1", json!({}))).await;
    let backs_off = |delay: &str| {
        let state = kubelet.container("web").state.unwrap_or_default();
        let message = state.waiting.and_then(|waiting| waiting.message);
        message.is_some_and(|message| message.starts_with(&format!("back-off {delay} ")))
    };
    until("the longest delay", 60 * SECOND, || backs_off("40s")).await;
    node.runtime.behave("c", Behaviour::default());
    let runs = || node.runtime.running("c").len() == 1;
    until("a run", 45 * SECOND, runs).await;

    tokio::time::sleep(595 * SECOND).await;
    node.runtime.exit_container("c", 1);
    until("the delay", 5 * SECOND, || backs_off("40s")).await;
    until("a run", 45 * SECOND, runs).await;

    tokio::time::sleep(605 * SECOND).await;
    node.runtime.behave("c", exits(1));
    node.runtime.exit_container("c", 1);
    until("a run at once", 3 * SECOND, runs).await;
    until("the shortest delay", 5 * SECOND, || backs_off("10s")).await;
}

#[tokio::test(start_paused = true)]
async fn the_policy_decides_what_is_restarted() {
    for (policy, code, phase) in [
        ("OnFailure", 0, "Succeeded"),
        ("Never", 0, "Succeeded"),
        ("Never", 3, "Failed"),
    ] {
        let node = Node::new();
        node.runtime.behave("c", exits(code));
        let kubelet = node.start();
        let spec = json!({"restartPolicy": policy});
        kubelet.add(pod("job", "u1", spec.clone())).await;
        kubelet.until_phase("job", phase, 10 * SECOND).await;
        tokio::time::sleep(60 * SECOND).await;
        assert_eq!(
            node.runtime.calls(Verb::StartContainer),
            1,
            "{policy} {code}"
        );
        let terminated = kubelet.container("job").state.unwrap().terminated.unwrap();
        assert_eq!(terminated.exit_code, code);
        // The sandbox is stopped; the container is kept for its status and logs.
        assert!(node.ready_sandboxes().is_empty());
        assert_eq!(node.runtime.containers().len(), 1);
        kubelet.remove(pod("job", "u1", spec)).await;
        until("its end", 5 * SECOND, || {
            node.runtime.sandboxes().is_empty()
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn failures_are_restarted_under_on_failure() {
    let node = Node::new();
    node.runtime.behave("c", exits(1));
    let kubelet = node.start();
    kubelet
        .add(pod("job", "u1", json!({"restartPolicy": "OnFailure"})))
        .await;
    until("two starts", 10 * SECOND, || {
        node.runtime.calls(Verb::StartContainer) == 2
    })
    .await;
    node.runtime.behave("c", exits(0));
    kubelet.until_phase("job", "Succeeded", 30 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_sandbox_is_replaced() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let sandbox = node.runtime.sandboxes()[0].id.clone();
    node.runtime.exit_sandbox(&sandbox);
    until("another sandbox", 5 * SECOND, || {
        node.ready_sandboxes().iter().any(|id| *id != sandbox)
            && node.runtime.running("c").len() == 1
    })
    .await;
    until("the count", 5 * SECOND, || {
        kubelet.container("web").restart_count == 1
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_restarted_kubelet_adopts_what_runs() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    node.runtime.exit_container("c", 1);
    until("the restart", 3 * SECOND, || {
        kubelet.container("web").restart_count == 1
    })
    .await;
    let before = kubelet.status("web");
    kubelet.stop().await;
    let ids: Vec<String> = node
        .runtime
        .running("c")
        .into_iter()
        .map(|c| c.id)
        .collect();
    assert_eq!(ids.len(), 1);

    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    tokio::time::sleep(30 * SECOND).await;
    let still: Vec<String> = node
        .runtime
        .running("c")
        .into_iter()
        .map(|c| c.id)
        .collect();
    assert_eq!(still, ids);
    assert_eq!(node.runtime.calls(Verb::StartContainer), 2);
    let after = kubelet.status("web");
    assert_eq!(after.container_statuses, before.container_statuses);
    assert_eq!(after.start_time, before.start_time);
}

#[tokio::test(start_paused = true)]
async fn a_reboot_brings_everything_back() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    kubelet.stop().await;
    node.runtime.reboot();
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    until("it to run", 5 * SECOND, || {
        node.runtime.running("c").len() == 1
    })
    .await;
    until("the count", 5 * SECOND, || {
        kubelet.container("web").restart_count == 1
    })
    .await;
}
