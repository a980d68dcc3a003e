//! The requests of a full node to its API server.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fake_runtime::Verb;
use k8s_openapi::api::core::v1::Pod;
use kubelet::{
    kubelet::{Kubelet, KubeletParts, Membership, options::KubeletOptions},
    sources::{apiserver::ApiSource, pod_config::PodConfig, update::Source},
};
use kubelet_api_client::{
    events::{EventRecorder, EventSender},
    objects::{ApiObjects, ApiObjectsParts, ChangeDetection},
};
use kubelet_cri_client::CriClient;
use kubelet_node::{
    capacity::CapacityOptions,
    lease::LeaseKeeper,
    options::NodeOptions,
    reporter::{NodeReporter, ReporterParts},
    watch::NodeWatch,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use test_api_server::{ApiError, ApiServer, Caller, Record, Verdict};
use test_run::random::Random;
use tokio::time::sleep;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::node::{IMAGE, Node, SECOND, until};

const PODS: usize = 300;
const MINUTE: Duration = Duration::from_secs(60);

/// Runs all parts of a kubelet in a cluster, connected as the node agent does.
async fn join(api: &ApiServer, node: &Node, tasks: &TaskTracker, cancel: &CancellationToken) {
    let capacity = CapacityOptions {
        max_pods: 1000,
        ..CapacityOptions::default()
    };
    let options = KubeletOptions {
        capacity: capacity.clone(),
        ..node.options()
    };
    let client = || api.client(Caller::node("node"));
    let channel = || node.runtime.channel();
    let cri = CriClient::from_channels(channel(), channel(), options.cri.request_timeout);
    let watch = NodeWatch::new(client(), "node");
    let membership = Membership {
        client: client(),
        node: watch.subscribe(),
        was_given_up: watch.was_given_up(),
        last_node: None,
        last_statuses: BTreeMap::new(),
    };
    let objects = ApiObjects::new(ApiObjectsParts {
        client: client(),
        node: watch.subscribe(),
        change_detection: ChangeDetection::Watch,
        sync_frequency: options.sync_frequency,
        tasks: tasks.clone(),
        cancel: cancel.clone(),
    });
    let (events, queue) = EventRecorder::new("node");
    let (config, updates) = PodConfig::new();
    let mut listed = watch.listed();
    let source = ApiSource {
        client: client(),
        node_name: "node".to_owned(),
        node_known: Box::pin(async move { drop(listed.wait_for(|listed| *listed).await) }),
        checkpoint: None,
    };
    let pods = config.source(Source::Api);
    let root_dir = options.node.root_dir.clone();
    let parts = KubeletParts {
        options,
        cri: cri.clone(),
        objects: Arc::new(objects),
        membership: Some(membership),
        managers: Arc::default(),
        events: events.clone(),
        sources_ready: Arc::new(move || config.seen_all_sources()),
    };
    let (kubelet, pod_runner) = Kubelet::new(parts, cancel);
    let node_options = NodeOptions {
        node_ips: vec!["192.0.2.1".parse().unwrap()],
        capacity,
        ..NodeOptions::default()
    };
    let lease = LeaseKeeper::new(
        client(),
        "node",
        node_options.lease_duration,
        watch.subscribe(),
        Arc::new(|| {}),
    );
    let reporter = NodeReporter::new(ReporterParts {
        client: client(),
        node_name: "node".to_owned(),
        options: node_options,
        root_dir,
        cri,
        readiness: Arc::clone(kubelet.readiness()),
        status_source: Arc::new(kubelet.clone()),
        node: watch.subscribe(),
        on_repeated_failure: Arc::new(|| {}),
        events,
    });
    tasks.spawn(EventSender::new(client(), queue).run(cancel.clone()));
    tasks.spawn(watch.run(cancel.clone()));
    tasks.spawn(lease.run(cancel.clone()));
    tasks.spawn(reporter.run(cancel.clone()));
    tasks.spawn(source.run(pods, cancel.clone()));
    tasks.spawn(pod_runner.run(updates));
}

/// The number of requests by verb and resource.
fn requests(api: &ApiServer) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for request in api.requests() {
        let name = format!("{} {}", request.verb, request.resource);
        *counts.entry(name).or_default() += 1;
    }
    counts
}

fn ready(api: &ApiServer, name: &str) -> bool {
    let pod = api.get("v1", "pods", "default", name).unwrap();
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let conditions = pod.status.and_then(|status| status.conditions);
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Waits until the node is registered.
async fn registered(api: &ApiServer) {
    until("the node", 60 * SECOND, || {
        api.get("v1", "nodes", "", "node").is_ok()
    })
    .await;
}

/// A pod of the node that uses a secret and a config map.
fn needy(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": "node",
            "containers": [{
                "name": "c", "image": IMAGE, "imagePullPolicy": "Never",
                "envFrom": [{"configMapRef": {"name": "settings"}}],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}]
            }],
            "volumes": [{"name": "v", "secret": {"secretName": "keys"}}]
        }
    })
}

