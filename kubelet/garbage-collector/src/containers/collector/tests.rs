use std::fs;

use cri_proto::runtime::v1::{
    ContainerConfig, ContainerMetadata, ImageSpec, PodSandboxConfig, PodSandboxMetadata,
};
use fake_runtime::{FakeRuntime, Fault, Times, Verb};
use kubelet_api_client::events::EventQueue;
use kubelet_cri_client::labels;
use tempfile::TempDir;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// The pods that are known, and whether they have ended.
#[derive(Default)]
struct Pods(parking_lot::Mutex<PodsState>);

#[derive(Default)]
struct PodsState {
    is_ready: bool,
    may_have_dead: bool,
    known: Vec<(String, bool)>,
}

impl PodStates for Pods {
    fn all_sources_ready(&self) -> bool {
        self.0.lock().is_ready
    }

    fn may_have_dead(&self) -> bool {
        self.0.lock().may_have_dead
    }

    fn is_removable(&self, uid: &PodUid) -> bool {
        let known = &self.0.lock().known;
        !known.iter().any(|(known, _)| known == uid.as_str())
    }

    fn is_ended(&self, uid: &PodUid) -> bool {
        let known = &self.0.lock().known;
        let running = known.iter().filter(|(_, has_ended)| !has_ended);
        !running.into_iter().any(|(known, _)| known == uid.as_str())
    }
}

struct Node {
    runtime: FakeRuntime,
    logs: TempDir,
    pods: Arc<Pods>,
    collector: Arc<ContainerCollector>,
    events: EventQueue,
}

impl Node {
    fn new(edit: impl FnOnce(&mut ContainerGcOptions)) -> Self {
        let mut options = ContainerGcOptions::default();
        edit(&mut options);
        let runtime = FakeRuntime::new();
        runtime.add_image("busybox:1");
        let logs = tempfile::tempdir().unwrap();
        let pods = Arc::<Pods>::default();
        pods.0.lock().is_ready = true;
        pods.0.lock().may_have_dead = true;
        let (recorder, events) = EventRecorder::new("node");
        let states = Arc::<Pods>::clone(&pods);
        let cri = cri(&runtime);
        let collector = ContainerCollector::new(cri, options, logs.path(), recorder, states);
        Self {
            runtime,
            logs,
            pods,
            collector: Arc::new(collector),
            events,
        }
    }

    fn know(&self, pod: &str, has_ended: bool) {
        self.pods.0.lock().known.push((pod.to_owned(), has_ended));
    }

    async fn sandbox(&self, pod: &str, attempt: u32) -> (String, PodSandboxConfig) {
        let config = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: pod.to_owned(),
                uid: pod.to_owned(),
                namespace: "ns".to_owned(),
                attempt,
            }),
            log_directory: self.log_dir(pod),
            ..PodSandboxConfig::default()
        };
        tokio::time::sleep(SECOND).await;
        let id = cri(&self.runtime).run_pod_sandbox(config.clone(), "").await;
        (id.unwrap(), config)
    }

    fn log_dir(&self, pod: &str) -> String {
        let dir = self.logs.path().join(format!("ns_{pod}_{pod}"));
        fs::create_dir_all(dir.join("c")).unwrap();
        dir.to_string_lossy().into_owned()
    }

    /// Starts a container with a log file, a second after the one before.
    async fn start(&self, pod: &str, sandbox: &(String, PodSandboxConfig), attempt: u32) -> String {
        let text = |text: &str| text.to_owned();
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata {
                name: text("c"),
                attempt,
            }),
            image: Some(ImageSpec {
                image: text("busybox:1"),
                ..ImageSpec::default()
            }),
            labels: [
                (text(labels::POD_UID), text(pod)),
                (text(labels::POD_NAME), text(pod)),
                (text(labels::POD_NAMESPACE), text("ns")),
                (text(labels::CONTAINER_NAME), text("c")),
            ]
            .into(),
            annotations: [(text(labels::CONTAINER_RESTART_COUNT), attempt.to_string())].into(),
            log_path: format!("c/{attempt}.log"),
            ..ContainerConfig::default()
        };
        tokio::time::sleep(SECOND).await;
        let cri = cri(&self.runtime);
        let (sandbox, sandbox_config) = sandbox.clone();
        let id = cri.create_container(&sandbox, config, sandbox_config).await;
        let id = id.unwrap();
        cri.start_container(&id).await.unwrap();
        id
    }

    /// A container that has exited.
    async fn dead(&self, pod: &str, sandbox: &(String, PodSandboxConfig), attempt: u32) {
        let id = self.start(pod, sandbox, attempt).await;
        assert_eq!(self.runtime.exit_container(&id, 0), 1);
        tokio::time::sleep(SECOND).await;
    }

    /// The attempts of the containers that are left of a pod.
    fn left(&self, pod: &str) -> Vec<u32> {
        let all = self.runtime.containers().into_iter();
        let of_pod = all.filter(|it| it.config.labels[labels::POD_UID] == pod);
        of_pod.map(|it| it.attempt()).collect()
    }

    /// The attempts of the sandboxes that are left of a pod.
    fn sandboxes(&self, pod: &str) -> Vec<u32> {
        let all = self.runtime.sandboxes().into_iter();
        let of_pod = all.filter(|it| it.pod_uid() == pod);
        of_pod
            .map(|it| it.config.metadata.unwrap().attempt)
            .collect()
    }

    fn logs(&self, pod: &str) -> Vec<String> {
        let dir = self.logs.path().join(format!("ns_{pod}_{pod}/c"));
        let entries = fs::read_dir(dir).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }
}

