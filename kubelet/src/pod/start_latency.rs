//! How long pods take to start, as users see it: from their creation until the API server has all
//! of their containers as started.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodSpec, PodStatus, Volume};
use kubelet_host::clock;
use kubelet_metrics::{Collector, Exposition, Family, Histogram};
use kubelet_pod_spec::{
    identity::{self, PodUid},
    phase::Phase,
};
use parking_lot::Mutex;
use tracing::debug;

/// Buckets of pod starts in seconds, as upstream.
pub(crate) const BUCKETS: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0,
    300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

/// The metrics of pod starts, and the pods of the API server that have not started yet.
#[derive(Debug)]
pub struct StartLatencies {
    starting: Mutex<BTreeMap<PodUid, Starting>>,
    total: Family<Histogram, 0>,
    sli: Family<Histogram, 0>,
    /// That of the first pod with a network, in seconds.
    first: Mutex<Option<f64>>,
}

#[derive(Debug, Default)]
struct Starting {
    /// The time that was spent on pulls.
    pulling: Duration,
    /// The API server has accepted a status with all containers started.
    is_sent: bool,
}

impl Default for StartLatencies {
    fn default() -> Self {
        Self {
            starting: Mutex::default(),
            total: Family::histogram(
                "kubelet_pod_start_total_duration_seconds",
                "[ALPHA] Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
                [],
                BUCKETS,
            ),
            sli: Family::histogram(
                "kubelet_pod_start_sli_duration_seconds",
                "[ALPHA] Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
                [],
                BUCKETS,
            ),
            first: Mutex::default(),
        }
    }
}

impl StartLatencies {
    /// The API server sent the pod. A pod that an earlier kubelet has begun to run is not measured.
    pub fn observed(&self, pod: &Pod) {
        if identity::is_static(pod) || identity::is_mirror(pod) {
            return;
        }
        let uid = PodUid::of(pod);
        let status = pod.status.as_ref();
        let mut starting = self.starting.lock();
        if Phase::parse(status.and_then(|status| status.phase.as_deref())).is_terminal() {
            starting.remove(&uid);
            return;
        }
        let Some(status) = status.filter(|status| status.start_time.is_some()) else {
            starting.entry(uid).or_default();
            return;
        };
        let is_started = all_started(status);
        if let Some(known) = starting.get(&uid)
            && known.is_sent
            && is_started
        {
            let pulling = known.pulling;
            starting.remove(&uid);
            drop(starting);
            self.record(pod, status, pulling);
        }
    }

    /// The API server accepted the status of a pod.
    pub fn sent(&self, uid: &PodUid, status: &PodStatus) {
        if let Some(starting) = self.starting.lock().get_mut(uid) {
            starting.is_sent |= all_started(status);
        }
    }

    /// A pod has spent this much time on pulls so far.
    pub fn pulled(&self, uid: &PodUid, pulling: Duration) {
        if let Some(starting) = self.starting.lock().get_mut(uid) {
            starting.pulling = pulling;
        }
    }

    /// The pod is gone.
    pub fn remove(&self, uid: &PodUid) {
        self.starting.lock().remove(uid);
    }

    fn record(&self, pod: &Pod, status: &PodStatus, pulling: Duration) {
        let Some(created) = &pod.metadata.creation_timestamp else {
            return;
        };
        let seconds = clock::now().duration_since(created.0).as_secs_f64();
        let init = init_seconds(status);
        let sli = seconds - pulling.as_secs_f64() - init;
        debug!(
            pod = identity::full_name(pod),
            seconds,
            pulling = pulling.as_secs_f64(),
            init,
            "pod started"
        );
        self.total.of([]).observe(seconds);
        let Some(spec) = pod.spec.as_ref().filter(|spec| !is_stateful(spec)) else {
            return;
        };
        self.sli.of([]).observe(sli);
        if spec.host_network != Some(true) {
            self.first.lock().get_or_insert(sli);
        }
    }
}

impl Collector for StartLatencies {
    fn collect(&self, page: &mut Exposition) {
        self.total.collect(page);
        self.sli.collect(page);
        page.gauge(
            "kubelet_first_network_pod_start_sli_duration_seconds",
            "[INTERNAL] Duration in seconds to start the first network pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
            self.first.lock().unwrap_or_default(),
        );
    }
}

fn all_started(status: &PodStatus) -> bool {
    let mut containers = status.container_statuses.iter().flatten();
    containers.all(|container| {
        let state = container.state.as_ref();
        let running = state.and_then(|state| state.running.as_ref());
        running.is_some_and(|running| running.started_at.is_some())
    })
}

