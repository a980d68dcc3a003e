use std::{collections::VecDeque, time::Duration};

use cri_proto::runtime::v1 as cri;
use fake_runtime::{Behaviour, Exec, FakeRuntime, Verb};
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStatus,
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::*;
use ProbeResult::{Failure, Success, Unknown};

const SECOND: Duration = Duration::from_secs(1);
const PERIOD: Duration = Duration::from_secs(10);

/// Probes of one pod whose container runs in the fake runtime.
struct Bench {
    runtime: FakeRuntime,
    manager: ProbeManager,
    results: Arc<ProbeResults>,
    status: Arc<Mutex<PodStatus>>,
    changes: mpsc::Receiver<PodUid>,
    sandbox: String,
    id: String,
}

impl Bench {
    /// A bench whose kubelet began long ago, so that probes begin at once.
    async fn new() -> Self {
        let bench = Self::just_begun().await;
        sleep(PERIOD * 100).await;
        bench
    }

    async fn just_begun() -> Self {
        let runtime = FakeRuntime::new();
        runtime.add_image("i");
        let timeout = Duration::from_secs(120);
        let client = CriClient::from_channels(runtime.channel(), runtime.channel(), timeout);
        let config = cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata::default()),
            ..cri::PodSandboxConfig::default()
        };
        let sandbox = client.run_pod_sandbox(config, "").await.unwrap();
        let results = Arc::<ProbeResults>::default();
        let status = Arc::<Mutex<PodStatus>>::default();
        let (changes_in, changes) = mpsc::channel(100);
        let known = Arc::clone(&status);
        let manager = ProbeManager::new(
            client,
            EventRecorder::default(),
            move |_| Some(Arc::new(known.lock().clone())),
            Arc::clone(&results),
            changes_in,
            CancellationToken::new(),
        );
        Self {
            runtime,
            manager,
            results,
            status,
            changes,
            sandbox,
            id: String::new(),
        }
    }

    /// Starts another container, and lets the status say so.
    async fn start(&mut self, attempt: u32) {
        let client = &self.manager.0.cri;
        let config = cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata {
                name: "c".to_owned(),
                attempt,
            }),
            image: Some(cri::ImageSpec {
                image: "i".to_owned(),
                ..cri::ImageSpec::default()
            }),
            ..cri::ContainerConfig::default()
        };
        let sandbox = cri::PodSandboxConfig::default();
        let created = client.create_container(&self.sandbox, config, sandbox);
        self.id = created.await.unwrap();
        client.start_container(&self.id).await.unwrap();
        self.report(ContainerState {
            running: Some(ContainerStateRunning {
                started_at: Some(clock::now_time()),
            }),
            ..ContainerState::default()
        });
    }

    fn report(&self, state: ContainerState) {
        self.status.lock().container_statuses = Some(vec![ContainerStatus {
            name: "c".to_owned(),
            container_id: Some(format!("fake://{}", self.id)),
            state: Some(state),
            ..ContainerStatus::default()
        }]);
    }

    /// What commands come to, one after the other; the last again and again.
    fn exits(&self, codes: &[i32]) {
        let codes = Mutex::new(codes.iter().copied().collect::<VecDeque<_>>());
        self.runtime.on_exec(move |_, _| {
            let mut codes = codes.lock();
            let next = codes.pop_front().unwrap_or_default();
            if codes.is_empty() {
                codes.push_back(next);
            }
            cri::ExecSyncResponse {
                exit_code: next,
                ..cri::ExecSyncResponse::default()
            }
        });
    }

    fn probed(&self) -> usize {
        self.runtime.calls(Verb::ExecSync)
    }

    fn result(&self, kind: ProbeType) -> Option<ProbeResult> {
        self.results.get(&self.id, kind)
    }

    /// The number of requested pod syncs since the last call.
    fn changes(&mut self) -> usize {
        std::iter::from_fn(|| self.changes.try_recv().ok()).count()
    }
}

