//! The metrics that the rules and dashboards of kubernetes-mixin and kube-prometheus, and
//! metrics-server, read from a kubelet.
//!
//! A standalone node has all of them but:
//! * `rest_client_*` and `kubelet_certificate_manager_*`, which need an API server, and
//!   `kubelet_volume_stats_*`, which need a claim: tests of `kubelet-api-client` and
//!   `kubelet-resource-analyzer` name them;
//! * `kubelet_evictions`, which has no samples before the first eviction;
//! * `kubelet_node_config_error` and `storage_operation_errors_total`, which upstream has removed;
//! * `go_goroutines`, which is about Go.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{images, node::Node};
use serde_json::json;
use test_run::skips;

/// The time for one step, on a busy machine.
const SOON: Duration = Duration::from_secs(120);

/// Labels of the container and of its pod.
const CONTAINER: &[&str] = &[
    "namespace=\"default\"",
    "pod=\"seen-node\"",
    "container=\"c\"",
];
const DISK: &[&str] = &[
    "namespace=\"default\"",
    "pod=\"seen-node\"",
    "container=\"c\"",
    "device=\"",
];
const NETWORK: &[&str] = &[
    "namespace=\"default\"",
    "pod=\"seen-node\"",
    "interface=\"eth0\"",
];
const PROBE: &[&str] = &[
    "namespace=\"default\"",
    "pod=\"seen-node\"",
    "container=\"c\"",
    "probe_type=\"Liveness\"",
];
const MACHINE: &[&str] = &["boot_id=\"", "machine_id=\"", "system_uuid=\""];

/// Pages, their series, and what the labels of one of them must contain.
#[rustfmt::skip]
const SERIES: &[(&str, &str, &[&str])] = &[
    ("/metrics", "kubelet_node_name", &["node=\""]),
    ("/metrics", "kubelet_running_pods", &[]),
    ("/metrics", "kubelet_running_containers", &["container_state=\"running\""]),
    ("/metrics", "kubelet_pleg_relist_duration_seconds_bucket", &["le=\""]),
    ("/metrics", "kubelet_pleg_relist_duration_seconds_count", &[]),
    ("/metrics", "kubelet_pleg_relist_interval_seconds_bucket", &["le=\""]),
    ("/metrics", "kubelet_pod_start_duration_seconds_bucket", &["le=\""]),
    ("/metrics", "kubelet_pod_start_duration_seconds_count", &[]),
    ("/metrics", "kubelet_pod_worker_duration_seconds_bucket", &["operation_type=\"", "le=\""]),
    ("/metrics", "kubelet_pod_worker_duration_seconds_count", &["operation_type=\""]),
    ("/metrics", "kubelet_runtime_operations_total", &["operation_type=\""]),
    ("/metrics", "kubelet_runtime_operations_errors_total", &["operation_type=\"pull_image\""]),
    ("/metrics", "kubelet_runtime_operations_duration_seconds_bucket", &["operation_type=\"", "le=\""]),
    ("/metrics", "kubelet_cgroup_manager_duration_seconds_bucket", &["operation_type=\"", "le=\""]),
    ("/metrics", "kubelet_cgroup_manager_duration_seconds_count", &["operation_type=\""]),
    ("/metrics", "storage_operation_duration_seconds_bucket", &["operation_name=\"", "volume_plugin=\"", "le=\""]),
    ("/metrics", "storage_operation_duration_seconds_count", &["operation_name=\"", "volume_plugin=\""]),
    ("/metrics", "volume_manager_total_volumes", &["plugin_name=\"", "state=\"actual_state_of_world\""]),
    ("/metrics", "volume_manager_total_volumes", &["plugin_name=\"", "state=\"desired_state_of_world\""]),
    ("/metrics", "kubernetes_build_info", &["git_version=\"v1."]),
    ("/metrics", "process_resident_memory_bytes", &[]),
    ("/metrics", "process_cpu_seconds_total", &[]),
    ("/metrics", "process_start_time_seconds", &[]),
    ("/metrics/cadvisor", "container_cpu_usage_seconds_total", CONTAINER),
    ("/metrics/cadvisor", "container_cpu_usage_seconds_total", &["id=\"/\""]),
    ("/metrics/cadvisor", "container_cpu_cfs_periods_total", CONTAINER),
    ("/metrics/cadvisor", "container_cpu_cfs_throttled_periods_total", CONTAINER),
    ("/metrics/cadvisor", "container_memory_working_set_bytes", CONTAINER),
    ("/metrics/cadvisor", "container_memory_usage_bytes", CONTAINER),
    ("/metrics/cadvisor", "container_memory_rss", CONTAINER),
    ("/metrics/cadvisor", "container_memory_cache", CONTAINER),
    ("/metrics/cadvisor", "container_fs_reads_total", DISK),
    ("/metrics/cadvisor", "container_fs_reads_bytes_total", DISK),
    ("/metrics/cadvisor", "container_fs_writes_total", DISK),
    ("/metrics/cadvisor", "container_fs_writes_bytes_total", DISK),
    ("/metrics/cadvisor", "container_fs_inodes_total", DISK),
    ("/metrics/cadvisor", "container_ulimits_soft", CONTAINER),
    ("/metrics/cadvisor", "container_network_receive_bytes_total", NETWORK),
    ("/metrics/cadvisor", "container_network_receive_packets_total", NETWORK),
    ("/metrics/cadvisor", "container_network_receive_packets_dropped_total", NETWORK),
    ("/metrics/cadvisor", "container_network_transmit_bytes_total", NETWORK),
    ("/metrics/cadvisor", "container_network_transmit_packets_total", NETWORK),
    ("/metrics/cadvisor", "container_network_transmit_packets_dropped_total", NETWORK),
    ("/metrics/cadvisor", "container_start_time_seconds", CONTAINER),
    ("/metrics/cadvisor", "container_last_seen", CONTAINER),
    ("/metrics/cadvisor", "machine_cpu_cores", MACHINE),
    ("/metrics/cadvisor", "machine_memory_bytes", MACHINE),
    ("/metrics/cadvisor", "cadvisor_version_info", &["kernelVersion=\"", "osVersion=\""]),
    ("/metrics/resource", "container_cpu_usage_seconds_total", CONTAINER),
    ("/metrics/resource", "container_memory_working_set_bytes", CONTAINER),
    ("/metrics/resource", "container_start_time_seconds", CONTAINER),
    ("/metrics/resource", "node_cpu_usage_seconds_total", &[]),
    ("/metrics/resource", "node_memory_working_set_bytes", &[]),
    ("/metrics/probes", "prober_probe_total", PROBE),
    ("/metrics/probes", "prober_probe_duration_seconds_bucket", &["probe_type=\"Liveness\"", "le=\""]),
];

