//! The node's object, its status and its lease, on an API server in memory.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{Method, Request, Response, body::Frame};
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::client::Body;
use kubelet::{
    config::cluster::NodeOptions,
    node::{
        findings::{Findings, Pressure},
        lease::LeaseKeeper,
        reporter::{NodeReporter, ReporterParts},
        watch::NodeWatch,
    },
    runtime::{cri::CriClient, readiness::RuntimeReadiness},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    sync::{broadcast, watch},
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::node::{Node, SECOND, until};

/// Its name is its address, so that no name has to be looked up.
const NAME: &str = "192.0.2.9";

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Trouble of a server that does not answer at all.
const SILENCE: u16 = 0;

/// An API server that knows nodes and leases.
#[derive(Clone)]
struct Api(Arc<ApiParts>);

struct ApiParts {
    objects: Mutex<BTreeMap<String, Value>>,
    version: AtomicU64,
    changes: broadcast::Sender<Value>,
    /// Each request as `METHOD path`.
    requests: Mutex<Vec<String>>,
    /// Answers to give instead of doing what is asked: a status, for so many requests.
    trouble: Mutex<Option<(u16, usize)>>,
}

impl ApiParts {
    /// What the next request meets, if anything.
    fn next_trouble(&self) -> Option<u16> {
        let mut trouble = self.trouble.lock();
        let (status, left) = trouble.as_mut()?;
        *left = left.checked_sub(1)?;
        Some(*status)
    }
}

impl Api {
    fn new() -> Self {
        Self(Arc::new(ApiParts {
            objects: Mutex::default(),
            version: AtomicU64::new(1),
            changes: broadcast::channel(100).0,
            requests: Mutex::default(),
            trouble: Mutex::default(),
        }))
    }

    fn client(&self) -> kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.answer(request).await) }
        });
        kube::Client::new(service, "default")
    }

    fn node(&self) -> Value {
        let objects = self.0.objects.lock();
        objects
            .get(&format!("/api/v1/nodes/{NAME}"))
            .cloned()
            .unwrap_or_default()
    }

    fn lease(&self) -> Value {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NAME}");
        self.0
            .objects
            .lock()
            .get(&path)
            .cloned()
            .unwrap_or_default()
    }

    fn condition(&self, kind: &str) -> Value {
        let node = self.node();
        let conditions = node["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let found = conditions
            .into_iter()
            .find(|condition| condition["type"] == kind);
        found.unwrap_or_default()
    }

    fn count(&self, request: &str) -> usize {
        let requests = self.0.requests.lock();
        requests
            .iter()
            .filter(|made| made.starts_with(request))
            .count()
    }

    fn store(&self, path: &str, mut object: Value) -> Value {
        let version = self.0.version.fetch_add(1, Ordering::Relaxed) + 1;
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = json!(version.to_string());
        if metadata["uid"].is_null() {
            metadata["uid"] = json!(format!("uid-{version}"));
        }
        self.0
            .objects
            .lock()
            .insert(path.to_owned(), object.clone());
        if path.contains("/nodes/") {
            let _ = self.0.changes.send(object.clone());
        }
        object
    }

    async fn answer(&self, request: Request<Body>) -> Answer {
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        let query = head.uri.query().unwrap_or_default().to_owned();
        let is_watch = query.contains("watch=true");
        let verb = if is_watch {
            "WATCH"
        } else {
            head.method.as_str()
        };
        self.0.requests.lock().push(format!("{verb} {path}"));
        match self.0.next_trouble() {
            Some(SILENCE) => std::future::pending().await,
            Some(status) => return failure(status, "InternalError"),
            None => {}
        }
        if is_watch {
            let changes = self.0.changes.subscribe();
            let lines = futures::stream::unfold(changes, |mut changes| async move {
                let object = changes.recv().await.ok()?;
                let line = format!("{}\n", json!({"type": "MODIFIED", "object": object}));
                Some((Ok(Frame::data(Bytes::from(line))), changes))
            });
            return Response::new(StreamBody::new(lines).boxed_unsync());
        }
        let body = body.collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let known = self.0.objects.lock().get(&path).cloned();
        match (head.method, known) {
            (Method::GET, _) if path == "/api/v1/nodes" => {
                let selector = format!("&fieldSelector=metadata.name%3D{NAME}&");
                assert!(query.starts_with(&selector), "{query}");
                let items: Vec<Value> =
                    [self.node()].into_iter().filter(Value::is_object).collect();
                let version = self.0.version.load(Ordering::Relaxed).to_string();
                success(&json!({"metadata": {"resourceVersion": version}, "items": items}))
            }
            (Method::GET, Some(object)) => success(&object),
            (Method::GET, None) => failure(404, "NotFound"),
            (Method::POST, _) => {
                let path = format!("{path}/{NAME}");
                if self.0.objects.lock().contains_key(&path) {
                    return failure(409, "AlreadyExists");
                }
                success(&self.store(&path, body))
            }
            (Method::PUT, Some(object)) => {
                if object["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] {
                    return failure(409, "Conflict");
                }
                success(&self.store(&path, body))
            }
            (Method::PATCH, _) => {
                let path = path.strip_suffix("/status").unwrap();
                let Some(mut object) = self.0.objects.lock().get(path).cloned() else {
                    return failure(404, "NotFound");
                };
                assert!(body.get("spec").is_none(), "{body}");
                merge(&mut object, body);
                success(&self.store(path, object))
            }
            other => panic!("{path}: {other:?}"),
        }
    }
}

