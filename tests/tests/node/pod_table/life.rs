//! Phases, restart policies, init containers, deadlines.

use serde_json::json;

use super::row::{ABSENT, PRESENT, Row, at_least, contains, one_of, row};

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = phases();
    rows.extend(restarts());
    rows.extend(init());
    rows.extend(ends());
    rows
}

fn phases() -> Vec<Row> {
    vec![
        row(
            "running",
            "a container runs: phase, conditions, addresses",
            "containers: [{name: c, image: IMAGE, command: [sleep, '1000']}]",
        )
        .phase("Running")
        .condition("PodScheduled", "True")
        .condition("Initialized", "True")
        .condition("PodReadyToStartContainers", "True")
        .condition("ContainersReady", "True")
        .condition("Ready", "True")
        .condition_of("Ready", "/lastTransitionTime", PRESENT)
        .pod("/status/qosClass", "BestEffort")
        .pod("/status/podIPs/0/ip", PRESENT)
        .pod("/status/hostIP", PRESENT)
        .pod("/status/startTime", PRESENT)
        .container("c", "/ready", true)
        .container("c", "/started", true)
        .container("c", "/restartCount", 0)
        .container("c", "/state/running/startedAt", PRESENT)
        .container("c", "/imageID", PRESENT),
        row(
            "succeeded",
            "restartPolicy Never, exit code 0: Succeeded, Completed, PodCompleted",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: ['true']}]",
        )
        .phase("Succeeded")
        .container("c", "/state/terminated/reason", "Completed")
        .container("c", "/state/terminated/exitCode", 0)
        .container("c", "/state/terminated/finishedAt", PRESENT)
        .container("c", "/ready", false)
        .condition("Ready", "False")
        .condition_of("Ready", "/reason", "PodCompleted")
        .condition_of("Initialized", "/reason", "PodCompleted")
        .stays(2),
        row(
            "failed",
            "restartPolicy Never, exit code 3: Failed, Error",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: [sh, -c, exit 3]}]",
        )
        .phase("Failed")
        .container("c", "/state/terminated/reason", "Error")
        .container("c", "/state/terminated/exitCode", 3)
        .condition_of("Ready", "/reason", "PodFailed")
        .stays(2),
        row(
            "one-failed",
            "one of two containers ended for good: Running, and not ready",
            "restartPolicy: Never
containers:
- {name: c, image: IMAGE, command: [sh, -c, exit 3]}
- {name: d, image: IMAGE, command: [sleep, '1000']}",
        )
        .phase("Running")
        .container("c", "/state/terminated/exitCode", 3)
        .container("d", "/ready", true)
        .condition_of("Ready", "/reason", "ContainersNotReady")
        .condition_of("Ready", "/message", "containers with unready status: [c]")
        .stays(2),
        row(
            "both-succeeded",
            "all of several containers exit 0: Succeeded",
            "restartPolicy: OnFailure
containers:
- {name: c, image: IMAGE, command: ['true']}
- {name: d, image: IMAGE, command: [sleep, '1']}",
        )
        .phase("Succeeded"),
        row(
            "readiness-gate",
            "a closed readiness gate: containers ready, the pod not",
            "readinessGates: [{conditionType: example.org/open}]
containers: [{name: c, image: IMAGE, command: [sleep, '1000']}]",
        )
        .condition("ContainersReady", "True")
        .condition("Ready", "False")
        .condition_of("Ready", "/reason", "ReadinessGatesNotReady"),
        row(
            "cannot-start",
            "a missing command: terminated with the runtime's reason",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: [/nonexistent]}]",
        )
        .phase("Failed")
        .container(
            "c",
            "/state/terminated/reason",
            one_of(&["ContainerCannotRun", "StartError"]),
        )
        .container("c", "/state/terminated/message", contains("nonexistent")),
    ]
}