fn cri(runtime: &FakeRuntime) -> CriClient {
    let channel = runtime.channel();
    CriClient::from_channels(channel.clone(), channel, 10 * SECOND)
}

fn counts(containers: usize, sandboxes: usize) -> RemovedContainers {
    RemovedContainers {
        containers,
        sandboxes,
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_dead_container_and_its_sandbox_stay_with_their_log() {
    let node = Node::new(|_| {});
    node.know("p", false);
    let first = node.sandbox("p", 0).await;
    node.dead("p", &first, 0).await;
    node.runtime.exit_sandbox(&first.0);
    let second = node.sandbox("p", 1).await;
    node.dead("p", &second, 1).await;
    node.dead("p", &second, 2).await;
    node.start("p", &second, 3).await;

    let planned = node.collector.candidates().await.unwrap();
    let reasons: Vec<_> = planned.containers.iter().map(|it| it.reason).collect();
    assert_eq!(reasons, [ContainerReason::PerContainerLimit; 2]);
    assert_eq!(planned.containers[0].name, "c");
    assert_eq!(planned.sandboxes.len(), 1);
    assert_eq!(planned.sandboxes[0].id, first.0);
    assert_eq!(node.left("p"), [0, 1, 2, 3]);

    assert_eq!(node.collector.collect().await.unwrap(), counts(2, 1));
    let stops = node.runtime.calls(Verb::StopPodSandbox);
    assert_eq!(stops, 1, "its network is released first");
    assert_eq!(node.left("p"), [2, 3]);
    assert_eq!(node.sandboxes("p"), [1]);
    assert_eq!(node.logs("p"), ["2.log", "3.log"]);
    assert_eq!(node.collector.collect().await.unwrap(), counts(0, 0));
}

#[tokio::test(start_paused = true)]
async fn nothing_stays_of_unknown_pods_once_all_sources_are_ready() {
    let node = Node::new(|_| {});
    let sandbox = node.sandbox("p", 0).await;
    node.dead("p", &sandbox, 0).await;
    node.runtime.exit_sandbox(&sandbox.0);
    node.pods.0.lock().is_ready = false;
    assert_eq!(
        node.collector.remove_all_unused().await.unwrap(),
        counts(0, 0)
    );
    node.pods.0.lock().is_ready = true;
    assert_eq!(node.collector.collect().await.unwrap(), counts(1, 1));
    assert_eq!(node.left("p"), [0; 0]);
    assert_eq!(node.sandboxes("p"), [0; 0]);
    assert_eq!(node.logs("p"), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn pods_that_have_ended_lose_everything_on_request() {
    let node = Node::new(|_| {});
    node.know("ended", true);
    node.know("running", false);
    for pod in ["ended", "running"] {
        let sandbox = node.sandbox(pod, 0).await;
        node.dead(pod, &sandbox, 0).await;
        node.runtime.exit_sandbox(&sandbox.0);
    }
    assert_eq!(node.collector.collect().await.unwrap(), counts(0, 0));
    let removed = node.collector.remove_all_unused().await.unwrap();
    assert_eq!(removed, counts(1, 1));
    assert_eq!(node.left("running"), [0]);
    assert_eq!(node.sandboxes("running"), [0]);
}

#[tokio::test(start_paused = true)]
async fn pods_that_were_evicted_lose_everything_and_others_keep_it() {
    let node = Node::new(|_| {});
    for pod in ["evicted", "ending", "other"] {
        node.know(pod, pod != "ending");
        let sandbox = node.sandbox(pod, 0).await;
        node.dead(pod, &sandbox, 0).await;
        node.runtime.exit_sandbox(&sandbox.0);
    }
    let pods = ["evicted", "ending"].map(PodUid::from);
    let removed = node.collector.remove_of(&pods).await.unwrap();
    assert_eq!(removed, counts(1, 1));
    assert_eq!(node.logs("evicted"), [""; 0]);
    assert_eq!(node.left("ending"), [0]);
    assert_eq!(node.left("other"), [0]);
}

#[tokio::test(start_paused = true)]
async fn a_container_in_an_unknown_state_is_stopped_first() {
    let node = Node::new(|options| options.max_per_pod_container = 0);
    node.know("p", false);
    let sandbox = node.sandbox("p", 0).await;
    let id = node.start("p", &sandbox, 0).await;
    assert_eq!(node.runtime.lose_sight_of(&id), 1);
    tokio::time::sleep(SECOND).await;
    let refused = Fault::Error(tonic::Status::unknown("no"));
    node.runtime
        .fault(Verb::StopContainer, refused, Times::Once);
    assert_eq!(node.collector.collect().await.unwrap(), counts(0, 0));
    assert_eq!(node.runtime.calls(Verb::RemoveContainer), 0);
    assert_eq!(node.collector.collect().await.unwrap(), counts(1, 0));
    assert_eq!(node.runtime.calls(Verb::StopContainer), 2);
    assert_eq!(node.left("p"), [0; 0]);
}

#[tokio::test(start_paused = true)]
async fn young_containers_stay() {
    let node = Node::new(|options| {
        options.min_age = 60 * SECOND;
        options.max_per_pod_container = 0;
    });
    node.know("p", false);
    let sandbox = node.sandbox("p", 0).await;
    node.dead("p", &sandbox, 0).await;
    tokio::time::sleep(50 * SECOND).await;
    assert_eq!(node.collector.collect().await.unwrap(), counts(0, 0));
    tokio::time::sleep(15 * SECOND).await;
    assert_eq!(node.collector.collect().await.unwrap(), counts(1, 0));
}

#[tokio::test(start_paused = true)]
async fn one_removal_that_fails_does_not_prevent_the_others() {
    let node = Node::new(|_| {});
    let sandbox = node.sandbox("p", 0).await;
    node.dead("p", &sandbox, 0).await;
    node.dead("p", &sandbox, 1).await;
    // A call that hangs is one that the runtime has lost, as long as it answers others.
    node.runtime
        .fault(Verb::RemoveContainer, Fault::Hang, Times::Once);
    assert_eq!(node.collector.collect().await.unwrap(), counts(1, 0));
    assert_eq!(node.left("p"), [0]);
    assert_eq!(
        node.logs("p"),
        ["0.log"],
        "the log of a container that stays"
    );
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_hangs_is_reported_and_not_asked_for_each_container() {
    let mut node = Node::new(|_| {});
    let sandbox = node.sandbox("p", 0).await;
    for attempt in 0..5 {
        node.dead("p", &sandbox, attempt).await;
    }
    for verb in [Verb::RemoveContainer, Verb::Version] {
        node.runtime.fault(verb, Fault::Hang, Times::Always);
    }
    let token = CancellationToken::new();
    let run = {
        let (collector, token) = (Arc::clone(&node.collector), token.clone());
        tokio::spawn(async move { collector.run(token).await })
    };
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(node.runtime.calls(Verb::RemoveContainer), 1);
    let event = node.events.try_recv().unwrap();
    assert_eq!(event.reason.as_deref(), Some("ContainerGCFailed"));
    assert_eq!(event.involved_object.kind.as_deref(), Some("Node"));
    let message = event.message.unwrap();
    assert!(message.contains("ceased to answer"), "{message}");
    node.runtime.clear_faults();
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(node.left("p"), [0; 0]);
    assert!(node.events.try_recv().is_err());
    let lists = node.runtime.calls(Verb::ListContainers);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(
        node.runtime.calls(Verb::ListContainers),
        lists + 1,
        "every minute"
    );
    node.pods.0.lock().may_have_dead = false;
    tokio::time::sleep(300 * SECOND).await;
    assert_eq!(node.runtime.calls(Verb::ListContainers), lists + 1);
    token.cancel();
    run.await.unwrap();
}
