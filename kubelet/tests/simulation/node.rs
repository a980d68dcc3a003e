//! A node: the runtime, the directories, and the kubelet that runs on them.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use e2e::{fake_runtime::FakeRuntime, random::Random};
use k8s_openapi::api::core::v1::Pod;
use kubelet::{
    apiserver::objects::NoObjects,
    config::{
        options::Options,
        update::{PodOperation, PodUpdate, Source},
    },
    events::EventRecorder,
    kubelet::Kubelet,
    runtime::cri::CriClient,
};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    probes::Failing,
    trace::{Trace, Traced},
};

/// Updates on their way to the kubelet.
const UPDATES: usize = 50;

/// What outlives one kubelet.
pub struct Node {
    pub runtime: FakeRuntime,
    pub failing: Failing,
    pub trace: Trace,
    pub options: Options,
    _dir: tempfile::TempDir,
}

impl Node {
    pub fn new(runtime: FakeRuntime, random: &mut Random) -> Self {
        let dir = memory_dir();
        let options = Options {
            node_name: "node".to_owned(),
            node_ips: vec!["192.0.2.1".parse().unwrap()],
            root_dir: dir.path().join("kubelet"),
            pod_logs_dir: dir.path().join("logs"),
            resolv_conf: None,
            max_pods: 10_000,
            runtime_request_timeout: Duration::from_secs(10),
            max_container_restart_period: Duration::from_secs(20),
            serialize_image_pulls: random.permille(500),
            registry_pull_qps: random.of(&[0, 5]),
            ..Options::default()
        };
        Self {
            failing: Failing::on(&runtime),
            runtime,
            trace: Trace::new(dir.path()),
            options,
            _dir: dir,
        }
    }

    /// Starts a kubelet that has not heard of all pods yet.
    pub fn start(&self) -> Running {
        let timeout = self.options.runtime_request_timeout;
        let runtime = Traced {
            service: self.runtime.runtime_service(),
            trace: self.trace.clone(),
        };
        let image = Traced {
            service: self.runtime.image_service(),
            trace: self.trace.clone(),
        };
        let cri = CriClient::from_channels(runtime, image, timeout);
        let ready = Arc::new(AtomicBool::new(false));
        let (updates, receiver) = mpsc::channel(UPDATES);
        let all_heard = {
            let (ready, updates) = (Arc::clone(&ready), updates.clone());
            // What is on its way to the kubelet was not heard yet.
            move || ready.load(Ordering::Relaxed) && updates.capacity() == UPDATES
        };
        let events = EventRecorder::default();
        let options = self.options.clone();
        let kubelet = Kubelet::new(options, cri, Arc::new(NoObjects), None, events, all_heard);
        let cancel = CancellationToken::new();
        let task = tokio::spawn({
            let (kubelet, cancel) = (kubelet.clone(), cancel.clone());
            async move { kubelet.run(receiver, cancel).await.unwrap() }
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

/// A directory in memory where there is such a place, since a run makes thousands
/// of small files.
fn memory_dir() -> tempfile::TempDir {
    let memory = PathBuf::from("/dev/shm");
    tempfile::tempdir_in(memory)
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

/// A kubelet that runs.
pub struct Running {
    pub kubelet: Kubelet,
    ready: Arc<AtomicBool>,
    updates: mpsc::Sender<PodUpdate>,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    pub async fn send(&self, operation: PodOperation, source: Source, pods: Vec<Pod>) {
        let update = PodUpdate {
            pods: pods.into_iter().map(Arc::new).collect(),
            operation,
            source,
        };
        // A kubelet that still waits for its runtime takes no updates.
        let sent = tokio::time::timeout(Duration::from_secs(120), self.updates.send(update));
        sent.await.unwrap().unwrap();
    }

    /// It has heard of every pod.
    pub fn sources_are_read(&self) {
        self.ready.store(true, Ordering::Relaxed);
    }

    /// Ends the kubelet at whatever it does, and leaves the pods.
    pub async fn kill(self) {
        self.cancel.cancel();
        let ended = tokio::time::timeout(Duration::from_millis(10), self.task);
        ended.await.unwrap().unwrap();
    }
}
