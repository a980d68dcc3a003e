//! Termination of containers: hooks, signals, grace periods, messages.

use super::row::{Need, Row, at_least, contains, row};

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = hooks();
    rows.extend(signals());
    rows.extend(messages());
    rows
}

fn hooks() -> Vec<Row> {
    vec![
        row(
            "post-start",
            "postStart runs in the container once it is started",
            "containers:
- name: c
  image: IMAGE
  command: [sh, -c, 'until [ -e /tmp/hooked ]; do sleep 0.1; done; echo hooked; sleep 1000']
  lifecycle: {postStart: {exec: {command: [touch, /tmp/hooked]}}}",
        )
        .phase("Running")
        .container("c", "/restartCount", 0)
        .log("c", "hooked\n"),
        row(
            "post-start-fails",
            "a failed postStart kills the container, which is started again",
            "containers:
- name: c
  image: IMAGE
  command: [sleep, '1000']
  lifecycle: {postStart: {exec: {command: [sh, -c, exit 9]}}}",
        )
        .container("c", "/restartCount", at_least(1))
        .container("c", "/lastState/terminated/exitCode", 137),
        row(
            "post-start-http",
            "postStart over HTTP",
            "containers:
- {name: web, image: IMAGE, command: [httpd, -f, -p, '8080', -h, /www]}
- name: c
  image: IMAGE
  command: [sleep, '1000']
  lifecycle: {postStart: {httpGet: {port: 8080, path: /index.html}}}",
        )
        .condition("Ready", "True"),
        row(
            "post-start-sleep",
            "postStart that sleeps",
            "containers:
- name: c
  image: IMAGE
  command: [sleep, '1000']
  lifecycle: {postStart: {sleep: {seconds: 1}}}",
        )
        .condition("Ready", "True")
        .container("c", "/restartCount", 0),
        row(
            "pre-stop",
            "preStop runs before the signal",
            "terminationGracePeriodSeconds: 20
containers:
- name: c
  image: IMAGE
  command: [sh, -c, 'trap \"echo term >> /out/f; exit\" TERM; touch /tmp/up; while :; do sleep 0.1; done']
  readinessProbe: {exec: {command: [cat, /tmp/up]}, periodSeconds: 1}
  lifecycle: {preStop: {exec: {command: [sh, -c, 'sleep 1; echo stop >> /out/f']}}}
  volumeMounts: [{name: out, mountPath: /out}]
volumes: [{name: out, hostPath: {path: DIR}}]",
        )
        .condition("Ready", "True")
        .after_removal("the hook came first", |subject| {
            Ok(subject.file("f") == "stop\nterm\n")
        }),
        row(
            "pre-stop-http",
            "preStop over HTTP, to the container itself",
            "terminationGracePeriodSeconds: 20
containers:
- name: c
  image: IMAGE
  command: [sh, -c, 'mkdir -p /tmp/www/cgi-bin; printf \"#!/bin/sh\\necho stop >> /out/f\\necho; echo\\n\" > /tmp/www/cgi-bin/stop; busybox chmod +x /tmp/www/cgi-bin/stop; exec httpd -f -p 8080 -h /tmp/www']
  ports: [{name: web, containerPort: 8080}]
  readinessProbe: {tcpSocket: {port: web}, periodSeconds: 1}
  lifecycle: {preStop: {httpGet: {port: web, path: /cgi-bin/stop}}}
  volumeMounts: [{name: out, mountPath: /out}]
volumes: [{name: out, hostPath: {path: DIR}}]".replace("mkdir", "busybox mkdir").as_str(),
        )
        .condition("Ready", "True")
        .after_removal("the hook was called", |subject| {
            Ok(subject.file("f") == "stop\n")
        }),
        row(
            "pre-stop-sleep",
            "preStop that sleeps: the container goes on meanwhile",
            "terminationGracePeriodSeconds: 20
containers:
- name: c
  image: IMAGE
  command: [sh, -c, 'trap \"echo term \\$N >> /out/f; exit\" TERM; N=0; touch /tmp/up; while :; do sleep 0.1; [ -e /out/removed ] && N=$((N+1)); done']
  readinessProbe: {exec: {command: [cat, /tmp/up]}, periodSeconds: 1}
  lifecycle: {preStop: {sleep: {seconds: 2}}}
  volumeMounts: [{name: out, mountPath: /out}]
volumes: [{name: out, hostPath: {path: DIR}}]",
        )
        .condition("Ready", "True")
        .then(|subject| super::run::write(&subject.dir.join("removed"), ""))
        .after_removal("it counted for about two seconds", |subject| {
            let count = subject.file("f");
            let count = count.trim().strip_prefix("term ");
            Ok(count.is_some_and(|n| n.parse::<u32>().is_ok_and(|n| n >= 5)))
        }),
    ]
}

