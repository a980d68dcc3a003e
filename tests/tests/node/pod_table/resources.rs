//! Resources in the cgroup.

use super::row::{Row, contains, row};

pub(crate) fn rows() -> Vec<Row> {
    vec![
        row(
            "memory-limit",
            "the memory limit, from inside",
            "restartPolicy: Never
containers:
- name: c
  image: IMAGE
  resources: {limits: {memory: 48Mi}}
  command: [sh, -c, 'cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes']",
        )
        .log("c", "50331648\n"),
        row(
            "cpu-limit",
            "the CPU limit is a quota",
            "restartPolicy: Never
containers:
- name: c
  image: IMAGE
  resources: {limits: {cpu: 250m}}
  command: [sh, -c, 'cat /sys/fs/cgroup/cpu.max 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us']",
        )
        .log("c", contains("25000")),
        row(
            "cpu-request",
            "the CPU request is a share",
            "restartPolicy: Never
containers:
- name: c
  image: IMAGE
  resources: {requests: {cpu: 500m}}
  command: [sh, -c, 'if [ -e /sys/fs/cgroup/cpu.weight ]; then echo 512; else cat /sys/fs/cgroup/cpu/cpu.shares; fi']",
        )
        .log("c", "512\n"),
        row(
            "guaranteed",
            "limits alone: Guaranteed, requests defaulted",
            "containers:
- name: c
  image: IMAGE
  resources: {limits: {cpu: 100m, memory: 32Mi}}
  command: [sleep, '1000']",
        )
        .phase("Running")
        .pod("/status/qosClass", "Guaranteed")
        .pod("/spec/containers/0/resources/requests/cpu", "100m")
        .container("c", "/resources/limits/memory", "32Mi")
        .container("c", "/allocatedResources/cpu", "100m"),
        row(
            "burstable",
            "requests below limits: Burstable, with the OOM score of its memory",
            "containers:
- name: c
  image: IMAGE
  resources: {requests: {memory: 16Mi}, limits: {memory: 32Mi}}
  command: [sh, -c, 'cat /proc/self/oom_score_adj; sleep 1000']",
        )
        .pod("/status/qosClass", "Burstable")
        .until("the score is between 900 and 999", |subject| {
            let score = subject.log("c").trim().parse::<i32>();
            Ok(score.is_ok_and(|score| (900..=999).contains(&score)))
        }),
        row(
            "best-effort",
            "no resources: the first that the kernel kills",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: [cat, /proc/self/oom_score_adj]}]",
        )
        .log("c", "1000\n"),
        row(
            "ephemeral-storage",
            "ephemeral-storage is accepted",
            "containers:
- name: c
  image: IMAGE
  resources: {requests: {ephemeral-storage: 1Mi}, limits: {ephemeral-storage: 16Mi}}
  command: [sleep, '1000']",
        )
        .phase("Running")
        .pod("/status/qosClass", "BestEffort"),
    ]
}
