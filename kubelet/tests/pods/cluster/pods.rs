//! Pods from the API server, and their status.

use std::sync::Arc;

use fake_runtime::Behaviour;
use serde_json::json;

use super::{Joined, MINUTE};
use crate::node::{SECOND, pod, until};

#[tokio::test(start_paused = true)]
async fn a_bound_pod_runs_and_its_status_is_at_the_api_server() {
    let joined = Joined::new();
    let member = joined.start().await;
    joined.run("web", json!({})).await;

    let status = joined.api.pod("web").unwrap().status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert!(status.pod_ip.is_some() && status.start_time.is_some());
    assert_eq!(status.host_ips.unwrap().len(), 1);
    assert_eq!(status.observed_generation, Some(1));
    let conditions = status.conditions.unwrap();
    let conditions: Vec<&str> = conditions.iter().map(|c| c.type_.as_str()).collect();
    assert_eq!(
        conditions,
        [
            "PodReadyToStartContainers",
            "Initialized",
            "Ready",
            "ContainersReady",
            "PodScheduled"
        ]
    );
    let container = &status.container_statuses.unwrap()[0];
    assert!(container.ready && container.state.as_ref().unwrap().running.is_some());
    assert!(
        joined.api.count("PATCH") <= 4,
        "{:?}",
        joined.api.requests()
    );
    member.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_have_the_addresses_of_the_nodes_object() {
    let joined = Joined::new();
    let member = joined.start().await;
    joined.run("host", json!({"hostNetwork": true})).await;
    let ips = |name: &str| {
        let status = joined.api.pod(name).unwrap().status.unwrap();
        let both = [status.host_ip, status.pod_ip];
        both.map(Option::unwrap_or_default)
    };
    assert_eq!(ips("host"), ["192.0.2.1", "192.0.2.1"]);

    let object = json!({
        "metadata": {"name": "node", "labels": {"kubernetes.io/os": "linux"}},
        "status": {"addresses": [
            {"type": "ExternalIP", "address": "198.51.100.9"},
            {"type": "InternalIP", "address": "10.0.0.9"}
        ]}
    });
    let object = serde_json::from_value(object).unwrap();
    joined.object.send_replace(Some(Arc::new(object)));
    joined.run("web", json!({})).await;
    assert_eq!(ips("web")[0], "10.0.0.9");
    // The host IP follows the node's object; a pod IP stays as it was first reported.
    until("the node's address of the first pod", 2 * MINUTE, || {
        ips("host") == ["10.0.0.9", "192.0.2.1"]
    })
    .await;
    member.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_for_while_nothing_happens() {
    let joined = Joined::new();
    let _member = joined.start().await;
    joined.run("web", json!({})).await;
    tokio::time::sleep(15 * SECOND).await;
    let before = joined.api.requests().len();
    tokio::time::sleep(60 * MINUTE).await;
    let requests = joined.api.requests().split_off(before);
    assert!(
        requests.iter().all(|r| r.starts_with("WATCH")),
        "{requests:?}"
    );
    assert!(requests.len() <= 12, "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_ends_in_good_order_and_is_gone() {
    let joined = Joined::new();
    let _member = joined.start().await;
    joined.node.runtime.behave(
        "c",
        Behaviour {
            stops_after: Some(3 * SECOND),
            ..Behaviour::default()
        },
    );
    joined
        .run("web", json!({"volumes": [{"name": "v", "emptyDir": {}}]}))
        .await;
    let before = joined.api.requests().len();
    joined.api.delete("web", 30);
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(
        joined.api.phase("web"),
        "Running",
        "its container still runs"
    );
    assert_eq!(joined.node.runtime.running("c").len(), 1);

    until("its end", 10 * SECOND, || joined.api.pod("web").is_none()).await;
    assert!(joined.node.runtime.running("c").is_empty());
    let requests = joined.api.requests().split_off(before);
    let last = requests.last().unwrap();
    assert_eq!(last, "DELETE default/web");
    assert!(
        requests.contains(&"PATCH default/web/status".to_owned()),
        "{requests:?}"
    );
    until("nothing to be left", 5 * SECOND, || {
        joined.node.runtime.sandboxes().is_empty()
            && !joined.node.dir.path().join("kubelet/pods/web").exists()
    })
    .await;
    assert_eq!(joined.api.count("DELETE"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_deleted_by_force_ends() {
    let joined = Joined::new();
    let _member = joined.start().await;
    joined.run("web", json!({})).await;
    joined.api.delete("web", 0);
    until("its end", 40 * SECOND, || {
        joined.node.runtime.sandboxes().is_empty()
    })
    .await;
    assert_eq!(joined.api.count("DELETE"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_minute_without_the_api_server_loses_nothing() {
    let joined = Joined::new();
    let _member = joined.start().await;
    joined.run("stays", json!({})).await;
    joined.run("ends", json!({})).await;
    let once = json!({"restartPolicy": "Never", "containers": [
        {"name": "once", "image": "busybox:1", "imagePullPolicy": "Never"}
    ]});
    joined.run("once", once).await;
    let running = joined.node.runtime.running("c").len();

    joined.api.set_away(true);
    joined.node.runtime.exit_container("once", 3);
    joined.api.bind(pod("new", "new", json!({})));
    joined.api.delete("ends", 5);
    joined
        .api
        .edit("stays", |pod| pod["metadata"]["labels"] = json!({"a": "b"}));
    tokio::time::sleep(MINUTE).await;
    assert_eq!(
        joined.node.runtime.running("c").len(),
        running,
        "pods go on"
    );
    assert_eq!(joined.api.phase("once"), "Running");

    joined.api.set_away(false);
    joined.until_phase("once", "Failed", 60 * SECOND).await;
    joined.until_phase("new", "Running", 60 * SECOND).await;
    until("the deleted one to go", 60 * SECOND, || {
        joined.api.pod("ends").is_none()
    })
    .await;
    let status = joined.api.pod("once").unwrap().status.unwrap();
    let state = status.container_statuses.unwrap().remove(0).state.unwrap();
    assert_eq!(state.terminated.unwrap().exit_code, 3);
    assert_eq!(joined.api.count("GET"), 1, "it resumed where it was");
}

#[tokio::test(start_paused = true)]
async fn what_changed_unseen_is_listed() {
    let joined = Joined::new();
    let _member = joined.start().await;
    joined.run("gone", json!({})).await;
    joined.run("stays", json!({})).await;
    joined.api.set_away(true);
    joined.api.delete("gone", 0);
    joined.api.bind(pod("new", "new", json!({})));
    joined.api.compact();
    joined.api.set_away(false);
    joined.until_phase("new", "Running", 60 * SECOND).await;
    until("the other's end", 60 * SECOND, || {
        joined.node.runtime.running("c").len() == 2
    })
    .await;
    assert_eq!(joined.api.count("GET"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_the_same_name_is_another_pod() {
    let joined = Joined::new();
    let _member = joined.start().await;
    joined.run("web", json!({})).await;
    let old = joined.node.runtime.running("c")[0].id.clone();
    joined.api.set_away(true);
    joined.api.delete("web", 0);
    joined.api.bind(pod("web", "second", json!({})));
    joined.api.set_away(false);
    until("the second to be ready", 90 * SECOND, || {
        joined.api.condition("web", "Ready") == "True"
    })
    .await;
    until("the first's end", 60 * SECOND, || {
        let running = joined.node.runtime.running("c");
        running.len() == 1 && running[0].id != old
    })
    .await;
    assert_eq!(
        joined.api.pod("web").unwrap().metadata.uid.as_deref(),
        Some("second")
    );
}

#[tokio::test(start_paused = true)]
async fn pods_wait_for_the_node_to_be_registered() {
    let joined = Joined::new();
    let mut member = joined.unregistered(joined.node.options()).await;
    joined.api.bind(pod("web", "web", json!({})));
    tokio::time::sleep(MINUTE).await;
    assert_eq!(joined.api.requests(), Vec::<String>::new());
    member.register.take().unwrap().send(()).unwrap();
    joined.until_phase("web", "Running", 5 * SECOND).await;
}