#[tokio::test]
async fn rules_and_dashboards_find_their_metrics() {
    let mut node = Node::with_shim().await.unwrap();
    node.start_kubelet().await.unwrap();
    let pod = |name: &str, spec: serde_json::Value| {
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        node.write_manifest(&format!("{name}.json"), &pod.to_string())
    };
    let seen = json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "c", "image": images::BUSYBOX,
            "command": ["sh", "-c", "dd if=/dev/zero of=/disk/a bs=1M count=1 conv=fsync; sleep 1000"],
            "resources": {"limits": {"cpu": "200m", "memory": "100Mi"}},
            "livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 60},
            "volumeMounts": [{"name": "disk", "mountPath": "/disk"}],
        }],
        "volumes": [{"name": "disk", "emptyDir": {}}],
    });
    pod("seen", seen).unwrap();
    let absent = json!({"containers": [{"name": "c", "image": "127.0.0.1:1/absent:1"}]});
    pod("absent", absent).unwrap();
    node.await_running("seen", SOON).await.unwrap();
    // Some appear only after a while: pages share a collection, and probes begin later.
    let mut missing = Vec::new();
    let is_complete = async |node: &Node| Ok(missing_on(node).await?.is_empty());
    let waited = node.await_until("all series", SOON, is_complete).await;
    if waited.is_err() {
        missing = missing_on(&node).await.unwrap();
    }
    if !counts_block_io(&node) {
        skips::skip(
            "the block I/O of a container",
            "cgroup v1 does not count it, or temporary files are in memory",
        );
    }
    assert!(missing.is_empty(), "missing: {missing:#?}");
}

/// Since Linux 6.10, `blkio` of cgroup v1 counts nothing unless something is throttled. A test of
/// `kubelet-server` names the series. Volumes may be on a tmpfs.
fn counts_block_io(node: &Node) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    let file_system = rustix::fs::statfs(node.path("kubelet")).unwrap();
    node.cgroups.is_v2() && file_system.f_type != TMPFS
}

/// The series that no page has.
async fn missing_on(node: &Node) -> Result<Vec<String>> {
    let counts_io = counts_block_io(node);
    let mut missing = Vec::new();
    for path in [
        "/metrics",
        "/metrics/cadvisor",
        "/metrics/resource",
        "/metrics/probes",
    ] {
        let page = node.page(path).await?;
        ensure!(!page.is_empty(), "{path} is empty");
        let of_page = SERIES
            .iter()
            .filter(|(of, _, labels)| *of == path && (counts_io || *labels != DISK));
        for (_, name, labels) in of_page {
            let is_there = page.lines().any(|line| {
                line.strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with(['{', ' ']))
                    && labels.iter().all(|label| line.contains(label))
            });
            if !is_there {
                missing.push(format!("{path}: {name} {labels:?}"));
            }
        }
    }
    Ok(missing)
}
