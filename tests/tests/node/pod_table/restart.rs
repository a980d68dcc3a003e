//! A kubelet that is killed at any time: running pods are not affected, and pods removed in the
//! meantime are cleaned up.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use e2e::node::Node;
use serde_json::Value;
use tokio::time::sleep;

use super::{
    row::{Row, at_least, row},
    run::PodUnderTest,
};

/// How often the kubelet is killed.
const KILLS: u32 = 3;
/// The time for a faulty kubelet to show its fault.
const WRONG: Duration = Duration::from_secs(4);

/// Pods of each kind that has state to lose.
fn pods() -> Vec<Row> {
    vec![
        row(
            "plain",
            "a container that runs",
            "containers: [{name: c, image: IMAGE, command: [sleep, '1000']}]",
        )
        .condition("Ready", "True"),
        row(
            "mounts",
            "volumes of every kind",
            "securityContext: {fsGroup: 4000}
containers:
- name: c
  image: IMAGE
  command: [sleep, '1000']
  volumeMounts:
  - {name: memory, mountPath: /memory}
  - {name: disk, mountPath: /disk, subPath: sub}
  - {name: host, mountPath: /host, subPath: sub}
  - {name: data, mountPath: /data}
volumes:
- {name: memory, emptyDir: {medium: Memory, sizeLimit: 4Mi}}
- {name: disk, emptyDir: {}}
- {name: host, hostPath: {path: DIR}}
- {name: data, projected: {sources: [{downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]}}",
        )
        .condition("Ready", "True"),
        row(
            "probed",
            "a sidecar and all probes",
            "initContainers:
- {name: i, image: IMAGE, command: ['true']}
- name: s
  image: IMAGE
  restartPolicy: Always
  command: [sleep, '1000']
  startupProbe: {exec: {command: ['true']}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 60}
containers:
- name: c
  image: IMAGE
  command: [sleep, '1000']
  startupProbe: {exec: {command: ['true']}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 60}
  livenessProbe: {exec: {command: ['true']}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 1}
  readinessProbe: {exec: {command: ['true']}, periodSeconds: 1}",
        )
        .condition("Ready", "True"),
        row(
            "restarted",
            "a container that was restarted once",
            "containers:
- name: c
  image: IMAGE
  command: [sh, -c, 'if [ -e /s/once ]; then sleep 1000; fi; touch /s/once; exit 5']
  volumeMounts: [{name: s, mountPath: /s}]
volumes: [{name: s, emptyDir: {}}]",
        )
        .container("c", "/restartCount", at_least(1))
        .condition("Ready", "True"),
        row(
            "done",
            "a pod that has succeeded",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: ['true']}]",
        )
        .phase("Succeeded"),
        row(
            "not-done",
            "a pod that has failed",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: ['false']}]",
        )
        .phase("Failed"),
    ]
}

/// The state of a pod that must not change.
#[derive(Debug, PartialEq)]
struct Life {
    phase: Value,
    /// The IP of a running pod; a pod that has ended has released it.
    ip: Value,
    /// By container name: ID, restart count, readiness, and exit code of the last run.
    containers: BTreeMap<String, [Value; 4]>,
    /// IDs and mount points of the pod's mounts.
    mounts: BTreeSet<String>,
}

fn life(pod: &Value) -> Life {
    let status = &pod["status"];
    let containers = ["initContainerStatuses", "containerStatuses"]
        .iter()
        .flat_map(|kind| status[kind].as_array().into_iter().flatten())
        .map(|container| {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            let facts = [
                container["containerID"].clone(),
                container["restartCount"].clone(),
                container["ready"].clone(),
                container["lastState"]["terminated"]["exitCode"].clone(),
            ];
            (name, facts)
        });
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = mounts.lines().filter(|line| line.contains(uid));
    let fields = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        format!("{} {}", fields[0], fields[4])
    };
    assert_begins_before_its_containers(status);
    let runs = status["phase"] == "Running";
    Life {
        phase: status["phase"].clone(),
        ip: if runs {
            status["podIP"].clone()
        } else {
            Value::Null
        },
        containers: containers.collect(),
        mounts: mounts.map(fields).collect(),
    }
}

/// A restarted kubelet derives the start time from the creation of the sandbox, to the second,
/// rather than from its own start.
fn assert_begins_before_its_containers(status: &Value) {
    let state = &status["containerStatuses"][0]["state"];
    let started = ["running", "terminated"].map(|kind| state[kind]["startedAt"].as_str());
    let started = started.into_iter().flatten().next().unwrap();
    let begun = status["startTime"].as_str().unwrap();
    assert!(begun <= started, "begun at {begun}, started at {started}");
}

async fn lives(subjects: &mut [PodUnderTest<'_>]) -> BTreeMap<String, Life> {
    let mut lives = BTreeMap::new();
    for subject in subjects {
        subject.look().await.unwrap();
        lives.insert(subject.name.to_owned(), life(&subject.pod));
    }
    lives
}

/// Kills and starts the kubelet; no pod may change.
pub(crate) async fn nothing_changes(node: &mut Node) {
    let rows = pods();
    let before = {
        let node = &*node;
        let mut subjects: Vec<PodUnderTest<'_>> =
            rows.iter().map(|r| PodUnderTest::of(node, r)).collect();
        for (row, subject) in rows.iter().zip(&mut subjects) {
            subject.begin(row).unwrap();
        }
        for (row, subject) in rows.iter().zip(&mut subjects) {
            subject.take_all(row).await.unwrap();
        }
        lives(&mut subjects).await
    };
    assert!(!before["mounts"].mounts.is_empty(), "nothing is mounted");
    for kill in 1..=KILLS {
        node.kill_kubelet().unwrap();
        node.start_kubelet_with(super::CONFIGURATION, &[])
            .await
            .unwrap();
        let node = &*node;
        let mut subjects: Vec<PodUnderTest<'_>> =
            rows.iter().map(|r| PodUnderTest::of(node, r)).collect();
        for (row, subject) in rows.iter().zip(&mut subjects) {
            subject.take_all(row).await.unwrap();
        }
        sleep(WRONG).await;
        assert_eq!(lives(&mut subjects).await, before, "kill {kill}");
    }
}

/// Kills the kubelet, removes manifests and starts it again: nothing of their pods may remain.
pub(crate) async fn orphans_go(node: &mut Node) {
    let rows = pods();
    let mut gone = Vec::new();
    {
        let node = &*node;
        for row in &rows {
            let mut subject = PodUnderTest::of(node, row);
            subject.look().await.unwrap();
            gone.push((row, subject.pod));
        }
    }
    node.kill_kubelet().unwrap();
    for (row, _) in &gone {
        node.remove_manifest(&format!("{}.yaml", row.name)).unwrap();
    }
    node.start_kubelet_with(super::CONFIGURATION, &[])
        .await
        .unwrap();
    let node = &*node;
    for (row, pod) in gone {
        let mut subject = PodUnderTest::of(node, row);
        subject.pod = pod;
        subject.await_nothing_left().await.unwrap();
    }
}
