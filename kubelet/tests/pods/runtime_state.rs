//! Pods while the runtime is not ready or does not answer.

use fake_runtime::{Behaviour, Fault, Times, Verb};
use kubelet_api_client::events::EventRecorder;
use serde_json::json;
use tokio::time::sleep;

use crate::node::{IMAGE, Node, SECOND, pod, until};

#[tokio::test(start_paused = true)]
async fn nothing_is_taken_while_the_runtime_is_not_ready_and_healthz_says_so() {
    for says_no in [true, false] {
        let node = Node::new();
        let kubelet = node.start();
        let ends = Behaviour {
            exits_after: Some((30 * SECOND, 1)),
            ..Behaviour::default()
        };
        node.runtime.behave("ends", ends);
        let ends = json!({"containers": [{"name": "ends", "image": IMAGE}]});
        kubelet.add(pod("first", "u1", ends)).await;
        kubelet.until_phase("first", "Running", 3 * SECOND).await;
        if says_no {
            node.runtime.set_ready("RuntimeReady", false);
        } else {
            node.runtime.fault(Verb::Status, Fault::Hang, Times::Always);
        }
        // The status call times out after ten seconds, and the runtime counts as down after thirty.
        sleep(50 * SECOND).await;
        kubelet.add(pod("second", "u2", json!({}))).await;
        sleep(60 * SECOND).await;
        assert_eq!(node.runtime.calls(Verb::RunPodSandbox), 1, "{says_no}");
        sleep(150 * SECOND).await;
        assert_eq!(kubelet.kubelet.healthy(), Ok(()), "{says_no}");
        sleep(90 * SECOND).await;
        let problem = kubelet.kubelet.healthy().unwrap_err();
        let why = if says_no {
            "container runtime not ready: RuntimeReady=false reason: message:"
        } else {
            "container runtime is down"
        };
        assert!(problem.ends_with(why), "{problem}");

        node.runtime.set_ready("RuntimeReady", true);
        node.runtime.clear_faults();
        kubelet.until_phase("second", "Running", 20 * SECOND).await;
        until("the ended container to run again", 20 * SECOND, || {
            node.runtime.running("ends").len() == 1
        })
        .await;
        assert_eq!(kubelet.container("first").restart_count, 1, "{says_no}");
        assert_eq!(kubelet.kubelet.healthy(), Ok(()), "{says_no}");
    }
}

#[tokio::test(start_paused = true)]
async fn pods_off_the_hosts_network_wait_for_a_network_before_anything_is_done_for_them() {
    let mut node = Node::new();
    let (events, mut queue) = EventRecorder::new("node");
    node.events = events;
    node.runtime.set_ready("NetworkReady", false);
    let kubelet = node.start();
    let spec = json!({
        "containers": [{
            "name": "c", "image": IMAGE, "imagePullPolicy": "Always",
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        }],
        "volumes": [{"name": "v", "emptyDir": {}}],
    });
    kubelet.add(pod("web", "u1", spec)).await;
    let spec = json!({"hostNetwork": true});
    kubelet.add(pod("network", "u2", spec)).await;
    kubelet.until_phase("network", "Running", 5 * SECOND).await;
    sleep(60 * SECOND).await;
    assert_eq!(kubelet.phase("web"), "Pending");
    assert_eq!(node.runtime.calls(Verb::RunPodSandbox), 1);
    assert_eq!(node.runtime.calls(Verb::PullImage), 0);
    assert!(!node.dir.path().join("kubelet/pods/u1").exists());
    let told: Vec<_> = std::iter::from_fn(|| queue.try_recv().ok())
        .filter(|event| event.involved_object.name.as_deref() == Some("web"))
        .map(|event| (event.reason.unwrap(), event.message.unwrap()))
        .collect();
    let (reason, message) = &told[0];
    assert_eq!(reason, "NetworkNotReady");
    assert_eq!(
        message,
        "network is not ready: container runtime network not ready: NetworkReady=false \
         reason: message:"
    );

    node.runtime.set_ready("NetworkReady", true);
    kubelet.until_phase("web", "Running", 20 * SECOND).await;
}
