//! Pods that change at their source.

use std::sync::atomic::Ordering;

use fake_runtime::{Behaviour, Verb};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::node::{IMAGE, Node, SECOND, pod, until};

fn slow() -> Behaviour {
    Behaviour {
        stops_after: Some(10 * SECOND),
        ..Behaviour::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_removed_pod_is_gone_within_its_grace_period() {
    for (stops_after, seconds) in [(Some(SECOND * 2), 2), (None, 30)] {
        let node = Node::new();
        node.runtime.behave(
            "c",
            Behaviour {
                stops_after,
                ..Behaviour::default()
            },
        );
        let kubelet = node.start();
        kubelet.add(pod("web", "u1", json!({}))).await;
        kubelet.until_phase("web", "Running", 3 * SECOND).await;
        let begun = Instant::now();
        kubelet.remove(pod("web", "u1", json!({}))).await;
        until("its end", 40 * SECOND, || {
            node.runtime.sandboxes().is_empty()
        })
        .await;
        let took = begun.elapsed().as_secs();
        assert!(
            (seconds..seconds + 4).contains(&took),
            "{took} s for {stops_after:?}"
        );
        assert!(node.runtime.containers().is_empty());
        assert!(kubelet.kubelet.pods().is_empty());
        until("its files", 3 * SECOND, || {
            let left = |dir: &str| node.dir.path().join(dir).exists();
            !left("kubelet/pods/u1") && !left("logs/default_web_u1")
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_edited_manifest_replaces_the_pod_once_it_has_ended() {
    let node = Node::new();
    node.runtime.behave("c", slow());
    let kubelet = node.start();
    kubelet.add(pod("web", "old", json!({}))).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;

    kubelet.remove(pod("web", "old", json!({}))).await;
    kubelet.add(pod("web", "new", json!({}))).await;
    sleep(8 * SECOND).await;
    assert_eq!(node.runtime.calls(Verb::RunPodSandbox), 1);
    until("the new one", 10 * SECOND, || {
        let running = node.runtime.running("c");
        running.len() == 1 && running[0].config.labels["io.kubernetes.pod.uid"] == "new"
    })
    .await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    until("the old one's end", 3 * SECOND, || {
        node.runtime.sandboxes().len() == 1
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_manifest_that_is_removed_and_restored_runs_again() {
    let node = Node::new();
    node.runtime.behave("c", slow());
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    kubelet.remove(pod("web", "u1", json!({}))).await;
    sleep(SECOND).await;
    kubelet.add(pod("web", "u1", json!({}))).await;
    until("a second run", 20 * SECOND, || {
        node.runtime.calls(Verb::StartContainer) == 2 && node.runtime.running("c").len() == 1
    })
    .await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    // The pod was restarted rather than replaced, as upstream.
    assert_eq!(kubelet.container("web").restart_count, 1);
}

#[tokio::test(start_paused = true)]
async fn another_image_restarts_the_container_in_its_sandbox() {
    let node = Node::new();
    node.runtime.add_image("busybox:2");
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let spec = json!({"containers": [{"name": "c", "image": "busybox:2"}]});
    kubelet.update(pod("web", "u1", spec)).await;
    until("the new image", 5 * SECOND, || {
        let shown = kubelet.container("web").image;
        shown == "docker.io/library/busybox:2" && node.runtime.running("c").len() == 1
    })
    .await;
    assert_eq!(node.runtime.sandboxes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_pre_stop_hook_runs_first_and_counts() {
    let node = Node::new();
    node.runtime.behave(
        "c",
        Behaviour {
            stops_after: None,
            ..Behaviour::default()
        },
    );
    let kubelet = node.start();
    let spec = json!({"containers": [{
        "name": "c", "image": IMAGE, "lifecycle": {"preStop": {"sleep": {"seconds": 20}}}
    }]});
    kubelet.add(pod("web", "u1", spec.clone())).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let begun = Instant::now();
    kubelet.remove(pod("web", "u1", spec)).await;
    sleep(15 * SECOND).await;
    assert_eq!(node.runtime.calls(Verb::StopContainer), 0);
    until("its end", 30 * SECOND, || {
        node.runtime.sandboxes().is_empty()
    })
    .await;
    let took = begun.elapsed().as_secs();
    assert!((30..33).contains(&took), "{took} s");
}

#[tokio::test(start_paused = true)]
async fn orphans_are_ended_only_once_every_source_was_read() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet.add(pod("kept", "kept", json!({}))).await;
    kubelet.add(pod("gone", "gone", json!({}))).await;
    kubelet.until_phase("kept", "Running", 3 * SECOND).await;
    kubelet.until_phase("gone", "Running", 3 * SECOND).await;
    kubelet.stop().await;

    let kubelet = node.start();
    kubelet.ready.store(false, Ordering::Relaxed);
    sleep(20 * SECOND).await;
    assert_eq!(node.runtime.running("c").len(), 2);
    kubelet.add(pod("kept", "kept", json!({}))).await;
    sleep(SECOND).await;
    kubelet.ready.store(true, Ordering::Relaxed);
    until("the orphan's end", 10 * SECOND, || {
        node.runtime.sandboxes().len() == 1
    })
    .await;
    let running = node.runtime.running("c");
    assert_eq!(running.len(), 1);
    assert_eq!(running[0].config.labels["io.kubernetes.pod.name"], "kept");
    until("its files", 70 * SECOND, || {
        let left = |dir: &str| node.dir.path().join(dir).exists();
        !left("kubelet/pods/gone") && !left("logs/default_gone_gone")
    })
    .await;
    assert!(node.dir.path().join("logs/default_kept_kept").exists());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_comes_back_is_not_taken_for_its_earlier_life() {
    // A pod that ended for good is never started again, so a pod that comes back must not be
    // mistaken for its earlier life, either during the termination or right after it.
    for pause in [SECOND / 100, SECOND / 2, SECOND, 2 * SECOND, 3 * SECOND] {
        let node = Node::new();
        node.runtime.behave("c", Behaviour::default());
        let kubelet = node.start();
        let spec = json!({"restartPolicy": "Never"});
        kubelet.add(pod("job", "u1", spec.clone())).await;
        kubelet.until_phase("job", "Running", 3 * SECOND).await;
        kubelet.remove(pod("job", "u1", spec.clone())).await;
        sleep(pause).await;
        kubelet.add(pod("job", "u1", spec)).await;
        until("the next run", 10 * SECOND, || {
            node.runtime.calls(Verb::StartContainer) == 2
        })
        .await;
        sleep(10 * SECOND).await;
        assert_eq!(kubelet.phase("job"), "Running", "after {pause:?}");
        assert_eq!(node.runtime.running("c").len(), 1, "after {pause:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_comes_back_while_it_ends_tells_that_it_was_restarted() {
    let node = Node::new();
    let behaviour = Behaviour {
        stops_after: None,
        ..Behaviour::default()
    };
    node.runtime.behave("c", behaviour);
    let kubelet = node.start();
    let spec = json!({"terminationGracePeriodSeconds": 5});
    let web = pod("web", "u1", spec);
    kubelet.add(web.clone()).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    for restarts in [1, 2] {
        kubelet.remove(web.clone()).await;
        kubelet.add(web.clone()).await;
        until("the next run", 10 * SECOND, || {
            node.runtime.calls(Verb::StartContainer) > restarts
        })
        .await;
        until("the restart to be told", 10 * SECOND, || {
            usize::try_from(kubelet.container("web").restart_count) == Ok(restarts)
        })
        .await;
    }
}
