//! Sidecars (restartable init containers).

use super::row::{Row, at_least, row};

pub(crate) fn rows() -> Vec<Row> {
    vec![
        row(
            "sidecar",
            "a sidecar starts before the others, and ends when they are done",
            "restartPolicy: Never
initContainers:
- {name: s, image: IMAGE, restartPolicy: Always, command: [sh, -c, 'echo up > /v/f; sleep 1000'], volumeMounts: [{name: v, mountPath: /v}]}
- {name: i, image: IMAGE, command: [sh, -c, 'until [ -e /v/f ]; do sleep 0.1; done'], volumeMounts: [{name: v, mountPath: /v}]}
containers:
- {name: c, image: IMAGE, command: [cat, /v/f], volumeMounts: [{name: v, mountPath: /v}]}
volumes: [{name: v, emptyDir: {}}]",
        )
        .phase("Succeeded")
        .log("c", "up\n")
        .container("i", "/state/terminated/exitCode", 0)
        .container("s", "/state/terminated/exitCode", 137),
        row(
            "sidecar-startup",
            "a sidecar's startup probe delays the containers after it",
            "restartPolicy: Never
initContainers:
- name: s
  image: IMAGE
  restartPolicy: Always
  command: [sh, -c, 'sleep 3; touch /v/started; sleep 1000']
  startupProbe: {exec: {command: [cat, /v/started]}, periodSeconds: 1, failureThreshold: 60}
  volumeMounts: [{name: v, mountPath: /v}]
containers:
- {name: c, image: IMAGE, command: [ls, /v/started], volumeMounts: [{name: v, mountPath: /v}]}
volumes: [{name: v, emptyDir: {}}]",
        )
        .phase("Succeeded")
        .container("s", "/restartCount", 0),
        row(
            "sidecar-restarts",
            "a sidecar that ends is started again while the others run",
            "restartPolicy: Never
initContainers: [{name: s, image: IMAGE, restartPolicy: Always, command: [sleep, '1']}]
containers: [{name: c, image: IMAGE, command: [sleep, '1000']}]",
        )
        .phase("Running")
        .container("s", "/restartCount", at_least(1))
        .container("c", "/restartCount", 0),
        row(
            "sidecar-ready",
            "a sidecar's readiness is the pod's",
            "initContainers:
- name: s
  image: IMAGE
  restartPolicy: Always
  command: [sleep, '1000']
  readinessProbe: {exec: {command: ['false']}, periodSeconds: 1}
containers: [{name: c, image: IMAGE, command: [sleep, '1000']}]",
        )
        .phase("Running")
        .container("c", "/ready", true)
        .container("s", "/ready", false)
        .container("s", "/started", true)
        .condition("Initialized", "True")
        .condition("Ready", "False"),
        row(
            "sidecar-liveness",
            "a sidecar that fails its liveness probe is restarted",
            "initContainers:
- name: s
  image: IMAGE
  restartPolicy: Always
  command: [sleep, '1000']
  livenessProbe: {exec: {command: ['false']}, periodSeconds: 1, failureThreshold: 1}
containers: [{name: c, image: IMAGE, command: [sleep, '1000']}]",
        )
        .container("s", "/restartCount", at_least(1))
        .container("c", "/restartCount", 0),
        row(
            "sidecar-order",
            "the others end first, then sidecars in reverse order",
            "terminationGracePeriodSeconds: 20
initContainers:
- {name: a, image: IMAGE, restartPolicy: Always, command: [sh, -c, 'trap \"echo a >> /out/order; exit\" TERM; touch /tmp/up; while :; do sleep 0.1; done'], startupProbe: {exec: {command: [cat, /tmp/up]}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 60}, volumeMounts: [{name: out, mountPath: /out}]}
- {name: b, image: IMAGE, restartPolicy: Always, command: [sh, -c, 'trap \"echo b >> /out/order; exit\" TERM; touch /tmp/up; while :; do sleep 0.1; done'], startupProbe: {exec: {command: [cat, /tmp/up]}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 60}, volumeMounts: [{name: out, mountPath: /out}]}
containers:
- {name: c, image: IMAGE, command: [sh, -c, 'trap \"sleep 1; echo c >> /out/order; exit\" TERM; touch /tmp/up; while :; do sleep 0.1; done'], readinessProbe: {exec: {command: [cat, /tmp/up]}, periodSeconds: 1}, volumeMounts: [{name: out, mountPath: /out}]}
volumes: [{name: out, hostPath: {path: DIR}}]",
        )
        .condition("Ready", "True")
        .after_removal("the order is c, b, a", |subject| {
            Ok(subject.file("order") == "c\nb\na\n")
        }),
        row(
            "sidecar-hook",
            "a sidecar may have hooks, and what follows waits for postStart",
            "restartPolicy: Never
initContainers:
- name: s
  image: IMAGE
  restartPolicy: Always
  command: [sleep, '1000']
  lifecycle: {postStart: {exec: {command: [sh, -c, 'sleep 1; touch /v/hooked']}}}
  volumeMounts: [{name: v, mountPath: /v}]
containers:
- {name: c, image: IMAGE, command: [ls, /v/hooked], volumeMounts: [{name: v, mountPath: /v}]}
volumes: [{name: v, emptyDir: {}}]",
        )
        .phase("Succeeded"),
    ]
}
