//! The node's cluster: its API server, the objects that pods need, and faults of the server.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use kubelet::sources::update::{PodOperation, Source};
use kubelet_host::machine::Machine;
use kubelet_pod_spec::identity::{CONFIG_MIRROR, PodUid};
use parking_lot::Mutex;
use serde_json::{Value, json};
use test_api_server::{ApiError, ApiServer, Caller, Record, Verdict};
use test_run::random::Random;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::{
    checks::summary,
    driver::{EPOCH, Simulation},
    history,
    simulated_pod::SimulatedPod,
    trace::Trace,
};

/// The node's name.
pub(crate) const NODE: &str = "node";
const NAMESPACE: &str = "default";
/// A variable whose value comes from a secret.
const VARIABLE: &str = "FROM_SECRET";

/// The API server of the node.
pub(crate) struct Cluster {
    pub server: ApiServer,
    pub node: watch::Sender<Option<Arc<Node>>>,
    /// When the server's last faults ended; `None` while it fails by chance.
    pub well_since: Option<Instant>,
    /// Objects that pods wait for, and when each is created.
    due: Vec<(Instant, &'static str, Value)>,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let since_epoch = Duration::from_secs(EPOCH.unsigned_abs());
        let server = ApiServer::start_at(Some(since_epoch)).unwrap();
        let resources = json!({
            "cpu": Machine::read().cpus.to_string(), "memory": "64Gi", "pods": "10000",
        });
        let node = json!({
            "metadata": {"name": NODE},
            "status": {"capacity": resources, "allocatable": resources},
        });
        let node = server.create("v1", "nodes", "", node).unwrap();
        Self {
            server,
            node: watch::Sender::new(Some(Arc::new(serde_json::from_value(node).unwrap()))),
            well_since: None,
            due: Vec::new(),
        }
    }

    /// Makes requests of the node fail by chance until [`Self::be_well`].
    pub(crate) fn fail_by_chance(&self, random: Random, trace: Trace) {
        let random = Mutex::new(random);
        self.server.intercept(Some(Arc::new(move |record| {
            let verdict = meet(record, &mut random.lock());
            let what = format!("{} {}: {verdict:?}", record.verb, record.path);
            trace.note(what, &[]);
            verdict
        })));
    }

    /// Loses the answers of the node's next `requests` writes; the writes take effect.
    pub(crate) fn lose(&self, requests: usize) {
        let lost = AtomicUsize::new(0);
        self.server.intercept(Some(Arc::new(move |record| {
            let writes = !matches!(record.verb, "get" | "list" | "watch");
            if writes && lost.fetch_add(1, Ordering::Relaxed) < requests {
                Verdict::Lose
            } else {
                Verdict::Pass
            }
        })));
    }

    /// Ends all faults.
    pub(crate) fn be_well(&mut self) {
        self.server.intercept(None);
        self.well_since = Some(Instant::now());
    }

    /// Performs a user's operation on a pod.
    pub(crate) async fn tell(&self, operation: PodOperation, pod: &Pod) {
        let name = pod.metadata.name.as_deref().unwrap();
        match operation {
            PodOperation::Add => {
                let pod = serde_json::to_value(pod).unwrap();
                self.server.restore("v1", "pods", NAMESPACE, pod).unwrap();
                self.server.bind(NAMESPACE, name, NODE).unwrap();
            }
            PodOperation::Update => self.change(name, pod).await,
            PodOperation::Delete => self.delete(name, pod.metadata.deletion_grace_period_seconds),
            PodOperation::Remove => self.delete(name, Some(0)),
            PodOperation::Restore | PodOperation::Reconcile => {}
        }
    }

    /// The pod may be gone already if the kubelet finished its termination.
    fn delete(&self, name: &str, grace: Option<i64>) {
        let options = json!({"gracePeriodSeconds": grace});
        match self.server.delete("v1", "pods", NAMESPACE, name, &options) {
            Err(error) if error.code != 404 => panic!("{name}: {error}"),
            _ => {}
        }
    }

    async fn change(&self, name: &str, pod: &Pod) {
        let Ok(mut now) = self.server.get("v1", "pods", NAMESPACE, name) else {
            return;
        };
        let wanted = serde_json::to_value(pod).unwrap();
        now["metadata"]["labels"] = wanted["metadata"]["labels"].clone();
        let containers = wanted["spec"]["containers"].as_array().unwrap();
        for (index, container) in containers.iter().enumerate() {
            now["spec"]["containers"][index]["image"] = container["image"].clone();
        }
        self.server
            .put("v1", "pods", NAMESPACE, now.clone())
            .unwrap();
        let client = self.server.client(Caller::admin());
        let (api, params) = (
            Api::<Pod>::namespaced(client, NAMESPACE),
            PatchParams::default(),
        );
        let debug = &wanted["spec"]["ephemeralContainers"];
        if *debug != now["spec"]["ephemeralContainers"] {
            let patch = Patch::Strategic(json!({"spec": {"ephemeralContainers": debug}}));
            let patched = api.patch_ephemeral_containers(name, &params, &patch).await;
            patched.unwrap();
        }
        let requests = |spec: &Value| spec["containers"][0]["resources"]["requests"].clone();
        if requests(&wanted["spec"]) != requests(&now["spec"]) {
            let (container, requests) = (&containers[0]["name"], requests(&wanted["spec"]));
            let container = json!({"name": container, "resources": {"requests": requests}});
            let patch = Patch::Strategic(json!({"spec": {"containers": [container]}}));
            api.patch_resize(name, &params, &patch).await.unwrap();
        }
    }