/// The time for which init containers ran that have ended.
fn init_seconds(status: &PodStatus) -> f64 {
    let took = |container: &ContainerStatus| {
        let ended = container.state.as_ref()?.terminated.as_ref()?;
        let (begun, end) = ended.started_at.as_ref().zip(ended.finished_at.as_ref())?;
        Some(end.0.duration_since(begun.0).as_secs_f64().max(0.0))
    };
    let init = status.init_container_statuses.iter().flatten();
    init.filter_map(took).sum()
}

/// Whether the pod has a volume whose set-up depends on storage. The service level is defined
/// without them.
fn is_stateful(spec: &PodSpec) -> bool {
    let is_stateless = |volume: &Volume| {
        volume.secret.is_some()
            || volume.config_map.is_some()
            || volume.downward_api.is_some()
            || volume.empty_dir.is_some()
            || volume.projected.is_some()
    };
    !spec.volumes.iter().flatten().all(is_stateless)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use kubelet_host::repeatable::Repeatable;
    use serde_json::{Value, json};
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pod(volumes: &Value, status: &Value) -> Pod {
        let pod = json!({
            "metadata": {"name": "a", "uid": "u", "creationTimestamp": "1970-01-01T00:00:00Z",
                         "annotations": {"kubernetes.io/config.source": "api"}},
            "spec": {"containers": [], "volumes": volumes},
            "status": status,
        });
        serde_json::from_value(pod).unwrap()
    }

    fn running() -> Value {
        json!({
            "phase": "Running", "startTime": "1970-01-01T00:00:01Z",
            "initContainerStatuses": [{
                "name": "i", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"terminated": {"exitCode": 0, "startedAt": "1970-01-01T00:00:02Z",
                                         "finishedAt": "1970-01-01T00:00:05Z"}},
            }],
            "containerStatuses": [{
                "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": "1970-01-01T00:00:06Z"}},
            }],
        })
    }

    fn value(latencies: &StartLatencies, series: &str) -> f64 {
        let mut page = Exposition::default();
        latencies.collect(&mut page);
        let text = page.into_text();
        let mut samples = text.lines().filter_map(|line| line.rsplit_once(' '));
        let found = samples.find(|(name, _)| *name == format!("kubelet_{series}"));
        found.unwrap().1.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_ends_when_the_api_server_tells_of_it() {
        let _simulated = Repeatable::on_this_thread(1, Timestamp::UNIX_EPOCH);
        let latencies = StartLatencies::default();
        let sum = || value(&latencies, "pod_start_total_duration_seconds_sum");
        let volumes = json!([{"name": "v", "emptyDir": {}}]);
        let begun = pod(&volumes, &json!({"phase": "Pending"}));
        let started = pod(&volumes, &running());
        let uid = PodUid::of(&begun);
        latencies.observed(&begun);
        advance(8 * SECOND).await;
        latencies.pulled(&uid, 2 * SECOND);
        // Not by this kubelet.
        latencies.observed(&started);
        assert!((sum() - 0.0).abs() < 1e-9);
        latencies.sent(&uid, started.status.as_ref().unwrap());
        advance(2 * SECOND).await;
        latencies.observed(&started);
        latencies.observed(&started);
        for (series, expected) in [
            ("pod_start_total_duration_seconds_sum", 10.0),
            ("pod_start_total_duration_seconds_count", 1.0),
            ("pod_start_sli_duration_seconds_sum", 5.0),
            ("first_network_pod_start_sli_duration_seconds", 5.0),
        ] {
            let found = value(&latencies, series);
            assert!((found - expected).abs() < 1e-9, "{series}: {found}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pods_with_storage_or_of_an_earlier_kubelet_have_no_service_level() {
        let _simulated = Repeatable::on_this_thread(1, Timestamp::UNIX_EPOCH);
        let latencies = StartLatencies::default();
        let counts = || {
            ["total", "sli"].map(|kind| {
                value(
                    &latencies,
                    &format!("pod_start_{kind}_duration_seconds_count"),
                )
            })
        };
        let volumes = json!([{"name": "v", "hostPath": {"path": "/"}}]);
        let started = pod(&volumes, &running());
        let uid = PodUid::of(&started);
        latencies.observed(&started);
        latencies.sent(&uid, started.status.as_ref().unwrap());
        latencies.observed(&started);
        assert_eq!(counts(), [0.0, 0.0]);
        latencies.observed(&pod(&volumes, &json!({})));
        latencies.sent(&uid, started.status.as_ref().unwrap());
        latencies.observed(&started);
        assert_eq!(counts(), [1.0, 0.0]);
    }
}