/// A strategic merge, as far as nodes need one.
fn merge(object: &mut Value, patch: Value) {
    match (object, patch) {
        (Value::Object(object), Value::Object(patch)) => {
            for (key, value) in patch {
                match value {
                    Value::Null => drop(object.remove(&key)),
                    value => merge(object.entry(key).or_insert(Value::Null), value),
                }
            }
        }
        (Value::Array(object), Value::Array(patch))
            if patch.iter().all(|item| item.get("type").is_some()) =>
        {
            for item in patch {
                match object
                    .iter_mut()
                    .find(|known| known["type"] == item["type"])
                {
                    Some(known) => *known = item,
                    None => object.push(item),
                }
            }
        }
        (object, Value::Array(patch)) => {
            let items = patch
                .into_iter()
                .filter(|item| item.get("$patch").is_none());
            *object = Value::Array(items.collect());
        }
        (object, patch) => *object = patch,
    }
}

fn success(object: &Value) -> Answer {
    Response::new(Full::from(object.to_string()).boxed_unsync())
}

fn failure(code: u16, reason: &str) -> Answer {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {},
        "status": "Failure", "message": reason, "reason": reason, "code": code,
    });
    let mut answer = success(&status);
    *answer.status_mut() = code.try_into().unwrap();
    answer
}

/// What the test says of the node.
#[derive(Default)]
struct Facts {
    problems: Mutex<Vec<String>>,
    volumes: Mutex<Option<Vec<String>>>,
    shutting_down: watch::Sender<bool>,
}

impl Findings for Facts {
    fn problems(&self) -> Vec<String> {
        self.problems.lock().clone()
    }

    fn shutting_down(&self) -> watch::Receiver<bool> {
        self.shutting_down.subscribe()
    }

    fn pressure(&self) -> Pressure {
        Pressure::default()
    }

    fn volumes_in_use(&self) -> Option<Vec<String>> {
        self.volumes.lock().clone()
    }
}

/// The part of a kubelet that keeps its node's object.
struct Reporting {
    api: Api,
    node: Node,
    findings: Arc<Facts>,
    /// How often connections were to be made anew.
    cuts: Arc<AtomicUsize>,
    cancel: CancellationToken,
    tasks: JoinSet<()>,
    object: watch::Receiver<Option<Arc<NodeObject>>>,
}

fn start(api: &Api, node: &Node, options: NodeOptions) -> Reporting {
    let timeout = Duration::from_secs(120);
    let cri = CriClient::from_channels(node.runtime.channel(), node.runtime.channel(), timeout);
    let (findings, cuts) = (Arc::<Facts>::default(), Arc::<AtomicUsize>::default());
    let cancel = CancellationToken::new();
    let follower = NodeWatch::new(api.client(), NAME);
    let object = follower.subscribe();
    let counted = Arc::clone(&cuts);
    let on_repeated_failure = Arc::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let lease = LeaseKeeper::new(
        api.client(),
        NAME,
        options.lease_duration,
        follower.subscribe(),
        on_repeated_failure.clone(),
    );
    let reporter = NodeReporter::new(ReporterParts {
        client: api.client(),
        node_name: NAME.to_owned(),
        options,
        root_dir: node.dir.path().to_owned(),
        readiness: Arc::new(RuntimeReadiness::new(cri.clone())),
        cri,
        findings: Arc::clone(&findings) as _,
        node: follower.subscribe(),
        on_repeated_failure,
        events: node.events.clone(),
    });
    let mut tasks = JoinSet::new();
    tasks.spawn(follower.run(cancel.clone()));
    tasks.spawn(reporter.run(cancel.clone()));
    tasks.spawn(lease.run(cancel.clone()));
    Reporting {
        api: api.clone(),
        node: node.clone(),
        findings,
        cuts,
        cancel,
        tasks,
        object,
    }
}

