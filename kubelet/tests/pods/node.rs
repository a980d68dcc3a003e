//! A kubelet on a fake runtime, and the test's means to give it pods.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cri_proto::runtime::v1::PodSandboxState;
use fake_runtime::FakeRuntime;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use kubelet::{
    kubelet::{
        Kubelet, KubeletParts, SourcesReady, options::KubeletOptions, pod_runner::PodRunner,
    },
    sources::update::{PodOperation, PodUpdate, Source},
};
use kubelet_api_client::{
    events::EventRecorder,
    objects::{NoObjects, Objects},
};
use kubelet_cri_client::CriClient;
use kubelet_device_manager::DeviceManager;
use kubelet_garbage_collector::ImageGcOptions;
use kubelet_host::local_node::LocalNode;
use kubelet_machine_info::{Core, MachineInfo};
use kubelet_node::shutdown::{Logind, login_manager::LoginManager};
use kubelet_resource_managers::ResourceManagers;
use kubelet_runtime::{RuntimeOptions, dns::DnsOptions};
use serde_json::{Value, json};
use test_run::mounts::MountDir;
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

/// Capacity of the channel of updates to the kubelet.
const UPDATES: usize = 50;
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const IMAGE: &str = "busybox:1";

/// The state that survives a kubelet restart: the runtime and the node's directories.
#[derive(Clone)]
pub(crate) struct Node {
    pub runtime: FakeRuntime,
    pub dir: Arc<MountDir>,
    /// The objects of the API server; none by default.
    pub objects: Arc<dyn Objects>,
    /// The recorder of events; they are discarded by default.
    pub events: EventRecorder,
}

impl Node {
    /// A node without an API server.
    pub(crate) fn new() -> Self {
        Self::with_objects(Arc::new(NoObjects))
    }

    /// A node whose API server serves `objects`.
    pub(crate) fn with_objects(objects: Arc<dyn Objects>) -> Self {
        let runtime = FakeRuntime::new();
        runtime.add_image(IMAGE);
        Self {
            runtime,
            dir: Arc::new(MountDir::new().unwrap()),
            objects,
            events: EventRecorder::default(),
        }
    }

    /// IDs of the ready sandboxes.
    pub(crate) fn ready_sandboxes(&self) -> Vec<String> {
        let sandboxes = self.runtime.sandboxes().into_iter();
        let ready = sandboxes.filter(|s| s.state == PodSandboxState::SandboxReady);
        ready.map(|sandbox| sandbox.id).collect()
    }

    pub(crate) fn options(&self) -> KubeletOptions {
        KubeletOptions {
            node: LocalNode {
                name: "node".to_owned(),
                ips: vec!["192.0.2.1".parse().unwrap()],
                root_dir: self.dir.path().join("kubelet"),
                pod_logs_dir: self.dir.path().join("logs"),
                ..LocalNode::default()
            },
            runtime: RuntimeOptions {
                dns: DnsOptions {
                    resolv_conf: None,
                    ..DnsOptions::default()
                },
                ..RuntimeOptions::default()
            },
            // The file system that the fake runtime reports is the machine's.
            image_gc: ImageGcOptions {
                high_threshold_percent: 100,
                ..ImageGcOptions::default()
            },
            ..KubeletOptions::default()
        }
    }

    pub(crate) fn kubelet(
        &self,
        options: KubeletOptions,
        sources_ready: SourcesReady,
        cancel: &CancellationToken,
    ) -> (Kubelet, PodRunner) {
        let timeout = options.cri.request_timeout;
        let cri = CriClient::from_channels(self.runtime.channel(), self.runtime.channel(), timeout);
        let managers = self.managers(&options);
        let parts = KubeletParts {
            options,
            cri,
            objects: Arc::clone(&self.objects),
            membership: None,
            managers,
            events: self.events.clone(),
            sources_ready,
        };
        Kubelet::new(parts, cancel)
    }

    /// The managers on a machine with four CPUs.
    pub(crate) fn managers(&self, options: &KubeletOptions) -> Arc<ResourceManagers> {
        let core = |cpu| Core {
            core_id: cpu,
            thread_ids: vec![cpu],
            ..Core::default()
        };
        let machine = MachineInfo {
            topology: vec![kubelet_machine_info::Node {
                memory: 8 << 30,
                cores: (0..4).map(core).collect(),
                ..kubelet_machine_info::Node::default()
            }],
            ..MachineInfo::default()
        };
        let root_dir = &options.node.root_dir;
        let managers = ResourceManagers::start(&options.managers, &machine, root_dir).unwrap();
        let nodes = [0].into_iter().collect();
        let devices = DeviceManager::start(&root_dir.join("device-plugins"), nodes);
        Arc::new(managers.with_devices(devices))
    }

