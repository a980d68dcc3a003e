//! Calls that take effect while their answers are lost.

use std::fs;

use fake_runtime::{Fault, Times, Verb};
use kubelet_logs::RotationPolicy;
use serde_json::{Value, json};
use tokio::time::sleep;
use tonic::Status;

use crate::node::{IMAGE, Node, SECOND, pod, until};

/// An error after the effect, and an answer that never arrives.
fn losses() -> [Fault; 2] {
    let lost = Status::unavailable("the answer was lost");
    [Fault::ErrorAfter(lost), Fault::HangAfter]
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_made_once() {
    for verb in [
        Verb::RunPodSandbox,
        Verb::PullImage,
        Verb::CreateContainer,
        Verb::StartContainer,
    ] {
        for (kind, loss) in losses().into_iter().enumerate() {
            // A pull has no deadline.
            if verb == Verb::PullImage && kind == 1 {
                continue;
            }
            let node = Node::new();
            node.runtime.add_pullable_image("other:1");
            node.runtime.fault(verb, loss, Times::N(2));
            let kubelet = node.start();
            let spec = json!({"containers": [{"name": "c", "image": "other:1"}]});
            kubelet.add(pod("web", "u1", spec)).await;
            let what = format!("a pod despite {verb:?} {kind}");
            until(&what, 900 * SECOND, || {
                kubelet.phase("web") == "Running" && node.runtime.running("c").len() == 1
            })
            .await;
            sleep(60 * SECOND).await;
            assert_eq!(node.runtime.running("c").len(), 1, "{verb:?} {kind}");
            assert_eq!(node.ready_sandboxes().len(), 1, "{verb:?} {kind}");
            assert_eq!(node.runtime.started_twice(), Vec::<String>::new());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_ends_whatever_is_lost() {
    for verb in [
        Verb::StopContainer,
        Verb::StopPodSandbox,
        Verb::RemoveContainer,
        Verb::RemovePodSandbox,
    ] {
        for loss in losses() {
            let node = Node::new();
            let kubelet = node.start();
            kubelet.add(pod("web", "u1", json!({}))).await;
            kubelet.until_phase("web", "Running", 3 * SECOND).await;
            node.runtime.fault(verb, loss, Times::N(2));
            kubelet.remove(pod("web", "u1", json!({}))).await;
            let what = format!("the end despite {verb:?}");
            until(&what, 900 * SECOND, || {
                node.runtime.sandboxes().is_empty()
                    && !node.dir.path().join("kubelet/pods/u1").exists()
            })
            .await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_resize_is_what_was_asked_for() {
    for verb in [
        Verb::UpdateContainerResources,
        Verb::UpdatePodSandboxResources,
    ] {
        for loss in losses() {
            let node = Node::new();
            let kubelet = node.start();
            let sized = |cpu: &str, memory: &str| {
                let amounts = json!({"cpu": cpu, "memory": memory});
                let resources = json!({"requests": amounts, "limits": amounts});
                let container = json!({"name": "c", "image": IMAGE, "resources": resources});
                pod("web", "u1", json!({"containers": [container]}))
            };
            kubelet.add(sized("100m", "64Mi")).await;
            kubelet.until_phase("web", "Running", 3 * SECOND).await;
            node.runtime.fault(verb, loss, Times::N(2));
            kubelet.update(sized("200m", "128Mi")).await;
            let shown = || {
                let resources = serde_json::to_value(kubelet.container("web").resources);
                resources.unwrap()["limits"].clone()
            };
            let expected = json!({"cpu": "200m", "memory": "128Mi"});
            let conditions = || kubelet.status("web").conditions.unwrap_or_default();
            until(
                &format!("its status despite {verb:?}"),
                900 * SECOND,
                || {
                    let mut conditions = conditions().into_iter();
                    shown() == expected && !conditions.any(|c| c.type_ == "PodResizeInProgress")
                },
            )
            .await;
            let config = node.runtime.running("c")[0].config.clone();
            let resources = config.linux.unwrap().resources.unwrap();
            assert_eq!(resources.cpu_quota, 20_000, "{verb:?}");
            assert_eq!(resources.memory_limit_in_bytes, 128 << 20, "{verb:?}");
            assert_eq!(node.runtime.creations("u1", "c"), 1, "{verb:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_rotated_log_loses_nothing() {
    for loss in losses() {
        let node = Node::new();
        let mut options = node.options();
        options.log_rotation = Some(RotationPolicy {
            max_size: 100,
            max_files: 3,
            max_workers: 1,
            monitor_interval: 10 * SECOND,
        });
        let kubelet = node.start_with(options);
        kubelet.add(pod("web", "u1", json!({}))).await;
        kubelet.until_phase("web", "Running", 5 * SECOND).await;
        let dir = node.dir.path().join("logs/default_web_u1/c");
        let line = "2026-01-02T03:04:05.678Z stdout F first\n";
        fs::write(dir.join("0.log"), line.repeat(5)).unwrap();
        let reopen = Verb::ReopenContainerLog;
        node.runtime.fault(reopen, loss, Times::N(1));
        let files = || fs::read_dir(&dir).unwrap().count();
        until("the rotation", 600 * SECOND, || {
            node.runtime.calls(reopen) >= 1 && files() == 2
        })
        .await;
        sleep(300 * SECOND).await;
        // The runtime writes to the new file.
        assert_eq!(files(), 2);
        assert_eq!(fs::metadata(dir.join("0.log")).unwrap().len(), 0);
        let all = fs::read_dir(&dir).unwrap();
        let sizes = all.map(|entry| entry.unwrap().metadata().unwrap().len());
        assert_eq!(sizes.sum::<u64>(), line.len() as u64 * 5);
    }
}

/// A pod with a command as a lifecycle hook.
fn hooked(hook: &str) -> Value {
    let command = json!({"exec": {"command": ["hook"]}});
    json!({"terminationGracePeriodSeconds": 30, "containers": [
        {"name": "c", "image": IMAGE, "lifecycle": {hook: command}}
    ]})
}

#[tokio::test(start_paused = true)]
async fn a_container_whose_first_hook_may_have_failed_begins_anew() {
    let node = Node::new();
    let [loss, _] = losses();
    node.runtime.fault(Verb::ExecSync, loss, Times::Once);
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", hooked("postStart"))).await;
    until("another run", 60 * SECOND, || {
        kubelet.container("web").ready && kubelet.container("web").restart_count == 1
    })
    .await;
    assert_eq!(node.runtime.calls(Verb::ExecSync), 2);
    assert_eq!(node.runtime.started_twice(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_last_hook_whose_answer_is_lost_holds_nothing_up_for_longer_than_it_may() {
    for (loss, seconds) in losses().into_iter().zip([5, 40]) {
        let node = Node::new();
        node.runtime.fault(Verb::ExecSync, loss, Times::Once);
        let kubelet = node.start();
        let web = pod("web", "u1", hooked("preStop"));
        kubelet.add(web.clone()).await;
        kubelet.until_phase("web", "Running", 5 * SECOND).await;
        kubelet.remove(web).await;
        until("its end", seconds * SECOND, || {
            node.runtime.sandboxes().is_empty()
        })
        .await;
        assert_eq!(node.runtime.calls(Verb::ExecSync), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_hook_runs_though_the_start_was_not_confirmed() {
    for loss in losses() {
        let node = Node::new();
        node.runtime.fault(Verb::StartContainer, loss, Times::Once);
        let kubelet = node.start();
        kubelet.add(pod("web", "u1", hooked("postStart"))).await;
        until("its run", 600 * SECOND, || kubelet.container("web").ready).await;
        sleep(60 * SECOND).await;
        let runs = node.runtime.creations("u1", "c");
        let hooks = node.runtime.calls(Verb::ExecSync);
        assert!(hooks >= 1, "{runs} runs and no hook");
        assert_eq!(node.runtime.running("c").len(), 1);
        assert_eq!(node.runtime.started_twice(), Vec::<String>::new());
    }
}