fn put_needs(api: &ApiServer) {
    for (plural, name) in [("secrets", "keys"), ("configmaps", "settings")] {
        let object = json!({"metadata": {"name": name}});
        api.create("v1", plural, "default", object).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_for_that_a_node_may_not_have() {
    let api = ApiServer::start().unwrap();
    let node = Node::new();
    let (tasks, cancel) = (TaskTracker::new(), CancellationToken::new());
    put_needs(&api);
    join(&api, &node, &tasks, &cancel).await;
    registered(&api).await;
    api.create("v1", "pods", "default", needy("web")).unwrap();
    until("the pod", 60 * SECOND, || ready(&api, "web")).await;
    sleep(600 * SECOND).await;
    let grace = json!({"gracePeriodSeconds": 5});
    api.delete("v1", "pods", "default", "web", &grace).unwrap();
    until("its end", 60 * SECOND, || {
        api.get("v1", "pods", "default", "web").is_err()
    })
    .await;
    sleep(60 * SECOND).await;
    assert_eq!(api.refusals(), [""; 0]);
    cancel.cancel();
    tasks.close();
    tasks.wait().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_breaks_and_forgets_is_got_over() {
    let api = ApiServer::start().unwrap();
    let node = Node::new();
    let (tasks, cancel) = (TaskTracker::new(), CancellationToken::new());
    put_needs(&api);
    join(&api, &node, &tasks, &cancel).await;
    registered(&api).await;
    // Every fourth request fails or is delayed.
    let random = Mutex::new(Random::new(1, 1));
    api.intercept(Some(Arc::new(move |_: &Record| {
        match random.lock().below(20) {
            0 => Verdict::Refuse(ApiError::too_many_requests("slow down")),
            1 => Verdict::Refuse(ApiError::internal("on purpose")),
            2 => Verdict::Refuse(ApiError::unavailable()),
            3 => Verdict::Break,
            4 => Verdict::Delay(5 * SECOND),
            _ => Verdict::Pass,
        }
    })));
    let names: Vec<String> = (0..10).map(|number| format!("pod-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        api.create("v1", "pods", "default", needy(name)).unwrap();
        match number % 3 {
            0 => api.compact(),
            1 => api.end_watches(),
            _ => {}
        }
        sleep(3 * SECOND).await;
    }
    until("all pods to be ready", 600 * SECOND, || {
        names.iter().all(|name| ready(&api, name))
    })
    .await;
    for name in &names {
        let grace = json!({"gracePeriodSeconds": 5});
        api.delete("v1", "pods", "default", name, &grace).unwrap();
        api.compact();
    }
    until("the end of all", 600 * SECOND, || {
        let gone = |name: &String| api.get("v1", "pods", "default", name).is_err();
        names.iter().all(gone) && node.runtime.sandboxes().is_empty()
    })
    .await;
    assert_eq!(node.runtime.started_twice(), Vec::<String>::new());
    assert_eq!(node.runtime.calls(Verb::CreateContainer), names.len());
    cancel.cancel();
    tasks.close();
    tasks.wait().await;
}

#[tokio::test(start_paused = true)]
async fn three_hundred_pods_ask_no_more_than_upstream_does() {
    let api = ApiServer::start().unwrap();
    let node = Node::new();
    let (tasks, cancel) = (TaskTracker::new(), CancellationToken::new());
    join(&api, &node, &tasks, &cancel).await;
    until("the node", 30 * SECOND, || {
        api.get("v1", "nodes", "", "node").is_ok()
    })
    .await;
    api.forget_requests();
    for number in 0..PODS {
        let pod = json!({
            "metadata": {"name": format!("pod-{number}")},
            "spec": {"nodeName": "node", "containers": [
                {"name": "c", "image": IMAGE, "imagePullPolicy": "Never"},
            ]},
        });
        api.create("v1", "pods", "default", pod).unwrap();
    }
    for number in 0..PODS {
        let name = format!("pod-{number}");
        until(&name, 600 * SECOND, || ready(&api, &name)).await;
    }
    sleep(60 * SECOND).await;
    let started = requests(&api);
    let patches = started["patch pods/status"];
    assert!(
        patches <= 4 * PODS,
        "{patches} status patches for {PODS} pods: {started:?}"
    );
    assert!(!started.contains_key("get pods"), "{started:?}");

    sleep(400 * SECOND).await;
    api.forget_requests();
    sleep(20 * MINUTE).await;
    let mut idle = requests(&api);
    let mut most = |name: &str, most: usize| {
        let count = idle.remove(name).unwrap_or_default();
        assert!(count <= most, "{count} times {name} in 20 minutes");
    };
    most("update leases", 120);
    most("patch nodes/status", 5);
    // Each watch lasts at least five minutes.
    for followed in ["pods", "nodes", "services"] {
        most(&format!("watch {followed}"), 4);
    }
    assert!(idle.is_empty(), "{idle:?}");
    cancel.cancel();
    tasks.close();
    tasks.wait().await;
}
