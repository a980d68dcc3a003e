//! Events of pods as `kubectl describe` shows them, with upstream's reasons.

use fake_runtime::{Behaviour, Exec, Fault, Times, Verb};
use k8s_openapi::api::core::v1::{Event, Pod};
use kubelet_api_client::events::{EventQueue, EventRecorder};
use serde_json::{Value, json};
use tokio::time::sleep;
use tonic::Status;

use crate::node::{IMAGE, Node, Running, SECOND, pod, until};

/// Reported for the node of every pod in these tests.
const MISSING_DNS: &str = "MissingClusterDNS";

/// A node whose events are collected.
struct EventCollector {
    node: Node,
    queue: EventQueue,
}

impl EventCollector {
    fn new() -> Self {
        let mut node = Node::new();
        let (recorder, queue) = EventRecorder::new("node");
        node.events = recorder;
        Self { node, queue }
    }

    /// The events of pods since the last call.
    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.queue.try_recv().ok())
            .filter(|event| event.involved_object.kind.as_deref() == Some("Pod"))
            .filter(|event| event.reason.as_deref() != Some(MISSING_DNS))
            .collect()
    }

    /// Type, reason and message of each event.
    fn lines(&mut self) -> Vec<String> {
        self.events().iter().map(line).collect()
    }
}

fn line(event: &Event) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (kind, reason, message) = (&event.type_, &event.reason, &event.message);
    format!("{} {}: {}", text(kind), text(reason), text(message))
}

fn container(fields: Value) -> Value {
    let mut container = json!({"name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent"});
    for (key, value) in fields.as_object().unwrap() {
        container[key] = value.clone();
    }
    container
}

/// The pod `web` with one container `c` with these fields.
fn web(fields: Value) -> Pod {
    pod("web", "u1", json!({"containers": [container(fields)]}))
}

fn failing(code: tonic::Code, message: &str) -> Fault {
    Fault::Error(Status::new(code, message))
}