impl Reporting {
    async fn until_ready(&self, status: &str) {
        let what = format!("Ready to be {status}");
        until(&what, 40 * SECOND, || {
            self.api.condition("Ready")["status"] == status
        })
        .await;
    }

    async fn stop(mut self) {
        self.cancel.cancel();
        while let Some(task) = self.tasks.join_next().await {
            task.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_registers_with_its_status_and_renews_its_lease() {
    let (api, node) = (Api::new(), Node::new());
    let options = NodeOptions {
        labels: [("tier".to_owned(), "web".to_owned())].into(),
        provider_id: "cloud://1".to_owned(),
        ..NodeOptions::default()
    };
    let reporting = start(&api, &node, options);
    reporting.until_ready("True").await;
    let object = api.node();
    assert_eq!(object["metadata"]["labels"]["tier"], "web");
    assert_eq!(object["metadata"]["labels"]["kubernetes.io/hostname"], NAME);
    assert_eq!(object["spec"]["providerID"], "cloud://1");
    let status = &object["status"];
    assert_eq!(
        status["addresses"],
        json!([
            {"type": "InternalIP", "address": NAME},
            {"type": "Hostname", "address": NAME},
        ])
    );
    for resource in ["cpu", "memory", "ephemeral-storage", "pods"] {
        assert!(status["capacity"][resource].is_string(), "{resource}");
        assert!(status["allocatable"][resource].is_string(), "{resource}");
    }
    assert_eq!(status["daemonEndpoints"]["kubeletEndpoint"]["Port"], 10250);
    let info = &status["nodeInfo"];
    assert!(
        info["kubeletVersion"]
            .as_str()
            .unwrap()
            .starts_with("v1.36.")
    );
    assert!(
        info["containerRuntimeVersion"]
            .as_str()
            .unwrap()
            .contains("://")
    );
    let names = |image: &Value| image["names"].to_string();
    let images = status["images"].as_array().unwrap();
    assert!(
        images
            .iter()
            .any(|image| names(image).contains("busybox:1")),
        "{images:?}"
    );
    assert!(status["runtimeHandlers"].is_array(), "{status}");
    assert_eq!(
        status["declaredFeatures"],
        json!([
            "InPlacePodLevelResourcesVerticalScaling",
            "InPlacePodVerticalScalingInitContainers",
            "RestartAllContainersOnContainerExits"
        ])
    );
    let ready = api.condition("Ready");
    assert_eq!(ready["reason"], "KubeletReady");
    assert_eq!(
        api.condition("MemoryPressure")["reason"],
        "KubeletHasSufficientMemory"
    );

    until("a lease", 20 * SECOND, || api.lease().is_object()).await;
    let lease = api.lease();
    assert_eq!(lease["spec"]["holderIdentity"], NAME);
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 40);
    let owner = &lease["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["uid"]),
        (&json!("Node"), &object["metadata"]["uid"])
    );
    let renewed = lease["spec"]["renewTime"].clone();
    until("another renewal", 15 * SECOND, || {
        api.lease()["spec"]["renewTime"] != renewed
    })
    .await;
    let seen = reporting.object.borrow().clone().unwrap();
    assert_eq!(seen.metadata.name.as_deref(), Some(NAME));
    reporting.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_quiet_node_asks_no_more_than_upstream_does() {
    let (api, node) = (Api::new(), Node::new());
    let reporting = start(&api, &node, NodeOptions::default());
    reporting.until_ready("True").await;
    sleep(400 * SECOND).await;
    api.0.requests.lock().clear();
    sleep(3600 * SECOND).await;
    let patches = api.count("PATCH");
    assert!(
        (11..=13).contains(&patches),
        "{patches} status patches an hour"
    );
    let renewals = api.count("PUT");
    assert!(
        (340..=361).contains(&renewals),
        "{renewals} renewals an hour"
    );
    // Each lasts five to ten minutes.
    let watches = api.count("WATCH");
    assert!(watches <= 12, "{watches} watches an hour");
    let others = api.0.requests.lock().len() - patches - renewals - watches;
    assert_eq!(others, 0, "{:?}", api.0.requests.lock());
    reporting.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_there_before_and_what_others_say_stays() {
    let (api, node) = (Api::new(), Node::new());
    let path = format!("/api/v1/nodes/{NAME}");
    api.store(
        &path,
        json!({
            "metadata": {"name": NAME, "labels": {"tier": "db", "kubernetes.io/arch": "z"}},
            "spec": {"unschedulable": true, "podCIDR": "10.1.0.0/24"},
            "status": {
                "capacity": {"example.com/gpu": "2", "hugepages-3Mi": "0"},
                "conditions": [{"type": "NetworkUnavailable", "status": "False"}],
                "volumesAttached": [{"name": "v", "devicePath": ""}],
            },
        }),
    );
    let reporting = start(&api, &node, NodeOptions::default());
    reporting.until_ready("True").await;
    let object = api.node();
    assert_eq!(object["metadata"]["labels"]["tier"], "db");
    assert_ne!(object["metadata"]["labels"]["kubernetes.io/arch"], "z");
    assert_eq!(object["spec"]["unschedulable"], true);
    let status = &object["status"];
    assert_eq!(status["allocatable"]["example.com/gpu"], "2");
    assert_eq!(status["capacity"].get("hugepages-3Mi"), None);
    assert_eq!(status["volumesAttached"][0]["name"], "v");
    assert_eq!(api.condition("NetworkUnavailable")["status"], "False");

    // The node controller gave the node up; the kubelet says that it is there.
    let mut lost = object.clone();
    let conditions = lost["status"]["conditions"].as_array_mut().unwrap();
    conditions.last_mut().unwrap()["status"] = json!("Unknown");
    api.store(&path, lost);
    until("Ready again", 15 * SECOND, || {
        api.condition("Ready")["status"] == "True"
    })
    .await;
    reporting.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_says_why_it_is_not_ready() {
    let (api, node) = (Api::new(), Node::new());
    let reporting = start(&api, &node, NodeOptions::default());
    reporting.until_ready("True").await;
    let since = api.condition("Ready")["lastTransitionTime"].clone();
    sleep(2 * SECOND).await;
    *reporting.findings.problems.lock() = vec!["PLEG is not healthy: for long".to_owned()];
    *reporting.findings.volumes.lock() = Some(vec!["kubernetes.io/csi/a^b".to_owned()]);
    reporting.until_ready("False").await;
    let ready = api.condition("Ready");
    assert_eq!(ready["reason"], "KubeletNotReady");
    assert_eq!(ready["message"], "PLEG is not healthy: for long");
    assert_ne!(ready["lastTransitionTime"], since);
    assert_eq!(
        api.node()["status"]["volumesInUse"],
        json!(["kubernetes.io/csi/a^b"])
    );
    reporting.findings.problems.lock().clear();
    reporting.until_ready("True").await;
    reporting.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_is_told_at_once() {
    let (api, node) = (Api::new(), Node::new());
    let reporting = start(&api, &node, NodeOptions::default());
    reporting.until_ready("True").await;
    for is_under_way in [true, false] {
        sleep(3 * SECOND).await;
        let problem = is_under_way.then(|| "node is shutting down".to_owned());
        *reporting.findings.problems.lock() = problem.into_iter().collect();
        reporting.findings.shutting_down.send_replace(is_under_way);
        let status = if is_under_way { "False" } else { "True" };
        until("the node's status", SECOND, || {
            api.condition("Ready")["status"] == status
        })
        .await;
    }
    reporting.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_in_trouble_is_asked_again() {
    let (api, node) = (Api::new(), Node::new());
    *api.0.trouble.lock() = Some((500, 30));
    let reporting = start(&api, &node, NodeOptions::default());
    until("a ready node", 300 * SECOND, || {
        api.condition("Ready")["status"] == "True"
    })
    .await;
    until("a lease", 60 * SECOND, || api.lease().is_object()).await;

    *api.0.trouble.lock() = Some((SILENCE, 1000));
    let renewed = api.lease()["spec"]["renewTime"].clone();
    sleep(60 * SECOND).await;
    assert!(
        reporting.cuts.load(Ordering::Relaxed) > 0,
        "connections are made anew"
    );
    *api.0.trouble.lock() = None;
    until("a renewal", 20 * SECOND, || {
        api.lease()["spec"]["renewTime"] != renewed
    })
    .await;
    assert!(!reporting.node.runtime.sandboxes().iter().any(|_| true));
    reporting.stop().await;
}