fn restarts() -> Vec<Row> {
    vec![
        row(
            "on-failure",
            "restartPolicy OnFailure: run again until exit code 0",
            "restartPolicy: OnFailure
containers:
- name: c
  image: IMAGE
  command: [sh, -c, 'if [ -e /s/once ]; then exit 0; fi; touch /s/once; exit 5']
  volumeMounts: [{name: s, mountPath: /s}]
volumes: [{name: s, emptyDir: {}}]",
        )
        .phase("Succeeded")
        .container("c", "/restartCount", 1)
        .container("c", "/lastState/terminated/exitCode", 5),
        row(
            "always",
            "restartPolicy Always: run again after exit code 0 too",
            "containers: [{name: c, image: IMAGE, command: [sleep, '1']}]",
        )
        .container("c", "/restartCount", at_least(1))
        .container("c", "/lastState/terminated/reason", "Completed")
        .phase("Running"),
        row(
            "crash-loop",
            "CrashLoopBackOff with upstream's message; the pod stays Running",
            "containers: [{name: c, image: IMAGE, command: [sh, -c, exit 1]}]",
        )
        .phase("Running")
        .container("c", "/state/waiting/reason", "CrashLoopBackOff")
        .container(
            "c",
            "/state/waiting/message",
            contains("back-off 10s restarting failed container=c pod=crash-loop-node_default("),
        )
        .container("c", "/lastState/terminated/exitCode", 1)
        .container("c", "/restartCount", at_least(1)),
        row(
            "killed",
            "a container stopped by hand is started again, in the same sandbox",
            "containers: [{name: c, image: IMAGE, command: [sleep, '1000']}]",
        )
        .phase("Running")
        .container("c", "/ready", true)
        .stop_container("c")
        .container("c", "/restartCount", 1)
        .container("c", "/lastState/terminated/exitCode", 137)
        .container("c", "/ready", true),
        row(
            "sandbox-stopped",
            "a pod gets another sandbox after its own was stopped by hand",
            "containers: [{name: c, image: IMAGE, command: [sleep, '1000']}]",
        )
        .phase("Running")
        .container("c", "/ready", true)
        .stop_sandbox()
        // Two restarts if the kubelet sees the container exit before its sandbox.
        .container("c", "/restartCount", at_least(1))
        .container("c", "/ready", true)
        .condition("PodReadyToStartContainers", "True")
        .pod("/status/podIP", PRESENT),
        row(
            "never-restarts-one",
            "a container's own restartPolicy Never in a pod that restarts",
            "containers:
- {name: c, image: IMAGE, command: ['false'], restartPolicy: Never}
- {name: d, image: IMAGE, command: [sleep, '1000']}",
        )
        .container("c", "/state/terminated/exitCode", 1)
        .container("c", "/restartCount", 0)
        .container("d", "/ready", true)
        .phase("Running")
        .stays(4),
        row(
            "restart-rule",
            "a restart rule by exit code in a pod that does not restart",
            "restartPolicy: Never
containers:
- name: c
  image: IMAGE
  command: [sh, -c, 'if [ -e /s/once ]; then exit 7; fi; touch /s/once; exit 42']
  restartPolicy: Never
  restartPolicyRules:
  - {action: Restart, exitCodes: {operator: In, values: [42]}}
  volumeMounts: [{name: s, mountPath: /s}]
volumes: [{name: s, emptyDir: {}}]",
        )
        .phase("Failed")
        .container("c", "/restartCount", 1)
        .container("c", "/lastState/terminated/exitCode", 42)
        .container("c", "/state/terminated/exitCode", 7),
        row(
            "out-of-memory",
            "a container past its memory limit: OOMKilled",
            "restartPolicy: Never
containers:
- name: c
  image: IMAGE
  command: [busybox, tail, /dev/zero]
  resources: {limits: {memory: 24Mi}}",
        )
        // containerd misses kills just after a start (containerd/containerd#8180) and on a busy
        // machine (containerd/containerd#8893).
        .phase("Failed")
        .container("c", "/state/terminated/exitCode", 137)
        .container("c", "/state/terminated/reason", "OOMKilled"),
        row(
            "edited",
            "a manifest that changes becomes another pod, once the old one has ended",
            "containers: [{name: c, image: IMAGE, command: [sh, -c, 'echo first; sleep 1000']}]",
        )
        .log("c", "first\n")
        .edit("containers: [{name: c, image: IMAGE, command: [sh, -c, 'echo second; sleep 1000']}]")
        .log("c", "second\n")
        .phase("Running")
        .container("c", "/restartCount", 0),
    ]
}