fn signals() -> Vec<Row> {
    vec![
        row(
            "grace",
            "a container that needs its grace period gets it",
            "terminationGracePeriodSeconds: 20
containers:
- name: c
  image: IMAGE
  command: [sh, -c, 'trap \"sleep 3; echo done > /out/f; exit\" TERM; touch /tmp/up; while :; do sleep 0.1; done']
  readinessProbe: {exec: {command: [cat, /tmp/up]}, periodSeconds: 1}
  volumeMounts: [{name: out, mountPath: /out}]
volumes: [{name: out, hostPath: {path: DIR}}]",
        )
        .condition("Ready", "True")
        .after_removal("it ended by itself", |subject| {
            Ok(subject.file("f") == "done\n")
        }),
        row(
            "no-grace",
            "a container that does not end is killed when its grace period is over",
            "terminationGracePeriodSeconds: 2
containers:
- name: c
  image: IMAGE
  command: [sh, -c, 'trap \"echo term >> /out/f\" TERM; touch /tmp/up; while :; do sleep 0.1; done']
  readinessProbe: {exec: {command: [cat, /tmp/up]}, periodSeconds: 1}
  volumeMounts: [{name: out, mountPath: /out}]
volumes: [{name: out, hostPath: {path: DIR}}]",
        )
        .condition("Ready", "True")
        .after_removal("it was asked first", |subject| {
            Ok(subject.file("f") == "term\n")
        }),
        row(
            "stop-signal",
            "a container's own stop signal",
            "os: {name: linux}
terminationGracePeriodSeconds: 20
containers:
- name: c
  image: IMAGE
  command: [sh, -c, 'trap \"echo usr1 > /out/f; exit\" USR1; touch /tmp/up; while :; do sleep 0.1; done']
  readinessProbe: {exec: {command: [cat, /tmp/up]}, periodSeconds: 1}
  lifecycle: {stopSignal: SIGUSR1}
  volumeMounts: [{name: out, mountPath: /out}]
volumes: [{name: out, hostPath: {path: DIR}}]",
        )
        .needs(Need::StopSignal)
        .condition("Ready", "True")
        .container("c", "/stopSignal", "SIGUSR1")
        .after_removal("it got the signal", |subject| {
            Ok(subject.file("f") == "usr1\n")
        }),
    ]
}

fn messages() -> Vec<Row> {
    vec![
        row(
            "message",
            "the termination message from /dev/termination-log",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: [sh, -c, 'echo -n why > /dev/termination-log; exit 1']}]",
        )
        .phase("Failed")
        .container("c", "/state/terminated/message", "why"),
        row(
            "message-path",
            "the termination message from a path of the pod's own, on success too",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, terminationMessagePath: /tmp/why, command: [sh, -c, 'echo -n fine > /tmp/why']}]",
        )
        .phase("Succeeded")
        .container("c", "/state/terminated/message", "fine"),
        row(
            "message-log",
            "FallbackToLogsOnError: the end of the log",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, terminationMessagePolicy: FallbackToLogsOnError, command: [sh, -c, 'echo the last words; exit 1']}]",
        )
        .phase("Failed")
        .container("c", "/state/terminated/message", contains("the last words")),
        row(
            "message-log-none",
            "FallbackToLogsOnError: nothing of the log without an error",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, terminationMessagePolicy: FallbackToLogsOnError, command: [echo, fine]}]",
        )
        .phase("Succeeded")
        .container("c", "/state/terminated/message", super::row::ABSENT),
    ]
}
