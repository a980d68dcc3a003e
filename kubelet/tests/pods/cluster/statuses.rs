//! Pod statuses that others change.

use cri_proto::runtime::v1::ExecSyncResponse;
use fake_runtime::{Behaviour, Verb};
use serde_json::json;

use super::{Joined, MINUTE, Member};
use crate::{
    metrics::{metrics_of, value},
    node::{IMAGE, SECOND, pod, until},
};

#[tokio::test(start_paused = true)]
async fn what_others_change_of_the_kubelets_is_set_right() {
    let joined = Joined::new();
    let _member = joined.start().await;
    joined.run("web", json!({})).await;
    joined.api.edit("web", |pod| {
        pod["status"]["phase"] = json!("Pending");
        let conditions = pod["status"]["conditions"].as_array_mut().unwrap();
        let ready = conditions
            .iter_mut()
            .find(|c| c["type"] == "Ready")
            .unwrap();
        ready["status"] = json!("False");
        conditions.push(json!({"type": "example.org/mine", "status": "True"}));
    });
    until("it to be set right", 15 * SECOND, || {
        joined.api.phase("web") == "Running" && joined.api.condition("web", "Ready") == "True"
    })
    .await;
    assert_eq!(joined.api.condition("web", "example.org/mine"), "True");
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_others_open_makes_the_pod_ready() {
    let joined = Joined::new();
    let _member = joined.start().await;
    let gate = "example.org/gate";
    let spec = json!({"readinessGates": [{"conditionType": gate}]});
    joined.api.bind(pod("web", "web", spec));
    joined.until_phase("web", "Running", 5 * SECOND).await;
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(joined.api.condition("web", "ContainersReady"), "True");
    assert_eq!(joined.api.condition("web", "Ready"), "False");
    joined.api.edit("web", |pod| {
        let conditions = pod["status"]["conditions"].as_array_mut().unwrap();
        conditions.push(json!({"type": gate, "status": "True"}));
    });
    until("it to be ready", 2 * SECOND, || {
        joined.api.condition("web", "Ready") == "True"
    })
    .await;
    assert_eq!(joined.api.condition("web", gate), "True");
}

#[tokio::test(start_paused = true)]
async fn a_container_stays_ready_over_a_restart_though_its_pod_is_not() {
    let joined = Joined::new();
    let member = gated(&joined).await;
    let before = joined.api.pod("web").unwrap().status;
    member.stop().await;

    let _member = joined.start().await;
    for _ in 0..1000 {
        assert_eq!(joined.api.condition("web", "ContainersReady"), "True");
        tokio::time::sleep(SECOND / 100).await;
    }
    assert_eq!(joined.api.pod("web").unwrap().status, before);
}

#[tokio::test(start_paused = true)]
async fn no_container_is_ready_before_it_is_probed_on_a_node_that_was_given_up() {
    let joined = Joined::new();
    let member = gated(&joined).await;
    member.stop().await;
    // The container fails now, and the gate opens.
    joined.node.runtime.on_exec(|_, _| ExecSyncResponse {
        exit_code: 1,
        ..ExecSyncResponse::default()
    });
    joined.api.edit("web", |pod| {
        let conditions = pod["status"]["conditions"].as_array_mut().unwrap();
        conditions.push(json!({"type": "example.org/gate", "status": "True"}));
    });
    joined.was_given_up.set(true).unwrap();

    let _member = joined.start().await;
    for _ in 0..1000 {
        assert_eq!(joined.api.condition("web", "Ready"), "False");
        tokio::time::sleep(SECOND / 100).await;
    }
    assert_eq!(joined.api.condition("web", "ContainersReady"), "False");
}

/// Starts a kubelet and a pod that has been unready for a minute, as its readiness gate is not met,
/// while its container is ready.
async fn gated(joined: &Joined) -> Member {
    let member = joined.start().await;
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let spec = json!({
        "readinessGates": [{"conditionType": "example.org/gate"}],
        "containers": [{
            "name": "c", "image": IMAGE, "startupProbe": probe, "readinessProbe": probe,
        }],
    });
    joined.api.bind(pod("web", "web", spec));
    until("its container to be ready", 10 * SECOND, || {
        joined.api.condition("web", "ContainersReady") == "True"
    })
    .await;
    tokio::time::sleep(MINUTE).await;
    member
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_others_ended_is_ended_and_stays_so() {
    let joined = Joined::new();
    let member = joined.start().await;
    joined.run("web", json!({})).await;
    joined.api.edit("web", |pod| {
        pod["status"]["phase"] = json!("Failed");
        pod["status"]["reason"] = json!("NodeLost");
    });
    until("its end", 40 * SECOND, || {
        joined.node.ready_sandboxes().is_empty()
    })
    .await;
    member.stop().await;
    let _member = joined.start().await;
    tokio::time::sleep(MINUTE).await;
    assert_eq!(joined.node.runtime.calls(Verb::RunPodSandbox), 1);
    let status = joined.api.pod("web").unwrap().status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("NodeLost"));
    assert_eq!(joined.api.condition("web", "Ready"), "False");
}

#[tokio::test(start_paused = true)]
async fn pods_of_an_earlier_kubelet_are_taken_over() {
    let joined = Joined::new();
    let member = joined.start().await;
    joined.run("web", json!({})).await;
    let behaviour = Behaviour {
        exits_after: Some((SECOND, 0)),
        ..Behaviour::default()
    };
    joined.node.runtime.behave("done", behaviour);
    let done = json!({"restartPolicy": "Never", "containers": [
        {"name": "done", "image": "busybox:1", "imagePullPolicy": "Never"}
    ]});
    joined.api.bind(pod("done", "done", done));
    joined.until_phase("done", "Succeeded", 10 * SECOND).await;
    tokio::time::sleep(15 * SECOND).await;
    let statuses = || ["web", "done"].map(|name| joined.api.pod(name).unwrap().status);
    let (before, patches) = (statuses(), joined.api.count("PATCH"));
    let starts = joined.node.runtime.calls(Verb::StartContainer);
    member.stop().await;

    tokio::time::sleep(MINUTE).await;
    let _member = joined.start().await;
    tokio::time::sleep(MINUTE).await;
    assert_eq!(joined.node.runtime.calls(Verb::StartContainer), starts);
    assert_eq!(statuses(), before);
    assert_eq!(joined.api.count("PATCH"), patches);
}

#[tokio::test(start_paused = true)]
async fn a_done_pod_goes_when_it_is_deleted_however_late() {
    let joined = Joined::new();
    let _member = joined.start().await;
    joined.run("web", json!({"restartPolicy": "Never"})).await;
    joined.node.runtime.exit_container("c", 1);
    joined.until_phase("web", "Failed", 10 * SECOND).await;
    tokio::time::sleep(MINUTE).await;
    // A finalizer has the same effect: the API server waits for the kubelet.
    joined.api.edit("web", |pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    });
    until("its end", 5 * SECOND, || joined.api.pod("web").is_none()).await;
    until("its sandbox to go", 5 * SECOND, || {
        joined.node.runtime.sandboxes().is_empty()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_rejected_pod_has_failed_and_goes_when_it_is_deleted() {
    let joined = Joined::new();
    let _member = joined.start().await;
    joined
        .api
        .bind(pod("web", "web", json!({"nodeSelector": {"no": "such"}})));
    joined.until_phase("web", "Failed", 5 * SECOND).await;
    let status = joined.api.pod("web").unwrap().status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("NodeAffinity"));
    assert_eq!(joined.node.runtime.calls(Verb::RunPodSandbox), 0);
    joined.api.edit("web", |pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")
    });
    until("its end", 5 * SECOND, || joined.api.pod("web").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_label_that_the_scheduler_saw_first_counts() {
    let joined = Joined::new();
    let _member = joined.start().await;
    // The kubelet's watch has not brought the label yet.
    joined.api.label_node("disk", "ssd");
    joined
        .run("web", json!({"nodeSelector": {"disk": "ssd"}}))
        .await;
    joined.api.bind(pod(
        "other",
        "other",
        json!({"nodeSelector": {"disk": "hdd"}}),
    ));
    joined.until_phase("other", "Failed", 5 * SECOND).await;
    let status = joined.api.pod("other").unwrap().status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("NodeAffinity"));
}

#[tokio::test(start_paused = true)]
async fn what_does_not_concern_the_node_is_ignored() {
    let joined = Joined::new();
    let _member = joined.start().await;
    // The scheduler counts such a resource for the whole cluster.
    let resources =
        json!({"requests": {"example.com/license": "1"}, "limits": {"example.com/license": "1"}});
    let windows = json!({"windowsOptions": {"runAsUserName": "ContainerUser"}});
    let spec = json!({"securityContext": windows, "containers": [{
        "name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
        "resources": resources, "securityContext": windows
    }]});
    joined.api.bind(pod("web", "web", spec));
    joined.until_phase("web", "Running", 20 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_built_leaves_a_pod_pending_with_the_reason() {
    let joined = Joined::new();
    let member = joined.start().await;
    let spec = json!({"volumes": [{"name": "v", "rbd": {"image": "i", "monitors": []}}]});
    joined.api.bind(pod("web", "web", spec));
    let status = || joined.api.pod("web").unwrap().status.unwrap();
    let reason = || status().reason.unwrap_or_default();
    until("the reason", 5 * SECOND, || {
        reason() == "UnsupportedPodSpec"
    })
    .await;
    let patches = joined.api.count("PATCH");
    // The pod has not failed, so no controller replaces it, and the kubelet sends no further
    // patches.
    tokio::time::sleep(10 * MINUTE).await;
    assert_eq!(joined.api.phase("web"), "Pending");
    assert_eq!(joined.api.count("PATCH"), patches);
    assert!(status().message.unwrap().contains("spec.volumes[0].rbd"));
    let container = status().container_statuses.unwrap().remove(0);
    let waiting = container.state.unwrap().waiting.unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("Blocked"));
    assert_eq!(joined.node.runtime.calls(Verb::RunPodSandbox), 0);
    // Nothing would prevent a kubelet that supports the volume from running the pod.
    member.stop().await;
    let _member = joined.start().await;
    joined.api.delete("web", 30);
    until("its end", 10 * SECOND, || joined.api.pod("web").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn fifty_pods_cost_four_patches_each_at_most() {
    let joined = Joined::new();
    let _member = joined.start().await;
    for index in 0..50 {
        let name = format!("web-{index}");
        joined.api.bind(pod(&name, &name, json!({})));
    }
    let ready = |name: &str| joined.api.condition(name, "Ready") == "True";
    until("all to be ready", 30 * SECOND, || {
        (0..50).all(|index| ready(&format!("web-{index}")))
    })
    .await;
    tokio::time::sleep(15 * SECOND).await;
    let requests = joined.api.requests();
    for index in 0..50 {
        let patch = format!("PATCH default/web-{index}/status");
        let patches = requests.iter().filter(|request| **request == patch);
        assert!(patches.count() <= 4, "{patch}");
    }
    let others: Vec<&String> = requests
        .iter()
        .filter(|r| !r.starts_with("PATCH"))
        .collect();
    assert_eq!(others, ["GET pods", "WATCH pods"]);
}

#[tokio::test(start_paused = true)]
async fn a_start_is_measured_until_the_api_server_tells_of_it() {
    let joined = Joined::new();
    let member = joined.start().await;
    let volumes = json!({"volumes": [{"name": "v", "emptyDir": {}}]});
    joined.api.bind(pod("web", "web", volumes));
    let of = |series: &str| {
        let text = metrics_of(&member.kubelet);
        value(&text, &format!("kubelet_{series}")).unwrap()
    };
    until("the measurement", 10 * SECOND, || {
        of("pod_start_total_duration_seconds_count") > 0.0
    })
    .await;
    let total = of("pod_start_total_duration_seconds_sum");
    assert!(total > 0.0 && total < 15.0, "{total}");
    let without_pulls = of("pod_start_sli_duration_seconds_sum");
    assert!(without_pulls <= total, "{without_pulls} {total}");
    tokio::time::sleep(MINUTE).await;
    let pods = of("pod_start_sli_duration_seconds_count");
    assert!((1.0..2.0).contains(&pods), "{pods}");
    member.stop().await;
}