fn init() -> Vec<Row> {
    vec![
        row(
            "init-order",
            "init containers run one by one before the others",
            "restartPolicy: Never
initContainers:
- {name: i, image: IMAGE, command: [sh, -c, 'sleep 1; echo i >> /s/f'], volumeMounts: [{name: s, mountPath: /s}]}
- {name: j, image: IMAGE, command: [sh, -c, 'echo j >> /s/f'], volumeMounts: [{name: s, mountPath: /s}]}
containers:
- {name: c, image: IMAGE, command: [cat, /s/f], volumeMounts: [{name: s, mountPath: /s}]}
volumes: [{name: s, emptyDir: {}}]",
        )
        .phase("Succeeded")
        .container("i", "/ready", true)
        .container("i", "/state/terminated/reason", "Completed")
        .log("c", "i\nj\n"),
        row(
            "init-failed",
            "a failed init container fails a pod that is not restarted",
            "restartPolicy: Never
initContainers: [{name: i, image: IMAGE, command: ['false']}]
containers: [{name: c, image: IMAGE, command: ['true']}]",
        )
        .phase("Failed")
        .container("i", "/state/terminated/exitCode", 1)
        .container("c", "/state/waiting/reason", "PodInitializing")
        .condition("Initialized", "False")
        .condition_of("Initialized", "/reason", "ContainersNotInitialized")
        .condition_of("Initialized", "/message", "containers with incomplete status: [i]"),
        row(
            "init-again",
            "a failed init container is run again",
            "restartPolicy: OnFailure
initContainers:
- name: i
  image: IMAGE
  command: [sh, -c, 'if [ -e /s/once ]; then exit 0; fi; touch /s/once; exit 5']
  volumeMounts: [{name: s, mountPath: /s}]
containers: [{name: c, image: IMAGE, command: ['true']}]
volumes: [{name: s, emptyDir: {}}]",
        )
        .phase("Succeeded")
        .container("i", "/restartCount", 1),
        row(
            "init-crash-loop",
            "an init container that keeps failing keeps the pod Pending",
            "initContainers: [{name: i, image: IMAGE, command: ['false']}]
containers: [{name: c, image: IMAGE, command: ['true']}]",
        )
        .phase("Pending")
        .container("i", "/state/waiting/reason", "CrashLoopBackOff")
        .container("c", "/state/waiting/reason", "PodInitializing")
        .container("c", "/lastState/terminated", ABSENT),
    ]
}

fn ends() -> Vec<Row> {
    vec![
        row(
            "deadline",
            "activeDeadlineSeconds ends the pod: Failed, DeadlineExceeded",
            "activeDeadlineSeconds: 3
containers: [{name: c, image: IMAGE, command: [sleep, '1000']}]",
        )
        .phase("Failed")
        .pod("/status/reason", "DeadlineExceeded")
        .pod(
            "/status/message",
            "Pod was active on the node longer than the specified deadline",
        )
        .container("c", "/state/terminated/exitCode", 137)
        .stays(2),
        row(
            "generation",
            "fields without a request are absent",
            "containers: [{name: c, image: IMAGE, command: [sleep, '1000']}]",
        )
        .phase("Running")
        .pod("/status/initContainerStatuses", ABSENT)
        .pod("/status/ephemeralContainerStatuses", ABSENT)
        .pod("/status/reason", ABSENT)
        .pod(
            "/metadata/annotations/kubernetes.io~1config.source",
            json!("file"),
        ),
    ]
}
