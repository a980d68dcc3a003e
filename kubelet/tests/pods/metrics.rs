//! Pod metrics in `/metrics` and `/metrics/probes`.

use fake_runtime::{Behaviour, Exec, Fault, Times, Verb};
use kubelet::kubelet::Kubelet;
use kubelet_metrics::Exposition;
use kubelet_server::NodeView;
use serde_json::json;

use crate::node::{IMAGE, Node, Running, SECOND, pod, until};

pub(crate) fn metrics(kubelet: &Running) -> String {
    metrics_of(&kubelet.kubelet)
}

pub(crate) fn metrics_of(kubelet: &Kubelet) -> String {
    let mut page = Exposition::default();
    NodeView::collect(kubelet, &mut page);
    page.into_text()
}

fn probe_metrics(kubelet: &Running) -> String {
    let mut page = Exposition::default();
    NodeView::collect_probes(&kubelet.kubelet, &mut page);
    page.into_text()
}

/// The value of one time series, by its name with labels.
pub(crate) fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        (name == series).then(|| value.parse().unwrap())
    })
}

#[tokio::test(start_paused = true)]
async fn a_pods_life_is_counted() {
    let node = Node::new();
    let kubelet = node.start();
    let before = metrics(&kubelet);
    assert_eq!(value(&before, "kubelet_started_pods_total"), Some(0.0));
    assert_eq!(value(&before, "kubelet_running_pods"), None);

    let web = pod(
        "web",
        "u1",
        json!({"initContainers": [{"name": "i", "image": IMAGE, "imagePullPolicy": "IfNotPresent"}]}),
    );
    node.runtime.behave(
        "i",
        Behaviour {
            exits_after: Some((SECOND, 0)),
            ..Behaviour::default()
        },
    );
    kubelet.add(web.clone()).await;
    kubelet.until_phase("web", "Running", 20 * SECOND).await;
    until("the list to show it", 40 * SECOND, || {
        value(&metrics(&kubelet), "kubelet_running_pods") == Some(1.0)
    })
    .await;
    let during = metrics(&kubelet);
    for (series, expected) in [
        ("kubelet_started_pods_total", 1.0),
        ("kubelet_started_pods_errors_total", 0.0),
        (
            "kubelet_started_containers_total{container_type=\"container\"}",
            1.0,
        ),
        (
            "kubelet_started_containers_total{container_type=\"init_container\"}",
            1.0,
        ),
        ("kubelet_pod_start_duration_seconds_count", 1.0),
        ("kubelet_pod_worker_start_duration_seconds_count", 1.0),
        ("kubelet_containers_per_pod_count_sum", 1.0),
        (
            "kubelet_pod_worker_duration_seconds_count{operation_type=\"create\"}",
            1.0,
        ),
        (
            "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"}",
            1.0,
        ),
        (
            "kubelet_runtime_operations_total{operation_type=\"start_container\"}",
            2.0,
        ),
        ("kubelet_desired_pods{static=\"true\"}", 1.0),
        ("kubelet_desired_pods{static=\"\"}", 0.0),
        ("kubelet_active_pods{static=\"true\"}", 1.0),
        (
            "kubelet_working_pods{lifecycle=\"sync\",config=\"desired\",static=\"true\"}",
            1.0,
        ),
        (
            "kubelet_running_containers{container_state=\"running\"}",
            1.0,
        ),
    ] {
        assert_eq!(value(&during, series), Some(expected), "{series}: {during}");
    }
    // A standalone node syncs no status to an API server.
    assert!(!during.contains("kubelet_pod_status_sync_duration_seconds"));
    assert!(!during.contains("kubelet_mirror_pods"));

    kubelet.remove(web).await;
    until("its end", 100 * SECOND, || {
        value(&metrics(&kubelet), "kubelet_running_pods") == Some(0.0)
    })
    .await;
    let killed = "kubelet_pod_worker_duration_seconds_count{operation_type=\"kill\"}";
    until("its worker to have ended it", 10 * SECOND, || {
        value(&metrics(&kubelet), killed) == Some(1.0)
    })
    .await;
    let desired = "kubelet_desired_pods{static=\"true\"}";
    assert_eq!(value(&metrics(&kubelet), desired), Some(0.0));
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn starts_that_fail_are_counted_by_their_reason() {
    let node = Node::new();
    let error = tonic::Status::internal("no");
    node.runtime
        .fault(Verb::StartContainer, Fault::Error(error), Times::Always);
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    let series = "kubelet_started_containers_errors_total{container_type=\"container\",code=\"RunContainerError\"}";
    until("a failure", 20 * SECOND, || {
        value(&metrics(&kubelet), series).is_some_and(|failures| failures >= 1.0)
    })
    .await;
    let errors = "kubelet_runtime_operations_errors_total{operation_type=\"start_container\"}";
    assert!(value(&metrics(&kubelet), errors).is_some_and(|errors| errors >= 1.0));
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn probes_are_counted_until_their_pod_is_gone() {
    let node = Node::new();
    let fine = Behaviour {
        exec: Some(Exec::default()),
        ..Behaviour::default()
    };
    node.runtime.behave("c", fine);
    let kubelet = node.start();
    let web = pod(
        "web",
        "u1",
        json!({"containers": [{
            "name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
            "readinessProbe": {"exec": {"command": ["check"]}, "periodSeconds": 2},
        }]}),
    );
    kubelet.add(web.clone()).await;
    let labels = "container=\"c\",pod=\"web\",namespace=\"default\"";
    let series = format!(
        "prober_probe_total{{probe_type=\"Readiness\",result=\"successful\",{labels},pod_uid=\"u1\"}}"
    );
    until("probes", 60 * SECOND, || {
        value(&probe_metrics(&kubelet), &series).is_some_and(|probes| probes >= 3.0)
    })
    .await;
    let count = format!("prober_probe_duration_seconds_count{{probe_type=\"Readiness\",{labels}}}");
    assert!(value(&probe_metrics(&kubelet), &count).is_some());
    kubelet.remove(web).await;
    until("the end of probes", 100 * SECOND, || {
        probe_metrics(&kubelet).is_empty()
    })
    .await;
    kubelet.stop().await;
}
