//! Environment variables, commands, arguments and working directories.

use super::row::{Row, contains, row};

pub(crate) fn rows() -> Vec<Row> {
    vec![
        row(
            "env-expansion",
            "$(VAR), $$(VAR) and what is not defined",
            "restartPolicy: Never
containers:
- name: c
  image: IMAGE
  env:
  - {name: A, value: one}
  - {name: B, value: '$(A)-$$(A)-$(NONE)-$(LATER)'}
  - {name: LATER, value: late}
  command: [sh, -c, 'echo \"$B\"']",
        )
        .phase("Succeeded")
        .log("c", "one-$(A)-$(NONE)-$(LATER)\n"),
        row(
            "args-expansion",
            "variables in command and arguments",
            "restartPolicy: Never
containers:
- name: c
  image: IMAGE
  env: [{name: A, value: one}]
  command: [echo, '$(A)']
  args: ['$$(A)', '$(A)$(A)']",
        )
        .log("c", "one $(A) oneone\n"),
        row(
            "field-ref",
            "fieldRef: every field that variables can have",
            "restartPolicy: Never
serviceAccountName: ''
containers:
- name: c
  image: IMAGE
  env:
  - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
  - {name: LABEL, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['tier']\"}}}
  - {name: ANNOTATION, valueFrom: {fieldRef: {fieldPath: \"metadata.annotations['note']\"}}}
  - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
  command: [sh, -c, 'echo $NAME $NAMESPACE $LABEL $ANNOTATION $NODE']",
        )
        .metadata("labels: {tier: front}\nannotations: {note: hello}\n")
        .log("c", "field-ref-node default front hello node\n"),
        row(
            "field-ref-ips",
            "fieldRef: addresses of pod and node, UID",
            "restartPolicy: Never
containers:
- name: c
  image: IMAGE
  env:
  - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  - {name: IPS, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}
  - {name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
  - {name: THE_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
  command: [sh, -c, 'echo $IP $IPS $HOST $THE_UID; sleep 1000']",
        )
        .phase("Running")
        .until("the log has the addresses and the UID", |subject| {
            let host = subject.pod["status"]["hostIP"].as_str().unwrap_or_default();
            let (ip, uid) = (subject.ip(), subject.uid());
            Ok(subject.log("c") == format!("{ip} {ip} {host} {uid}\n"))
        }),
        row(
            "resource-field-ref",
            "resourceFieldRef with and without divisor",
            "restartPolicy: Never
containers:
- name: c
  image: IMAGE
  resources: {requests: {cpu: 250m, memory: 32Mi}, limits: {cpu: 1500m, memory: 64Mi}}
  env:
  - {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
  - {name: MILLI, valueFrom: {resourceFieldRef: {resource: requests.cpu, divisor: 1m}}}
  - {name: MEMORY, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
  - {name: BYTES, valueFrom: {resourceFieldRef: {resource: requests.memory}}}
  command: [sh, -c, 'echo $CPU $MILLI $MEMORY $BYTES']",
        )
        .log("c", "2 250 64 33554432\n"),
        row(
            "file-key-ref",
            "fileKeyRef: a variable from a file of an emptyDir",
            "restartPolicy: Never
initContainers:
- {name: i, image: IMAGE, command: [sh, -c, 'printf \"WORD=\\\\047found\\\\047\\\\n\" > /v/words'], volumeMounts: [{name: v, mountPath: /v}]}
containers:
- name: c
  image: IMAGE
  env:
  - {name: X, valueFrom: {fileKeyRef: {volumeName: v, path: words, key: WORD}}}
  command: [sh, -c, 'echo $X']
volumes: [{name: v, emptyDir: {}}]",
        )
        .log("c", "found\n"),
        row(
            "working-dir",
            "the working directory",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, workingDir: /www, command: [pwd]}]",
        )
        .log("c", "/www\n"),
        row(
            "image-command",
            "the image's own command",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, stdin: false}]",
        )
        .phase("Succeeded")
        .container("c", "/state/terminated/exitCode", 0),
        row(
            "tty",
            "a terminal",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, tty: true, command: [busybox, tty]}]",
        )
        .phase("Succeeded")
        .log("c", contains("/dev/")),
    ]
}
