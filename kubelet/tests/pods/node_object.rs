//! The node's object, status and lease at an API server in memory.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::{api::core::v1::Node as NodeObject, apimachinery::pkg::api::resource::Quantity};
use kubelet_cri_client::{CriClient, readiness::RuntimeReadiness};
use kubelet_node::{
    lease::LeaseKeeper,
    options::NodeOptions,
    reporter::{NodeReporter, ReporterParts},
    status_source::{DeviceResources, NodeStatusSource, Pressure},
    watch::NodeWatch,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use test_api_server::{ApiError, ApiServer, Caller, Verdict};
use tokio::{sync::watch, task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::node::{Node, SECOND, until};

/// The name is an IP address, so no name resolution is necessary.
const NAME: &str = "192.0.2.9";

/// The node and its lease at the test's API server.
#[derive(Clone)]
struct Api(ApiServer);

impl Api {
    fn new() -> Self {
        Self(ApiServer::start().unwrap())
    }

    fn client(&self) -> kube::Client {
        self.0.client(Caller::node(NAME))
    }

    fn node(&self) -> Value {
        self.0.get("v1", "nodes", "", NAME).unwrap_or_default()
    }

    fn lease(&self) -> Value {
        let (version, namespace) = ("coordination.k8s.io/v1", "kube-node-lease");
        let lease = self.0.get(version, "leases", namespace, NAME);
        lease.unwrap_or_default()
    }

    fn condition(&self, kind: &str) -> Value {
        let node = self.node();
        let conditions = node["status"]["conditions"].as_array().into_iter();
        let mut conditions = conditions.flatten();
        let found = conditions.find(|condition| condition["type"] == kind);
        found.cloned().unwrap_or_default()
    }

    /// The number of requests with this verb.
    fn count(&self, verb: &str) -> usize {
        let requests = self.0.requests();
        requests.iter().filter(|one| one.verb == verb).count()
    }

    /// The next `requests` requests get `verdict`.
    fn trouble(&self, verdict: Verdict, requests: usize) {
        let met = AtomicUsize::new(0);
        self.0.intercept(Some(Arc::new(move |_| {
            if met.fetch_add(1, Ordering::Relaxed) < requests {
                verdict.clone()
            } else {
                Verdict::Pass
            }
        })));
    }
}

/// The test's view of the node's state.
#[derive(Default)]
struct FakeStatusSource {
    problems: Mutex<Vec<String>>,
    volumes: Mutex<Option<Vec<String>>>,
    devices: Mutex<DeviceResources>,
    is_new_machine: AtomicBool,
    shutting_down: watch::Sender<bool>,
}

impl NodeStatusSource for FakeStatusSource {
    fn problems(&self) -> Vec<String> {
        self.problems.lock().clone()
    }

    fn shutting_down(&self) -> watch::Receiver<bool> {
        self.shutting_down.subscribe()
    }

    fn pressure(&self) -> Pressure {
        Pressure::default()
    }

    fn devices(&self) -> DeviceResources {
        self.devices.lock().clone()
    }

    fn is_new_machine(&self) -> bool {
        self.is_new_machine.load(Ordering::Relaxed)
    }

    fn registered(&self) {
        self.is_new_machine.store(false, Ordering::Relaxed);
    }

    fn volumes_in_use(&self) -> Option<Vec<String>> {
        self.volumes.lock().clone()
    }
}

/// The part of the kubelet that maintains the node's object.
struct Reporting {
    api: Api,
    node: Node,
    status_source: Arc<FakeStatusSource>,
    /// How often connections were reset.
    cuts: Arc<AtomicUsize>,
    cancel: CancellationToken,
    tasks: JoinSet<()>,
    object: watch::Receiver<Option<Arc<NodeObject>>>,
}

fn start(api: &Api, node: &Node, options: NodeOptions) -> Reporting {
    start_with(api, node, options, FakeStatusSource::default())
}

fn start_with(
    api: &Api,
    node: &Node,
    options: NodeOptions,
    status_source: FakeStatusSource,
) -> Reporting {
    let timeout = Duration::from_secs(120);
    let cri = CriClient::from_channels(node.runtime.channel(), node.runtime.channel(), timeout);
    let (status_source, cuts) = (Arc::new(status_source), Arc::<AtomicUsize>::default());
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
        status_source: Arc::clone(&status_source) as _,
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
        status_source,
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
async fn a_restart_does_not_make_a_ready_node_unready() {
    let (api, node) = (Api::new(), Node::new());
    let reporting = start(&api, &node, NodeOptions::default());
    reporting.until_ready("True").await;
    reporting.stop().await;

    // What must be done at each start takes a moment.
    let status_source = FakeStatusSource::default();
    let problem = "CSINode is not yet initialized".to_owned();
    status_source.problems.lock().push(problem.clone());
    let reporting = start_with(&api, &node, NodeOptions::default(), status_source);
    for _ in 0..100 {
        sleep(SECOND / 100).await;
        assert_eq!(api.condition("Ready")["status"], "True");
    }
    reporting.status_source.problems.lock().clear();
    api.0.forget_requests();
    until("a report", SECOND, || api.count("patch") > 0).await;
    assert_eq!(api.condition("Ready")["status"], "True");
    reporting.stop().await;

    // A problem that stays is reported.
    let status_source = FakeStatusSource::default();
    status_source.problems.lock().push(problem.clone());
    let reporting = start_with(&api, &node, NodeOptions::default(), status_source);
    reporting.until_ready("False").await;
    assert_eq!(api.condition("Ready")["message"], problem);
    reporting.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_quiet_node_asks_no_more_than_upstream_does() {
    let (api, node) = (Api::new(), Node::new());
    let reporting = start(&api, &node, NodeOptions::default());
    reporting.until_ready("True").await;
    sleep(400 * SECOND).await;
    api.0.forget_requests();
    sleep(3600 * SECOND).await;
    let patches = api.count("patch");
    assert!(
        (11..=13).contains(&patches),
        "{patches} status patches an hour"
    );
    let renewals = api.count("update");
    assert!(
        (340..=361).contains(&renewals),
        "{renewals} renewals an hour"
    );
    // Each watch lasts five to ten minutes.
    let watches = api.count("watch");
    assert!(watches <= 12, "{watches} watches an hour");
    let all = api.0.requests();
    assert_eq!(all.len(), patches + renewals + watches, "{all:?}");
    reporting.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_there_before_and_what_others_say_stays() {
    let (api, node) = (Api::new(), Node::new());
    let before = json!({
        "metadata": {"name": NAME, "labels": {"tier": "db", "kubernetes.io/arch": "z"}},
        "spec": {"unschedulable": true, "podCIDR": "10.1.0.0/24"},
        "status": {
            "capacity": {"example.com/gpu": "2", "hugepages-3Mi": "0"},
            "conditions": [{"type": "NetworkUnavailable", "status": "False"}],
            "volumesAttached": [{"name": "v", "devicePath": ""}],
        },
    });
    api.0.create("v1", "nodes", "", before).unwrap();
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

    // The node controller marks the node as unknown; the kubelet corrects it.
    let lose = |node: &mut Value| {
        let conditions = node["status"]["conditions"].as_array_mut().unwrap();
        let mut conditions = conditions.iter_mut();
        let ready = conditions.find(|one| one["type"] == "Ready").unwrap();
        ready["status"] = json!("Unknown");
    };
    api.0.edit("v1", "nodes", "", NAME, lose).unwrap();
    until("Ready again", 15 * SECOND, || {
        api.condition("Ready")["status"] == "True"
    })
    .await;
    reporting.stop().await;
}

#[tokio::test(start_paused = true)]
async fn devices_of_an_earlier_machine_of_this_name_are_not_offered() {
    let (api, node) = (Api::new(), Node::new());
    let amounts = json!({"vendor.example/gpu": "8", "vendor.example/nic": "1"});
    let before = json!({
        "metadata": {"name": NAME},
        "status": {"capacity": amounts, "allocatable": amounts},
    });
    api.0.create("v1", "nodes", "", before).unwrap();
    let new_machine = FakeStatusSource {
        is_new_machine: AtomicBool::new(true),
        devices: Mutex::new(DeviceResources {
            capacity: [("vendor.example/nic".to_owned(), Quantity("2".to_owned()))].into(),
            allocatable: [("vendor.example/nic".to_owned(), Quantity("2".to_owned()))].into(),
        }),
        ..FakeStatusSource::default()
    };
    let reporting = start_with(&api, &node, NodeOptions::default(), new_machine);
    reporting.until_ready("True").await;
    let object = api.node();
    for list in ["capacity", "allocatable"] {
        let amounts = &object["status"][list];
        assert_eq!(amounts["vendor.example/gpu"], "0");
        assert_eq!(amounts["vendor.example/nic"], "2");
    }
    assert!(!reporting.status_source.is_new_machine());
    reporting.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_says_why_it_is_not_ready() {
    let (api, node) = (Api::new(), Node::new());
    let reporting = start(&api, &node, NodeOptions::default());
    reporting.until_ready("True").await;
    let since = api.condition("Ready")["lastTransitionTime"].clone();
    sleep(2 * SECOND).await;
    *reporting.status_source.problems.lock() = vec!["PLEG is not healthy: for long".to_owned()];
    *reporting.status_source.volumes.lock() = Some(vec!["kubernetes.io/csi/a^b".to_owned()]);
    reporting.until_ready("False").await;
    let ready = api.condition("Ready");
    assert_eq!(ready["reason"], "KubeletNotReady");
    assert_eq!(ready["message"], "PLEG is not healthy: for long");
    assert_ne!(ready["lastTransitionTime"], since);
    assert_eq!(
        api.node()["status"]["volumesInUse"],
        json!(["kubernetes.io/csi/a^b"])
    );
    reporting.status_source.problems.lock().clear();
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
        *reporting.status_source.problems.lock() = problem.into_iter().collect();
        reporting
            .status_source
            .shutting_down
            .send_replace(is_under_way);
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
    api.trouble(Verdict::Refuse(ApiError::internal("trouble")), 30);
    let reporting = start(&api, &node, NodeOptions::default());
    until("a ready node", 300 * SECOND, || {
        api.condition("Ready")["status"] == "True"
    })
    .await;
    until("a lease", 60 * SECOND, || api.lease().is_object()).await;

    api.trouble(Verdict::Delay(Duration::MAX), 1000);
    let renewed = api.lease()["spec"]["renewTime"].clone();
    sleep(60 * SECOND).await;
    assert!(
        reporting.cuts.load(Ordering::Relaxed) > 0,
        "no connection was cut"
    );
    api.0.intercept(None);
    until("a renewal", 20 * SECOND, || {
        api.lease()["spec"]["renewTime"] != renewed
    })
    .await;
    assert!(!reporting.node.runtime.sandboxes().iter().any(|_| true));
    reporting.stop().await;
}
