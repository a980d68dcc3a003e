//! A runtime that fails, hangs or is down.

use std::sync::atomic::{AtomicUsize, Ordering};

use fake_runtime::{EndCause, Fault, Times, Verb};
use serde_json::json;
use tonic::Status;

use crate::node::{IMAGE, Node, SECOND, pod, until};

fn error() -> Fault {
    Fault::Error(Status::internal("on purpose"))
}

#[tokio::test(start_paused = true)]
async fn a_pod_starts_once_the_runtime_lets_it() {
    for verb in [
        Verb::Version,
        Verb::ListContainers,
        Verb::RunPodSandbox,
        Verb::PodSandboxStatus,
        Verb::ContainerStatus,
        Verb::ImageStatus,
        Verb::CreateContainer,
        Verb::StartContainer,
    ] {
        let node = Node::new();
        node.runtime.fault(verb, error(), Times::N(3));
        let kubelet = node.start();
        kubelet.add(pod("web", "u1", json!({}))).await;
        let what = format!("a pod despite {verb:?}");
        until(&what, 60 * SECOND, || {
            kubelet.phase("web") == "Running" && node.runtime.running("c").len() == 1
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_is_shown_by_reason() {
    for (verb, reason) in [
        (Verb::RunPodSandbox, "ContainerCreating"),
        (Verb::ImageStatus, "ImageInspectError"),
        (Verb::CreateContainer, "CreateContainerError"),
        (Verb::StartContainer, "RunContainerError"),
    ] {
        let node = Node::new();
        node.runtime.fault(verb, error(), Times::Always);
        let kubelet = node.start();
        kubelet.add(pod("web", "u1", json!({}))).await;
        until(reason, 5 * SECOND, || {
            let state = kubelet.container("web").state.unwrap_or_default();
            state.waiting.is_some_and(|waiting| {
                waiting.reason.as_deref() == Some(reason)
                    && waiting
                        .message
                        .is_some_and(|message| message.contains("on purpose"))
            })
        })
        .await;
        // It is retried with a back-off.
        tokio::time::sleep(60 * SECOND).await;
        let calls = node.runtime.calls(verb);
        assert!((4..=20).contains(&calls), "{verb:?}: {calls} calls");
        assert!(
            node.runtime.containers().len() <= 3,
            "what failed is removed"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_goes_away_costs_nothing() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let away = Fault::Error(Status::unavailable("gone"));
    node.runtime.fault_all(&away, Times::Always);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(kubelet.phase("web"), "Running");
    kubelet.add(pod("later", "u2", json!({}))).await;
    tokio::time::sleep(150 * SECOND).await;
    assert!(kubelet.kubelet.pleg_healthy().is_err());
    // The node is not ready; the kubelet itself is fine until its loop has stood for too long.
    assert_eq!(kubelet.kubelet.healthy(), Ok(()));
    tokio::time::sleep(150 * SECOND).await;
    let problem = kubelet.kubelet.healthy().unwrap_err();
    assert!(
        problem.starts_with("sync loop was last active"),
        "{problem}"
    );

    node.runtime.clear_faults();
    until("the other pod", 20 * SECOND, || {
        kubelet.phase("later") == "Running"
    })
    .await;
    assert_eq!(node.runtime.calls(Verb::StopContainer), 0);
    until("health", 3 * SECOND, || kubelet.kubelet.healthy().is_ok()).await;
    assert_eq!(kubelet.container("web").restart_count, 0);
}

#[tokio::test(start_paused = true)]
async fn one_container_that_hangs_holds_up_nobody_else() {
    let node = Node::new();
    node.runtime
        .fault(Verb::ContainerStatus, Fault::Hang, Times::Once);
    let kubelet = node.start();
    kubelet.add(pod("hung", "u1", json!({}))).await;
    until("its container", 3 * SECOND, || {
        node.runtime.running("c").len() == 1
    })
    .await;
    // The status of the first pod hangs now; that of this pod does not.
    tokio::time::sleep(SECOND).await;
    kubelet.add(pod("web", "u2", json!({}))).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    assert_ne!(kubelet.phase("hung"), "Running");
    kubelet.until_phase("hung", "Running", 30 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_removed_from_whatever_hangs() {
    for verb in [Verb::RunPodSandbox, Verb::PullImage, Verb::CreateContainer] {
        let node = Node::new();
        node.runtime.add_pullable_image("other:1");
        node.runtime.fault(verb, Fault::Hang, Times::Always);
        let kubelet = node.start();
        let spec = json!({"containers": [
            {"name": "c", "image": "other:1", "imagePullPolicy": "Always"}
        ]});
        kubelet.add(pod("web", "u1", spec.clone())).await;
        tokio::time::sleep(5 * SECOND).await;
        assert_eq!(node.runtime.calls(verb), 1);
        kubelet.remove(pod("web", "u1", spec)).await;
        let what = format!("the end of a pod in {verb:?}");
        until(&what, 10 * SECOND, || node.runtime.sandboxes().is_empty()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn ends_that_fail_are_tried_again() {
    for verb in [
        Verb::StopContainer,
        Verb::StopPodSandbox,
        Verb::RemoveContainer,
        Verb::RemovePodSandbox,
    ] {
        let node = Node::new();
        let kubelet = node.start();
        kubelet.add(pod("web", "u1", json!({}))).await;
        kubelet.until_phase("web", "Running", 3 * SECOND).await;
        node.runtime.fault(verb, error(), Times::N(3));
        kubelet.remove(pod("web", "u1", json!({}))).await;
        let what = format!("the end despite {verb:?}");
        until(&what, 60 * SECOND, || node.runtime.sandboxes().is_empty()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_leaves_nothing_behind() {
    let node = Node::new();
    let lost = || Fault::ErrorAfter(Status::unavailable("lost"));
    node.runtime.fault(Verb::RunPodSandbox, lost(), Times::Once);
    node.runtime
        .fault(Verb::CreateContainer, lost(), Times::Once);
    node.runtime
        .fault(Verb::StartContainer, lost(), Times::Once);
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    until("one container", 60 * SECOND, || {
        kubelet.phase("web") == "Running" && node.runtime.running("c").len() == 1
    })
    .await;
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(node.runtime.running("c").len(), 1);
    assert_eq!(node.ready_sandboxes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_post_start_hook_stops_the_container() {
    let node = Node::new();
    node.runtime
        .on_exec(|_, _| cri_proto::runtime::v1::ExecSyncResponse {
            exit_code: 1,
            stderr: b"no".to_vec(),
            ..Default::default()
        });
    let kubelet = node.start();
    let spec = json!({"containers": [{
        "name": "c", "image": IMAGE,
        "lifecycle": {"postStart": {"exec": {"command": ["setup"]}}}
    }]});
    kubelet.add(pod("web", "u1", spec)).await;
    until("the reason", 5 * SECOND, || {
        kubelet.waiting("web") == "PostStartHookError" && node.runtime.running("c").is_empty()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_which_a_detail_could_once_not_be_read_is_removed() {
    for before in 0..8 {
        let node = Node::new();
        let kubelet = node.start();
        kubelet.add(pod("web", "u1", json!({}))).await;
        kubelet.until_phase("web", "Running", 5 * SECOND).await;
        // The lost answer causes a second stop, so that the last status read shows no change.
        let lost = Fault::ErrorAfter(Status::internal("the answer was lost"));
        node.runtime.fault(Verb::StopPodSandbox, lost, Times::Once);
        if before > 0 {
            let none = Fault::Delay(std::time::Duration::ZERO);
            let times = Times::N(before);
            node.runtime.fault(Verb::PodSandboxStatus, none, times);
        }
        node.runtime
            .fault(Verb::PodSandboxStatus, error(), Times::Once);
        kubelet.remove(pod("web", "u1", json!({}))).await;
        let what = format!("the pod to be gone after reading {before} failed");
        until(&what, 30 * SECOND, || node.runtime.sandboxes().is_empty()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_whose_time_cannot_be_read_is_not_ended_by_force() {
    // The grace period of an orphan is read from its containers. The status of each container is
    // also read earlier.
    for nth in 0..6 {
        let node = Node::new();
        let kubelet = node.start();
        kubelet.add(pod("web", "u1", json!({}))).await;
        kubelet.until_phase("web", "Running", 3 * SECOND).await;
        kubelet.stop().await;

        let kubelet = node.start();
        kubelet.ready.store(false, Ordering::Relaxed);
        tokio::time::sleep(20 * SECOND).await;
        let asked = AtomicUsize::new(0);
        node.runtime.faults_by_chance(move |verb| {
            let is_nth = || asked.fetch_add(1, Ordering::Relaxed) == nth;
            (verb == Verb::ContainerStatus && is_nth()).then(error)
        });
        kubelet.ready.store(true, Ordering::Relaxed);
        until("its end", 30 * SECOND, || {
            node.runtime.sandboxes().is_empty()
        })
        .await;
        let lives = node.runtime.histories();
        let ends = lives.iter().filter_map(|life| Some(life.ended()?.1));
        let ends: Vec<EndCause> = ends.collect();
        assert_eq!(ends, [EndCause::Stop], "when question {nth} failed");
    }
}