fn pod(container: Value) -> Arc<Pod> {
    let mut spec = json!({"containers": [{"name": "c"}]});
    for (key, value) in container.as_object().unwrap() {
        spec["containers"][0][key] = value.clone();
    }
    let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec});
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn probe(fields: Value) -> Value {
    let mut probe = json!({"exec": {"command": ["x"]}, "periodSeconds": 10});
    for (key, value) in fields.as_object().unwrap() {
        probe[key] = value.clone();
    }
    probe
}

/// Field, type, both thresholds, what commands come to, and what is found after each.
type Row<'a> = (&'a str, ProbeType, i32, i32, &'a [i32], &'a [ProbeResult]);

#[tokio::test(start_paused = true)]
async fn results_change_at_their_thresholds() {
    let table: [Row<'_>; 5] = [
        (
            "livenessProbe",
            ProbeType::Liveness,
            1,
            3,
            &[0, 1, 1, 0, 1, 1, 1],
            &[
                Success, Success, Success, Success, Success, Success, Failure,
            ],
        ),
        (
            "readinessProbe",
            ProbeType::Readiness,
            1,
            1,
            &[1, 0, 1, 0],
            &[Failure, Success, Failure, Success],
        ),
        (
            "readinessProbe",
            ProbeType::Readiness,
            2,
            3,
            &[0, 1, 0, 0, 1, 1, 0, 1, 1, 1, 0, 0],
            &[
                Failure, Failure, Failure, Success, Success, Success, Success, Success, Success,
                Failure, Failure, Success,
            ],
        ),
        (
            "startupProbe",
            ProbeType::Startup,
            1,
            3,
            &[1, 1, 0],
            &[Unknown, Unknown, Success],
        ),
        (
            "startupProbe",
            ProbeType::Startup,
            1,
            2,
            &[1, 1],
            &[Unknown, Failure],
        ),
    ];
    for (field, kind, success, failure, codes, expected) in table {
        let mut bench = Bench::new().await;
        bench.start(0).await;
        bench.exits(codes);
        let thresholds = json!({"successThreshold": success, "failureThreshold": failure});
        bench
            .manager
            .add_pod(&pod(json!({field: probe(thresholds)})));
        let mut found = Vec::new();
        for number in 1..=codes.len() {
            sleep(SECOND).await;
            assert_eq!(bench.probed(), number, "{field}");
            found.extend(bench.result(kind));
            sleep(PERIOD - SECOND).await;
        }
        assert_eq!(found, expected, "{field} {success} {failure} {codes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_failed_is_left_alone_until_it_is_another() {
    for (field, kind, initial) in [
        ("livenessProbe", ProbeType::Liveness, Success),
        ("startupProbe", ProbeType::Startup, Unknown),
    ] {
        let mut bench = Bench::new().await;
        bench.start(0).await;
        bench.exits(&[1]);
        bench
            .manager
            .add_pod(&pod(json!({field: probe(json!({"failureThreshold": 2}))})));
        sleep(PERIOD * 5 - SECOND).await;
        assert_eq!((bench.probed(), bench.result(kind)), (2, Some(Failure)));
        let first = bench.id.clone();
        assert!(bench.changes() > 0);
        bench.start(1).await;
        sleep(PERIOD).await;
        assert_eq!((bench.probed(), bench.result(kind)), (3, Some(initial)));
        assert_eq!(bench.results.get(&first, kind), None);
        sleep(PERIOD).await;
        assert_eq!((bench.probed(), bench.result(kind)), (4, Some(Failure)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_others_wait_for_the_startup_probe() {
    let mut bench = Bench::new().await;
    bench.start(0).await;
    bench.exits(&[1, 1, 0, 7]);
    bench.manager.add_pod(&pod(json!({
        "startupProbe": probe(json!({"failureThreshold": 10})),
        "livenessProbe": probe(json!({"failureThreshold": 1})),
        "readinessProbe": probe(json!({"failureThreshold": 1, "periodSeconds": 900})),
    })));
    sleep(PERIOD * 2 - SECOND).await;
    assert_eq!(bench.probed(), 2);
    assert_eq!(bench.result(ProbeType::Startup), Some(Unknown));
    assert_eq!(bench.result(ProbeType::Liveness), Some(Success));
    sleep(PERIOD).await;
    assert_eq!(bench.result(ProbeType::Startup), Some(Success));
    // It has started: now the others find out more, and it is done.
    let probed = bench.probed();
    sleep(PERIOD).await;
    assert_eq!(bench.result(ProbeType::Liveness), Some(Failure));
    assert_eq!(bench.probed(), probed.max(4));
    // Without the prompt, the readiness probe would run much later.
    bench.exits(&[0]);
    bench.manager.prompt_readiness(&PodUid::from("u"));
    sleep(SECOND).await;
    assert_eq!(bench.result(ProbeType::Readiness), Some(Success));
    let probed = bench.probed();
    bench.manager.prompt_readiness(&PodUid::from("u"));
    sleep(SECOND).await;
    assert_eq!(bench.probed(), probed, "what is ready needs no asking");
}

#[tokio::test(start_paused = true)]
async fn the_first_look_waits_for_its_delay() {
    let mut bench = Bench::new().await;
    bench.start(0).await;
    let delayed = probe(json!({"initialDelaySeconds": 25}));
    bench
        .manager
        .add_pod(&pod(json!({"readinessProbe": delayed})));
    sleep(Duration::from_secs(24)).await;
    assert_eq!(bench.probed(), 0);
    assert_eq!(bench.result(ProbeType::Readiness), Some(Failure));
    sleep(PERIOD).await;
    assert_eq!(bench.probed(), 1);
    assert_eq!(bench.result(ProbeType::Readiness), Some(Success));
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_begins_spreads_its_probes() {
    let mut bench = Bench::just_begun().await;
    bench.start(0).await;
    bench
        .manager
        .add_pod(&pod(json!({"livenessProbe": probe(json!({}))})));
    sleep(PERIOD).await;
    assert_eq!(bench.probed(), 1, "within the first period");
}

#[tokio::test(start_paused = true)]
async fn what_ran_before_the_kubelet_keeps_what_it_was() {
    let mut bench = Bench::new().await;
    bench.start(0).await;
    let since = clock::now()
        .checked_sub(SignedDuration::from_hours(1))
        .unwrap();
    bench.report(ContainerState {
        running: Some(ContainerStateRunning {
            started_at: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(since)),
        }),
        ..ContainerState::default()
    });
    let later = probe(json!({"initialDelaySeconds": 7200}));
    bench
        .manager
        .add_pod(&pod(json!({"readinessProbe": later})));
    sleep(PERIOD).await;
    assert_eq!(bench.result(ProbeType::Readiness), None);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_ended_is_not_ready_and_one_that_stays_so_not_probed() {
    for (policy, alive) in [("Always", true), ("Never", false)] {
        let mut bench = Bench::new().await;
        bench.start(0).await;
        let mut pod = pod(json!({"readinessProbe": probe(json!({}))}));
        Arc::make_mut(&mut pod)
            .spec
            .as_mut()
            .unwrap()
            .restart_policy = Some(policy.to_owned());
        bench.manager.add_pod(&pod);
        sleep(SECOND).await;
        assert_eq!(bench.result(ProbeType::Readiness), Some(Success));
        bench.changes();
        bench.report(ContainerState {
            terminated: Some(ContainerStateTerminated::default()),
            ..ContainerState::default()
        });
        sleep(PERIOD).await;
        assert_eq!(bench.probed(), 1);
        assert_eq!(bench.changes(), 1);
        let left = alive.then_some(Failure);
        assert_eq!(bench.result(ProbeType::Readiness), left, "{policy}");
        assert_eq!(bench.manager.0.workers.lock().is_empty(), !alive);
        // Looking at the pod again asks for no further look.
        bench.manager.add_pod(&pod);
        sleep(PERIOD).await;
        assert_eq!(bench.changes(), 0, "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn readiness_is_probed_until_the_pod_has_ended() {
    let mut bench = Bench::new().await;
    bench.start(0).await;
    let uid = PodUid::from("u");
    bench.manager.add_pod(&pod(json!({
        "livenessProbe": probe(json!({})),
        "readinessProbe": probe(json!({})),
    })));
    sleep(SECOND).await;
    assert_eq!(bench.probed(), 2);
    bench.manager.stop_liveness_and_startup(&uid);
    sleep(PERIOD).await;
    assert_eq!(bench.probed(), 3);
    assert_eq!(bench.result(ProbeType::Liveness), None);
    assert_eq!(bench.result(ProbeType::Readiness), Some(Success));
    bench.manager.remove_pod(&uid);
    sleep(PERIOD).await;
    assert_eq!(bench.probed(), 3);
    assert_eq!(bench.result(ProbeType::Readiness), None);
    assert!(bench.manager.0.workers.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_has_started_is_asked_whether_it_is_ready_until_the_pod_has_ended() {
    let mut bench = Bench::new().await;
    bench.start(0).await;
    bench.manager.add_pod(&pod(json!({
        "startupProbe": probe(json!({})),
        "readinessProbe": probe(json!({"failureThreshold": 1})),
    })));
    sleep(PERIOD * 2).await;
    assert_eq!(bench.result(ProbeType::Startup), Some(Success));
    assert_eq!(bench.result(ProbeType::Readiness), Some(Success));
    for status in bench.status.lock().container_statuses.iter_mut().flatten() {
        status.started = Some(true);
    }
    bench.manager.stop_liveness_and_startup(&PodUid::from("u"));
    bench.exits(&[1]);
    sleep(PERIOD * 2).await;
    assert_eq!(bench.result(ProbeType::Startup), None);
    assert_eq!(bench.result(ProbeType::Readiness), Some(Failure));
}

#[tokio::test(start_paused = true)]
async fn sidecars_are_probed_and_other_init_containers_are_not() {
    let mut bench = Bench::new().await;
    bench.start(0).await;
    let status = bench.status.lock().container_statuses.take();
    bench.status.lock().init_container_statuses = status;
    for (policy, probed) in [(None, 0), (Some("Always"), 1)] {
        let init = json!({"name": "c", "restartPolicy": policy, "livenessProbe": probe(json!({}))});
        let pod = json!({
            "metadata": {"uid": "u"},
            "spec": {"containers": [{"name": "other"}], "initContainers": [init]}
        });
        bench
            .manager
            .add_pod(&Arc::new(serde_json::from_value(pod).unwrap()));
        sleep(SECOND).await;
        assert_eq!(bench.probed(), probed, "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_may_not_take_longer_than_its_timeout() {
    let mut bench = Bench::new().await;
    bench.start(0).await;
    let takes = |takes| Behaviour {
        exec: Some(Exec {
            takes,
            ..Exec::default()
        }),
        ..Behaviour::default()
    };
    let timeouts = json!({"timeoutSeconds": 2, "failureThreshold": 1});
    bench.runtime.behave("c", takes(SECOND));
    bench
        .manager
        .add_pod(&pod(json!({"readinessProbe": probe(timeouts)})));
    sleep(SECOND * 5).await;
    assert_eq!(bench.result(ProbeType::Readiness), Some(Success));
    bench.runtime.behave("c", takes(SECOND * 3));
    sleep(PERIOD).await;
    assert_eq!(bench.result(ProbeType::Readiness), Some(Failure));
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_away_says_nothing_of_containers() {
    use fake_runtime::{Fault, Times};
    let mut bench = Bench::new().await;
    bench.start(0).await;
    let once = json!({"failureThreshold": 1});
    bench
        .manager
        .add_pod(&pod(json!({"livenessProbe": probe(once)})));
    sleep(SECOND).await;
    let away = Fault::Error(tonic::Status::unavailable("away"));
    bench.runtime.fault(Verb::ExecSync, away, Times::Always);
    sleep(PERIOD * 3).await;
    assert_eq!(bench.probed(), 1 + 3 * 3, "each was tried three times");
    assert_eq!(bench.result(ProbeType::Liveness), Some(Success));
}
