mod hanging;
mod metrics;
mod volumes;

use std::{future::Future, path::Path};

use k8s_openapi::api::core::v1::Pod;
use kubelet_api_client::events::EventQueue;
use kubelet_pod_spec::identity::PodUid;
use kubelet_volume::usage::UsageSource;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::{Amounts, VolumeUsage, source::MeasuredPod};

const PERIOD: Duration = Duration::from_millis(10);

/// The active pods, which a test changes.
#[derive(Clone, Debug, Default)]
struct Pods(Arc<Mutex<Vec<MeasuredPod>>>);

impl PodSource for Pods {
    fn pods(&self) -> Vec<MeasuredPod> {
        self.0.lock().clone()
    }
}

/// An analyzer with its pods and events.
struct Running {
    analyzer: Arc<ResourceAnalyzer>,
    pods: Pods,
    events: EventQueue,
    _task: AbortOnDropHandle<()>,
}

impl Running {
    fn start() -> Self {
        Self::with(Meter::default())
    }

    fn with(meter: Meter) -> Self {
        let pods = Pods::default();
        let (recorder, events) = EventRecorder::new("node");
        let source = Box::new(pods.clone());
        let mut analyzer = ResourceAnalyzer::new(source, Some(PERIOD), recorder);
        analyzer.meter = meter;
        let analyzer = Arc::new(analyzer);
        let running = Arc::clone(&analyzer);
        let task = async move { running.run(CancellationToken::new()).await };
        Self {
            analyzer,
            pods,
            events,
            _task: AbortOnDropHandle::new(tokio::spawn(task)),
        }
    }

    fn set(&self, pods: Vec<MeasuredPod>) {
        *self.pods.0.lock() = pods;
    }

    fn volume(&self, uid: &str, name: &str) -> Option<VolumeUsage> {
        let usages = self.analyzer.usages();
        let pod = usages.get(&PodUid::from(uid))?;
        pod.volumes.get(name).cloned()
    }

    /// The usage of a volume once it is measured.
    async fn measured(&self, uid: &str, name: &str) -> VolumeUsage {
        until(|| self.volume(uid, name)).await
    }
}

/// Waits for a value.
async fn until<T>(value: impl Fn() -> Option<T>) -> T {
    loop {
        if let Some(value) = value() {
            return value;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A pod with these volumes in its spec, and how they are measured.
fn pod(uid: &str, spec: Value, volumes: &[(&str, UsageSource)]) -> MeasuredPod {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": format!("pod-{uid}"), "namespace": "ns", "uid": uid},
        "spec": {"containers": [{"name": "c"}], "volumes": spec},
    }))
    .unwrap();
    let volumes = volumes.iter();
    MeasuredPod {
        pod: Arc::new(pod),
        volumes: volumes
            .map(|(name, source)| ((*name).to_owned(), source.clone()))
            .collect(),
        log_dir: "/none/logs".into(),
        etc_hosts: "/none/etc-hosts".into(),
    }
}

fn empty_dir(name: &str) -> Value {
    json!([{"name": name, "emptyDir": {}}])
}

fn directory(path: &Path) -> UsageSource {
    UsageSource::Directory(path.to_owned())
}

/// In memory: directories take no blocks, and files whole pages.
fn memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// Fails a test that would wait forever.
async fn in_time<T>(work: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, work).await.unwrap()
}

#[tokio::test]
async fn nothing_is_measured_without_a_period() {
    let dir = memory();
    let pods = Pods::default();
    pods.0
        .lock()
        .push(pod("u", empty_dir("v"), &[("v", directory(dir.path()))]));
    let analyzer = ResourceAnalyzer::new(Box::new(pods), None, EventRecorder::default());
    in_time(analyzer.run(CancellationToken::new())).await;
    assert!(analyzer.usages().is_empty());
}

#[tokio::test]
async fn a_snapshot_stays_as_it_is() {
    let dir = memory();
    std::fs::write(dir.path().join("a"), "x").unwrap();
    let it = Running::start();
    it.set(vec![pod(
        "u",
        empty_dir("v"),
        &[("v", directory(dir.path()))],
    )]);
    in_time(async {
        it.measured("u", "v").await;
        let before = it.analyzer.usages();
        let copy = (*before).clone();
        std::fs::write(dir.path().join("b"), "x").unwrap();
        until(|| it.volume("u", "v").filter(|volume| volume.inodes.used == 3)).await;
        assert_eq!(*before, copy);
        assert_eq!(before[&PodUid::from("u")].volumes["v"].inodes.used, 2);
    })
    .await;
}

#[tokio::test]
async fn pods_and_volumes_that_are_gone_are_forgotten() {
    let dir = memory();
    let [first, second] = ["first", "second"].map(|name| dir.path().join(name));
    for path in [&first, &second] {
        std::fs::create_dir(path).unwrap();
    }
    let sources = [("a", directory(&first)), ("b", directory(&second))];
    let it = Running::start();
    it.set(vec![
        pod("u", json!([]), &sources),
        pod("w", json!([]), &sources),
    ]);
    in_time(async {
        for uid in ["u", "w"] {
            it.measured(uid, "a").await;
            it.measured(uid, "b").await;
        }
        it.set(vec![pod("u", json!([]), &sources[..1])]);
        until(|| it.volume("u", "b").is_none().then_some(())).await;
        assert_eq!(it.analyzer.usages().len(), 1);
        // A volume that vanishes while it is listed is as unknown.
        std::fs::remove_dir(&first).unwrap();
        until(|| it.volume("u", "a").is_none().then_some(())).await;
        std::fs::create_dir(&first).unwrap();
        it.measured("u", "a").await;
    })
    .await;
}

#[tokio::test]
async fn an_analyzer_ends_when_it_is_stopped() {
    let it = Pods::default();
    let cancel = CancellationToken::new();
    let analyzer = ResourceAnalyzer::new(Box::new(it), Some(PERIOD), EventRecorder::default());
    cancel.cancel();
    in_time(analyzer.run(cancel)).await;
}

#[tokio::test(start_paused = true)]
async fn a_measurement_on_request_does_not_wait_for_the_period() {
    let pods = Pods::default();
    let source = Box::new(pods.clone());
    let period = Some(Duration::from_secs(3600));
    let analyzer = ResourceAnalyzer::new(source, period, EventRecorder::default());
    let cancel = CancellationToken::new();
    let requests = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        pods.0.lock().push(MeasuredPod {
            pod: Arc::new(Pod::default()),
            volumes: Vec::new(),
            log_dir: "/nonexistent".into(),
            etc_hosts: "/nonexistent".into(),
        });
        assert_eq!(analyzer.usages().len(), 0);
        analyzer.measure(Duration::from_secs(60)).await;
        assert_eq!(analyzer.usages().len(), 1);
        cancel.cancel();
    };
    tokio::join!(analyzer.run(cancel.clone()), requests);
    // Nothing measures any more.
    let begun = tokio::time::Instant::now();
    analyzer.measure(Duration::from_secs(5)).await;
    assert_eq!(begun.elapsed(), Duration::from_secs(5));
}
