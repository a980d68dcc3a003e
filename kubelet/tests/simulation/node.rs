//! The node: the runtime, the directories, and the kubelet on them.

use std::{
    collections::BTreeMap,
    future::ready,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fake_runtime::FakeRuntime;
use k8s_openapi::api::core::v1::Pod;
use kubelet::{
    kubelet::{Kubelet, KubeletParts, Membership, options::KubeletOptions},
    node_pressure::MeasurementSource,
    sources::{
        apiserver::ApiSource,
        pod_config::{PodConfig, PodSet, SourceHandle},
        update::{PodOperation, PodUpdate, Source},
    },
};
use kubelet_api_client::{
    events::EventRecorder,
    objects::{ApiObjects, ApiObjectsParts, ChangeDetection, NoObjects},
};
use kubelet_cri_client::{CriClient, CriOptions};
use kubelet_garbage_collector::ImageGcOptions;
use kubelet_host::local_node::LocalNode;
use kubelet_image::ImageOptions;
use kubelet_node::capacity::CapacityOptions;
use kubelet_resource_managers::ResourceManagers;
use kubelet_runtime::{
    RuntimeOptions, dns::DnsOptions, pod_state::RestartDelays, user_namespace::UserNamespaceOptions,
};
use test_api_server::Caller;
use test_run::random::Random;
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    cluster::{Cluster, NODE},
    cpus,
    memory::{self, SimulatedMemory},
    probes::Failing,
    trace::{Trace, Traced},
};

/// Capacity of the channel of updates to the kubelet.
const UPDATES: usize = 50;
/// How long a kubelet may accept no updates.
const PATIENCE: Duration = Duration::from_secs(120);

/// State that survives a kubelet restart.
pub(crate) struct Node {
    pub runtime: FakeRuntime,
    pub failing: Failing,
    pub trace: Trace,
    pub options: KubeletOptions,
    pub memory: Arc<SimulatedMemory>,
    /// `None` if the node is standalone.
    pub cluster: Option<Cluster>,
    _dir: tempfile::TempDir,
}

impl Node {
    pub(crate) fn new(runtime: FakeRuntime, cluster: Option<Cluster>, random: &mut Random) -> Self {
        let dir = memory_dir();
        let memory = Arc::<SimulatedMemory>::default();
        let options = KubeletOptions {
            node: LocalNode {
                name: NODE.to_owned(),
                ips: vec!["192.0.2.1".parse().unwrap()],
                root_dir: dir.path().join("kubelet"),
                pod_logs_dir: dir.path().join("logs"),
                ..LocalNode::default()
            },
            cri: CriOptions {
                request_timeout: Duration::from_secs(10),
                ..CriOptions::default()
            },
            runtime: RuntimeOptions {
                dns: DnsOptions {
                    resolv_conf: None,
                    ..DnsOptions::default()
                },
                image: ImageOptions {
                    serialize_pulls: random.permille(500),
                    registry_qps: random.of(&[0, 5]),
                    ..ImageOptions::default()
                },
                user_namespaces: UserNamespaceOptions {
                    max_pods: 10_000,
                    ..UserNamespaceOptions::default()
                },
                ..RuntimeOptions::default()
            },
            capacity: CapacityOptions {
                max_pods: 10_000,
                ..CapacityOptions::default()
            },
            restart_delays: RestartDelays {
                longest: Duration::from_secs(20),
                ..RestartDelays::default()
            },
            eviction: memory::options(),
            managers: cpus::options(),
            measurements: MeasurementSource::Given(memory.clone()),
            // The file system that the fake runtime reports is the machine's.
            image_gc: ImageGcOptions {
                high_threshold_percent: 100,
                ..ImageGcOptions::default()
            },
            ..KubeletOptions::default()
        };
        Self {
            memory,
            failing: Failing::on(&runtime),
            runtime,
            trace: Trace::new(dir.path()),
            options,
            cluster,
            _dir: dir,
        }
    }

    /// Starts a kubelet that has not received all pods yet.
    pub(crate) fn start(&self) -> Running {
        let timeout = self.options.cri.request_timeout;
        let runtime = Traced {
            service: self.runtime.runtime_service(),
            trace: self.trace.clone(),
        };
        let image = Traced {
            service: self.runtime.image_service(),
            trace: self.trace.clone(),
        };
        let cri = CriClient::from_channels(runtime, image, timeout);
        match &self.cluster {
            Some(cluster) => self.join(cluster, cri),
            None => self.run_alone(cri),
        }
    }

    fn managers(&self) -> Arc<ResourceManagers> {
        let (options, root_dir) = (&self.options.managers, &self.options.node.root_dir);
        Arc::new(ResourceManagers::start(options, &cpus::machine(), root_dir).unwrap())
    }

