//! Liveness, readiness and startup probes.

use super::{
    row::{Row, at_least, row},
    run::write,
};

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = liveness();
    rows.extend(readiness());
    rows.extend(startup());
    rows
}

fn liveness() -> Vec<Row> {
    vec![
        row(
            "liveness-exec",
            "a failed liveness command restarts the container",
            "containers:
- name: c
  image: IMAGE
  command: [sleep, '1000']
  livenessProbe: {exec: {command: ['false']}, periodSeconds: 1, failureThreshold: 2}",
        )
        .container("c", "/restartCount", at_least(1))
        .container("c", "/lastState/terminated/exitCode", 137)
        .phase("Running"),
        row(
            "liveness-ok",
            "a live container keeps running",
            "containers:
- name: c
  image: IMAGE
  command: [httpd, -f, -p, '8080', -h, /www]
  ports: [{name: web, containerPort: 8080}]
  startupProbe: {httpGet: {port: web, path: /index.html}, periodSeconds: 1, failureThreshold: 60}
  livenessProbe: {httpGet: {port: web, path: /index.html}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 1}",
        )
        .container("c", "/ready", true)
        .container("c", "/restartCount", 0)
        .stays(5),
        row(
            "liveness-http",
            "a liveness page that is missing restarts the container",
            "containers:
- name: c
  image: IMAGE
  command: [httpd, -f, -p, '8080', -h, /www]
  livenessProbe: {httpGet: {port: 8080, path: /missing}, periodSeconds: 1, failureThreshold: 1}",
        )
        .container("c", "/restartCount", at_least(1)),
        row(
            "liveness-tcp",
            "a closed liveness port restarts the container",
            "containers:
- name: c
  image: IMAGE
  command: [sleep, '1000']
  livenessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 1}",
        )
        .container("c", "/restartCount", at_least(1)),
        row(
            "liveness-grpc",
            "a gRPC liveness check without a response restarts the container",
            "containers:
- name: c
  image: IMAGE
  command: [sleep, '1000']
  livenessProbe: {grpc: {port: 8080}, periodSeconds: 1, failureThreshold: 1}",
        )
        .container("c", "/restartCount", at_least(1)),
        row(
            "liveness-timeout",
            "a liveness command past its timeout fails",
            "containers:
- name: c
  image: IMAGE
  command: [sleep, '1000']
  livenessProbe: {exec: {command: [sleep, '30']}, periodSeconds: 1, timeoutSeconds: 1, failureThreshold: 1}",
        )
        .container("c", "/restartCount", at_least(1)),
        row(
            "liveness-grace",
            "a probe's own grace period, shorter than the pod's",
            "terminationGracePeriodSeconds: 600
containers:
- name: c
  image: IMAGE
  command: [sh, -c, 'trap \"[ -e /d/fail ] || exit\" TERM; while :; do sleep 0.1; done']
  livenessProbe: {exec: {command: [sh, -c, '[ ! -e /d/fail ]']}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 1, terminationGracePeriodSeconds: 1}
  volumeMounts: [{name: d, mountPath: /d}]
volumes: [{name: d, hostPath: {path: DIR}}]",
        )
        .container("c", "/ready", true)
        .then(|subject| write(&subject.dir.join("fail"), ""))
        .container("c", "/restartCount", at_least(1))
        .then(|subject| Ok(std::fs::remove_file(subject.dir.join("fail"))?))
        .container("c", "/ready", true),
    ]
}

fn readiness() -> Vec<Row> {
    vec![
        row(
            "readiness",
            "readiness comes and goes, and never restarts",
            "containers:
- name: c
  image: IMAGE
  command: [sleep, '1000']
  readinessProbe: {exec: {command: [cat, /d/ready]}, periodSeconds: 1, failureThreshold: 1}
  volumeMounts: [{name: d, mountPath: /d}]
volumes: [{name: d, hostPath: {path: DIR}}]",
        )
        .phase("Running")
        .container("c", "/ready", false)
        .container("c", "/started", true)
        .condition("Ready", "False")
        .stays(2)
        .then(|subject| write(&subject.dir.join("ready"), ""))
        .container("c", "/ready", true)
        .condition("ContainersReady", "True")
        .condition("Ready", "True")
        .then(|subject| Ok(std::fs::remove_file(subject.dir.join("ready"))?))
        .container("c", "/ready", false)
        .condition("Ready", "False")
        .container("c", "/restartCount", 0),
        row(
            "readiness-http",
            "readiness over HTTP, by a port's name",
            "containers:
- name: c
  image: IMAGE
  command: [sh, -c, 'sleep 2; exec httpd -f -p 8080 -h /www']
  ports: [{name: web, containerPort: 8080}]
  readinessProbe: {httpGet: {port: web, path: /index.html, httpHeaders: [{name: X-Probe, value: yes-it-is}]}, periodSeconds: 1}",
        )
        .condition("Ready", "True")
        .container("c", "/restartCount", 0),
        row(
            "readiness-tcp",
            "readiness by a TCP connection",
            "containers:
- name: c
  image: IMAGE
  command: [sh, -c, 'sleep 2; exec httpd -f -p 8080 -h /www']
  readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}",
        )
        .condition("Ready", "True"),
        row(
            "readiness-threshold",
            "successThreshold: so many in a row",
            "containers:
- name: c
  image: IMAGE
  command: [sleep, '1000']
  readinessProbe: {exec: {command: [sh, -c, 'echo x >> /tmp/n']}, periodSeconds: 1, successThreshold: 3}",
        )
        .container("c", "/ready", true)
        .condition("Ready", "True"),
    ]
}

fn startup() -> Vec<Row> {
    vec![
        row(
            "startup",
            "until it has started, a container is not restarted by its liveness probe",
            "containers:
- name: c
  image: IMAGE
  command: [sh, -c, 'sleep 4; touch /tmp/up; sleep 1000']
  startupProbe: {exec: {command: [cat, /tmp/up]}, periodSeconds: 1, failureThreshold: 60}
  livenessProbe: {exec: {command: [cat, /tmp/up]}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 1}",
        )
        .container("c", "/started", false)
        .container("c", "/ready", false)
        .container("c", "/restartCount", 0)
        .stays(1)
        .container("c", "/started", true)
        .container("c", "/ready", true)
        .container("c", "/restartCount", 0)
        .stays(3),
        row(
            "startup-fails",
            "a container that does not start in time is restarted",
            "containers:
- name: c
  image: IMAGE
  command: [sleep, '1000']
  startupProbe: {exec: {command: ['false']}, periodSeconds: 1, failureThreshold: 2}",
        )
        .container("c", "/restartCount", at_least(1))
        .container("c", "/ready", false)
        .container("c", "/started", false),
    ]
}