    pub(crate) fn start(&self) -> Running {
        self.start_with(self.options())
    }

    pub(crate) fn start_with(&self, options: KubeletOptions) -> Running {
        self.start_under(options, Logind::default())
    }

    /// Starts a kubelet on a node whose shutdown `login_manager` controls.
    pub(crate) fn start_under(
        &self,
        options: KubeletOptions,
        login_manager: impl LoginManager + 'static,
    ) -> Running {
        let ready = Arc::new(AtomicBool::new(true));
        let cancel = CancellationToken::new();
        let (updates, receiver) = mpsc::channel(UPDATES);
        let are_taken = {
            let (ready, updates) = (Arc::clone(&ready), updates.clone());
            // As with real sources, the last update is taken before its pods are processed.
            move || ready.load(Ordering::Relaxed) && updates.capacity() == UPDATES
        };
        let (kubelet, pods) = self.kubelet(options, Arc::new(are_taken), &cancel);
        let devices = kubelet.device_manager().unwrap().clone();
        let listener = devices.bind().unwrap();
        let task = tokio::spawn({
            let (kubelet, cancel) = (kubelet.clone(), cancel.clone());
            async move {
                let plugins = kubelet.run_plugin_manager(cancel.clone());
                let devices = devices.serve(listener, cancel);
                let run = pods.run_under(&login_manager, receiver);
                tokio::join!(run, plugins, devices);
            }
        });
        Running {
            kubelet,
            updates,
            ready,
            cancel,
            task,
        }
    }
}

/// A running kubelet.
pub(crate) struct Running {
    pub kubelet: Kubelet,
    pub ready: Arc<AtomicBool>,
    updates: mpsc::Sender<PodUpdate>,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    async fn send(&self, operation: PodOperation, pods: Vec<Pod>) {
        let update = PodUpdate {
            pods: pods.into_iter().map(Arc::new).collect(),
            operation,
            source: Source::File,
        };
        self.updates.send(update).await.unwrap();
    }

    pub(crate) async fn add(&self, pod: Pod) {
        self.send(PodOperation::Add, vec![pod]).await;
    }

    pub(crate) async fn add_all(&self, pods: Vec<Pod>) {
        self.send(PodOperation::Add, pods).await;
    }

    pub(crate) async fn update(&self, pod: Pod) {
        self.send(PodOperation::Update, vec![pod]).await;
    }

    pub(crate) async fn remove(&self, pod: Pod) {
        self.send(PodOperation::Remove, vec![pod]).await;
    }

    /// Stops the kubelet; the pods keep running.
    pub(crate) async fn stop(self) {
        self.cancel.cancel();
        self.task.await.unwrap();
    }

    pub(crate) fn status(&self, name: &str) -> PodStatus {
        let pods = self.kubelet.pods();
        let pod = pods
            .into_iter()
            .find(|pod| pod.metadata.name.as_deref() == Some(name));
        pod.and_then(|pod| pod.status).unwrap_or_default()
    }

    pub(crate) fn phase(&self, name: &str) -> String {
        self.status(name).phase.unwrap_or_default()
    }

    pub(crate) fn container(&self, name: &str) -> ContainerStatus {
        let statuses = self.status(name).container_statuses.unwrap_or_default();
        statuses.into_iter().next().unwrap_or_default()
    }

    /// The waiting reason of the pod's first container.
    pub(crate) fn waiting(&self, name: &str) -> String {
        let state = self.container(name).state.unwrap_or_default();
        state.waiting.and_then(|w| w.reason).unwrap_or_default()
    }

    /// Waits until the pod `name` is in `phase`; panics after `limit`.
    pub(crate) async fn until_phase(&self, name: &str, phase: &str, limit: Duration) {
        let what = format!("{name} to be {phase}: {:#?}", self.status(name));
        until(&what, limit, || self.phase(name) == phase).await;
    }
}

/// Waits until a condition holds; panics after `limit`.
pub(crate) async fn until(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    // Short enough for short-lived states; many minutes in short steps cost seconds of processor time.
    let interval = (limit / 10_000).max(Duration::from_millis(5));
    while !holds() {
        assert!(Instant::now() < deadline, "waited {limit:?} for {what}");
        sleep(interval).await;
    }
}

/// A static pod with one container `c`; `spec` is merged into its spec.
pub(crate) fn pod(name: &str, uid: &str, spec: Value) -> Pod {
    let mut pod = json!({
        "metadata": {
            "name": name, "namespace": "default", "uid": uid,
            "annotations": {
                "kubernetes.io/config.source": "file", "kubernetes.io/config.hash": uid
            }
        },
        "spec": {
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "containers": [{"name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent"}]
        }
    });
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    serde_json::from_value(pod).unwrap()
}