    fn run_alone(&self, cri: CriClient) -> Running {
        let ready = Arc::new(AtomicBool::new(false));
        let (updates, receiver) = mpsc::channel(UPDATES);
        let all_heard = {
            let (ready, updates) = (Arc::clone(&ready), updates.clone());
            // Updates in the channel have not been received yet.
            move || ready.load(Ordering::Relaxed) && updates.capacity() == UPDATES
        };
        let parts = KubeletParts {
            options: self.options.clone(),
            cri,
            objects: Arc::new(NoObjects),
            membership: None,
            managers: self.managers(),
            events: EventRecorder::default(),
            sources_ready: Arc::new(all_heard),
        };
        let sources = Sources::Told { updates, ready };
        let (tasks, cancel) = (TaskTracker::new(), CancellationToken::new());
        Running::new(parts, receiver, sources, tasks, cancel)
    }

    fn join(&self, cluster: &Cluster, cri: CriClient) -> Running {
        let client = || cluster.server.client(Caller::node(NODE));
        let (config, receiver) = PodConfig::new();
        let (file, api) = (config.source(Source::File), config.source(Source::Api));
        let (tasks, cancel) = (TaskTracker::new(), CancellationToken::new());
        let objects = ApiObjects::new(ApiObjectsParts {
            client: client(),
            node: cluster.node.subscribe(),
            change_detection: ChangeDetection::Watch,
            sync_frequency: self.options.sync_frequency,
            tasks: tasks.clone(),
            cancel: cancel.clone(),
        });
        let membership = Membership {
            client: client(),
            node: cluster.node.subscribe(),
            was_given_up: Arc::default(),
            last_node: None,
            last_statuses: BTreeMap::new(),
        };
        let source = ApiSource {
            client: client(),
            node_name: NODE.to_owned(),
            node_known: Box::pin(ready(())),
            checkpoint: None,
        };
        tasks.spawn(source.run(api, cancel.clone()));
        let parts = KubeletParts {
            options: self.options.clone(),
            cri,
            objects: Arc::new(objects),
            membership: Some(membership),
            managers: self.managers(),
            events: EventRecorder::default(),
            sources_ready: Arc::new(move || config.seen_all_sources()),
        };
        let sources = Sources::Cluster { file };
        Running::new(parts, receiver, sources, tasks, cancel)
    }
}

/// A directory in `/dev/shm` if possible, because a run creates thousands of small files.
fn memory_dir() -> tempfile::TempDir {
    let memory = PathBuf::from("/dev/shm");
    tempfile::tempdir_in(memory)
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

/// A running kubelet.
pub(crate) struct Running {
    pub kubelet: Kubelet,
    sources: Sources,
    cancel: CancellationToken,
    /// All tasks except the kubelet's own.
    tasks: TaskTracker,
    task: JoinHandle<()>,
}

/// The kubelet's source of pods.
enum Sources {
    /// The test sends the updates.
    Told {
        updates: mpsc::Sender<PodUpdate>,
        ready: Arc<AtomicBool>,
    },
    /// Manifests and the API server.
    Cluster { file: SourceHandle },
}

impl Running {
    fn new(
        parts: KubeletParts,
        updates: mpsc::Receiver<PodUpdate>,
        sources: Sources,
        tasks: TaskTracker,
        cancel: CancellationToken,
    ) -> Self {
        let (kubelet, pods) = Kubelet::new(parts, &cancel);
        let task = tokio::spawn(pods.run(updates));
        Self {
            kubelet,
            sources,
            cancel,
            tasks,
            task,
        }
    }

    /// Sends an update to a standalone kubelet.
    pub(crate) async fn send(&self, operation: PodOperation, source: Source, pods: Vec<Pod>) {
        let Sources::Told { updates, .. } = &self.sources else {
            return;
        };
        let update = PodUpdate {
            pods: pods.into_iter().map(Arc::new).collect(),
            operation,
            source,
        };
        // A kubelet that still waits for its runtime accepts no updates.
        let sent = tokio::time::timeout(PATIENCE, updates.send(update));
        sent.await.unwrap().unwrap();
    }

    /// Sets the static pods of a node in a cluster.
    pub(crate) async fn set_static(&self, pods: Vec<Pod>) {
        let Sources::Cluster { file } = &self.sources else {
            return;
        };
        let pods = pods.into_iter().map(Arc::new).collect();
        let complete = true;
        let set = tokio::time::timeout(PATIENCE, file.set(PodSet { pods, complete }));
        set.await.unwrap().unwrap();
    }

    /// Marks all sources of a standalone kubelet as read.
    pub(crate) fn sources_are_read(&self) {
        if let Sources::Told { ready, .. } = &self.sources {
            ready.store(true, Ordering::Relaxed);
        }
    }

    /// Stops the kubelet at any point; the pods keep running.
    pub(crate) async fn kill(self) {
        self.cancel.cancel();
        let ended = tokio::time::timeout(Duration::from_millis(10), self.task);
        ended.await.unwrap().unwrap();
        self.tasks.close();
        let ended = tokio::time::timeout(Duration::from_millis(10), self.tasks.wait());
        ended.await.unwrap();
    }
}