    /// Gives a pod a variable from a secret and a volume from a config map; both objects are
    /// created after `after`.
    pub(crate) fn give_needs(&mut self, pod: &mut Pod, after: Duration) {
        let name = pod.metadata.name.clone().unwrap();
        let mut given = serde_json::to_value(&*pod).unwrap();
        let container = &mut given["spec"]["containers"][0];
        container["env"] = json!([{
            "name": VARIABLE, "valueFrom": {"secretKeyRef": {"name": name, "key": "key"}}
        }]);
        let mut mounts = container["volumeMounts"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        mounts.push(json!({"name": "settings", "mountPath": "/settings"}));
        container["volumeMounts"] = json!(mounts);
        let spec = &mut given["spec"];
        let mut volumes = spec["volumes"].as_array().cloned().unwrap_or_default();
        volumes.push(json!({"name": "settings", "configMap": {"name": name}}));
        spec["volumes"] = json!(volumes);
        *pod = serde_json::from_value(given).unwrap();
        let metadata = json!({"name": name});
        let secret = json!({"metadata": metadata, "stringData": {"key": name}});
        let settings = json!({"metadata": metadata, "data": {"key": name}});
        let at = Instant::now() + after;
        self.due.push((at, "secrets", secret));
        self.due.push((at, "configmaps", settings));
        self.bring_due();
    }

    /// Creates the objects that are due.
    pub(crate) fn bring_due(&mut self) {
        let now = Instant::now();
        for (_, plural, object) in self.due.extract_if(.., |(at, ..)| *at <= now) {
            self.server.create("v1", plural, NAMESPACE, object).unwrap();
        }
    }
}

/// The verdict on a request of the node.
fn meet(record: &Record, random: &mut Random) -> Verdict {
    if !record.user.starts_with("system:node:") || !random.permille(40) {
        return Verdict::Pass;
    }
    match random.below(10) {
        0 => Verdict::Refuse(ApiError::internal("trouble")),
        1 => Verdict::Refuse(ApiError::unavailable()),
        2 => Verdict::Refuse(ApiError::too_many_requests("try again later")),
        3..=4 => Verdict::Break,
        5..=6 => Verdict::Lose,
        7..=8 => Verdict::Delay(random.millis(10, 4000)),
        _ => Verdict::Delay(random.millis(10_000, 60_000)),
    }
}

impl Simulation {
    /// Ends watches, or takes the API server away for a while; it may then have compacted the
    /// changes.
    pub(crate) async fn trouble(&mut self) {
        let Some(cluster) = &self.node.cluster else {
            return;
        };
        let server = cluster.server.clone();
        if self.random.permille(300) {
            server.end_watches();
            return;
        }
        server.set_available(false);
        sleep(self.random.millis(0, 5000)).await;
        self.add().await;
        self.remove().await;
        if self.random.permille(500) {
            server.compact();
        }
        server.set_available(true);
    }
}

/// The first difference between the API server and the node.
pub(crate) fn problem(simulation: &Simulation) -> Option<String> {
    let cluster = simulation.node.cluster.as_ref()?;
    let pods = cluster.server.list("v1", "pods", NAMESPACE).unwrap();
    let pods = pods.into_iter().map(|pod| {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        (pod.metadata.name.clone().unwrap(), pod)
    });
    let mut pods: BTreeMap<String, Pod> = pods.collect();
    for subject in &simulation.subjects {
        if !subject.present || (subject.deleting && subject.source == Source::Api) {
            continue;
        }
        let name = subject.pod.metadata.name.as_deref().unwrap();
        let uid = PodUid::from(subject.uid.as_str());
        let status = simulation.kubelet.kubelet.status(&uid);
        let problem = match pods.remove(name) {
            None => Some("the API server does not have it".to_owned()),
            Some(pod) => identity(subject, &pod)
                .or_else(|| difference(&pod.status.unwrap_or_default(), status.as_deref()?))
                .or_else(|| lacks_value(simulation, subject)),
        };
        if let Some(problem) = problem {
            return Some(format!(
                "{} of {}: {problem}; its status: {:?}, before:\n{}",
                subject.uid,
                subject.source.as_str(),
                status.as_deref().map(summary),
                history::describe(simulation, subject)
            ));
        }
    }
    let of_nobody = pods.into_keys().next();
    of_nobody.map(|name| format!("{name} is at the API server and nowhere else"))
}

/// Reports a pod that is neither the subject nor its mirror.
fn identity(subject: &SimulatedPod, pod: &Pod) -> Option<String> {
    let told = match subject.source {
        Source::Api => pod.metadata.uid.as_deref(),
        _ => {
            let annotations = pod.metadata.annotations.as_ref();
            annotations.and_then(|all| all.get(CONFIG_MIRROR).map(String::as_str))
        }
    };
    (told != Some(&subject.uid)).then(|| format!("the API server has {told:?}"))
}

fn difference(told: &PodStatus, status: &PodStatus) -> Option<String> {
    let (told, status) = (summary(told), summary(status));
    (told != status).then(|| format!("the API server has {told:?}, and it is {status:?}"))
}

/// Reports a container that runs without its value from the secret.
fn lacks_value(simulation: &Simulation, subject: &SimulatedPod) -> Option<String> {
    let container = &subject.spec().containers[0];
    container.env.as_ref()?;
    let running = simulation.node.runtime.running(&container.name);
    let run = running.first()?;
    let mut variables = run.config.envs.iter();
    let given = variables.find(|variable| variable.key == VARIABLE);
    let given = given.map(|variable| String::from_utf8_lossy(&variable.value));
    let wanted = subject.pod.metadata.name.as_deref();
    (given.as_deref() != wanted).then(|| format!("{} has {given:?} of its secret", container.name))
}