async fn is_gone(kubelet: &Running, node: &Node, pod: Pod) {
    kubelet.remove(pod).await;
    until("its end", 40 * SECOND, || {
        node.runtime.sandboxes().is_empty()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_life_of_a_pod_is_told_in_order() {
    let mut collector = EventCollector::new();
    let kubelet = collector.node.start();
    let mut pod = web(json!({}));
    let init = container(json!({"name": "i"}));
    pod.spec.as_mut().unwrap().init_containers = Some(vec![serde_json::from_value(init).unwrap()]);
    let exits = Behaviour {
        exits_after: Some((SECOND, 0)),
        ..Behaviour::default()
    };
    collector.node.runtime.behave("i", exits);
    kubelet.add(pod.clone()).await;
    kubelet.until_phase("web", "Running", 10 * SECOND).await;
    is_gone(&kubelet, &collector.node, pod).await;
    let events = collector.events();
    let present = format!(
        "Normal Pulled: Container image \"{IMAGE}\" already present on machine and can be \
         accessed by the pod"
    );
    let expected = [
        ("initContainers{i}", present.as_str()),
        ("initContainers{i}", "Normal Created: Container created"),
        ("initContainers{i}", "Normal Started: Container started"),
        ("containers{c}", present.as_str()),
        ("containers{c}", "Normal Created: Container created"),
        ("containers{c}", "Normal Started: Container started"),
        ("containers{c}", "Normal Killing: Stopping container c"),
    ];
    let lines: Vec<String> = events.iter().map(line).collect();
    assert_eq!(lines, expected.map(|(_, line)| line));
    for (event, (path, _)) in events.iter().zip(expected) {
        let object = &event.involved_object;
        assert_eq!(object.field_path, Some(format!("spec.{path}")));
        assert_eq!(object.uid.as_deref(), Some("u1"));
        assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
    }
}

#[tokio::test(start_paused = true)]
async fn pulls_are_told_and_so_are_those_that_fail() {
    let mut collector = EventCollector::new();
    let runtime = &collector.node.runtime;
    runtime.add_pullable_image("other:1");
    let fault = failing(tonic::Code::Unavailable, "registry is away");
    runtime.fault(Verb::PullImage, fault, Times::N(1));
    let kubelet = collector.node.start();
    kubelet.add(web(json!({"image": "other:1"}))).await;
    kubelet.until_phase("web", "Running", 60 * SECOND).await;
    let lines = collector.lines();
    let expected = [
        "Normal Pulling: Pulling image \"other:1\"",
        "Warning Failed: Failed to pull image \"other:1\": rpc error: code = Unavailable desc = \
         registry is away",
        "Warning Failed: Error: ErrImagePull",
        "Normal BackOff: Back-off pulling image \"other:1\"",
        "Warning Failed: Error: ImagePullBackOff",
    ];
    assert_eq!(lines[..5], expected, "{lines:#?}");
    let last = &lines[lines.len() - 4..];
    assert_eq!(last[0], "Normal Pulling: Pulling image \"other:1\"");
    let pulled = last[1].strip_prefix("Normal Pulled: Successfully pulled image \"other:1\" in ");
    let pulled = pulled.unwrap();
    assert!(
        pulled.contains("s including waiting). Image size: "),
        "{pulled}"
    );
    assert!(pulled.ends_with(" bytes."), "{pulled}");

    let never = container(json!({"image": "absent:1", "imagePullPolicy": "Never"}));
    kubelet
        .add(pod("never", "u2", json!({"containers": [never]})))
        .await;
    sleep(SECOND).await;
    assert_eq!(
        collector.lines()[..2],
        [
            "Warning ErrImageNeverPull: Container image \"absent:1\" is not present with pull \
             policy of Never",
            "Warning Failed: Error: ErrImageNeverPull",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_container_that_keeps_failing_is_backed_off_from() {
    let mut collector = EventCollector::new();
    let exits = Behaviour {
        exits_after: Some((SECOND / 10, 1)),
        ..Behaviour::default()
    };
    collector.node.runtime.behave("c", exits);
    let kubelet = collector.node.start();
    kubelet.add(web(json!({}))).await;
    until("the back-off", 10 * SECOND, || {
        kubelet.waiting("web") == "CrashLoopBackOff"
    })
    .await;
    let lines = collector.lines();
    assert_eq!(
        lines.last().unwrap(),
        "Warning BackOff: Back-off restarting failed container c in pod web_default(u1)"
    );
}

#[tokio::test(start_paused = true)]
async fn what_the_runtime_refuses_is_told_in_its_words() {
    for (verb, expected) in [
        (
            Verb::RunPodSandbox,
            "Warning FailedCreatePodSandBox: Failed to create pod sandbox: rpc error: code = \
             Internal desc = on purpose",
        ),
        (Verb::CreateContainer, "Warning Failed: Error: on purpose"),
        (Verb::StartContainer, "Warning Failed: Error: on purpose"),
    ] {
        let mut collector = EventCollector::new();
        let fault = failing(tonic::Code::Internal, "on purpose");
        collector.node.runtime.fault(verb, fault, Times::N(1));
        let kubelet = collector.node.start();
        kubelet.add(web(json!({}))).await;
        kubelet.until_phase("web", "Running", 60 * SECOND).await;
        let lines = collector.lines();
        let times = lines.iter().filter(|line| *line == expected).count();
        assert_eq!(times, 1, "{verb:?}: {lines:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_probe_is_told_and_what_comes_of_it() {
    let mut collector = EventCollector::new();
    let fails = Behaviour {
        exec: Some(Exec {
            code: 1,
            ..Exec::default()
        }),
        ..Behaviour::default()
    };
    collector.node.runtime.behave("c", fails);
    let kubelet = collector.node.start();
    let probe = json!({
        "exec": {"command": ["check"]}, "periodSeconds": 2, "timeoutSeconds": 1,
        "failureThreshold": 2
    });
    kubelet.add(web(json!({"livenessProbe": probe}))).await;
    until("the restart", 30 * SECOND, || {
        kubelet.container("web").restart_count == 1
    })
    .await;
    let lines = collector.lines();
    let at = |beginning: &str| lines.iter().position(|line| line.starts_with(beginning));
    let unhealthy = at("Warning Unhealthy: Liveness probe failed: ").unwrap();
    let killing =
        at("Normal Killing: Container c failed liveness probe, will be restarted").unwrap();
    assert!(unhealthy < killing, "{lines:#?}");
}

#[tokio::test(start_paused = true)]
async fn hooks_that_fail_are_told_without_what_they_say() {
    let mut collector = EventCollector::new();
    let fails = Behaviour {
        exec: Some(Exec {
            code: 1,
            ..Exec::default()
        }),
        ..Behaviour::default()
    };
    collector.node.runtime.behave("c", fails);
    let kubelet = collector.node.start();
    let hook = json!({"exec": {"command": ["hook"]}});
    kubelet
        .add(web(
            json!({"lifecycle": {"postStart": hook, "preStop": hook}}),
        ))
        .await;
    until("a hook that failed", 10 * SECOND, || {
        kubelet.waiting("web") == "PostStartHookError"
    })
    .await;
    let lines = collector.lines();
    assert_eq!(
        lines[1..6],
        [
            "Normal Created: Container created",
            "Normal Started: Container started",
            "Warning FailedPostStartHook: PostStartHook failed",
            "Normal Killing: FailedPostStartHook",
            "Warning FailedPreStopHook: PreStopHook failed",
        ],
        "{lines:#?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_dies_is_told() {
    let mut collector = EventCollector::new();
    let kubelet = collector.node.start();
    kubelet.add(web(json!({}))).await;
    kubelet.until_phase("web", "Running", 5 * SECOND).await;
    collector.lines();
    let sandbox = collector.node.ready_sandboxes().remove(0);
    collector.node.runtime.exit_sandbox(&sandbox);
    until("another sandbox", 10 * SECOND, || {
        collector.node.ready_sandboxes().len() == 1
    })
    .await;
    assert_eq!(
        collector.lines()[0],
        "Normal SandboxChanged: Pod sandbox changed, it will be killed and re-created."
    );
}

#[tokio::test(start_paused = true)]
async fn volumes_that_cannot_be_had_are_told() {
    let mut collector = EventCollector::new();
    let kubelet = collector.node.start();
    let path = collector.node.dir.path().join("absent");
    let volume = json!({"name": "v", "hostPath": {"path": path, "type": "Directory"}});
    let mounts = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let spec = json!({"containers": [container(mounts)], "volumes": [volume]});
    kubelet.add(pod("web", "u1", spec)).await;
    sleep(5 * SECOND).await;
    let lines = collector.lines();
    let expected = format!(
        "Warning FailedMount: MountVolume.SetUp failed for volume \"v\" : hostPath type check \
         failed: {} is not a directory",
        path.display()
    );
    // Attempts at about 0, 0.5, 1.5 and 3.5 seconds.
    assert_eq!(lines, vec![expected; 4]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_not_admitted_is_told_why() {
    let mut collector = EventCollector::new();
    let kubelet = collector.node.start();
    kubelet
        .add(pod("web", "u1", json!({"nodeSelector": {"a": "b"}})))
        .await;
    kubelet.until_phase("web", "Failed", 5 * SECOND).await;
    assert_eq!(
        collector.lines(),
        [
            "Warning NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node \
          affinity/selector"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_begins_with_its_kubelet() {
    let mut collector = EventCollector::new();
    let _kubelet = collector.node.start();
    let event = collector.queue.recv().await.unwrap();
    assert_eq!(line(&event), "Normal Starting: Starting kubelet.");
    let object = event.involved_object;
    assert_eq!(
        (object.kind, object.name),
        (Some("Node".to_owned()), Some("node".to_owned()))
    );
}
