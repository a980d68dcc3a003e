//! The summary as JSON.

use cri_proto::runtime::v1::{
    ContainerStats, CpuUsage, FilesystemUsage, MemoryUsage, NetworkInterfaceUsage, NetworkUsage,
    PodSandboxStats, UInt64Value,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kubelet_cri_client::labels;
use kubelet_pod_spec::identity::{self, PodUid};
use serde_json::{Map, Value, json};

use super::node::{Interface, NodeUsage};

/// The whole response.
pub(super) fn summary(node: Value, stats: &[PodSandboxStats], pods: &[Pod]) -> Value {
    let mut entries: Vec<Value> = stats.iter().filter_map(|stats| pod(stats, pods)).collect();
    let name = |entry: &Value| entry["podRef"].to_string();
    entries.sort_by_key(name);
    json!({"node": node, "pods": entries})
}

/// The node's statistics.
pub(super) fn node(name: &str, usage: &NodeUsage, nano_cores: Option<u64>) -> Value {
    let time = time(usage.at);
    let mut cpu = json!({"time": time, "usageCoreNanoSeconds": usage.cpu_nanoseconds});
    if let Some(nano_cores) = nano_cores {
        cpu["usageNanoCores"] = nano_cores.into();
    }
    let file_system = &usage.file_system;
    let mut network = json!({
        "time": time,
        "interfaces": usage.interfaces.iter().map(interface).collect::<Vec<_>>(),
    });
    let is_default = |it: &&Interface| Some(&it.name) == usage.default_interface.as_ref();
    if let Some(default) = usage.interfaces.iter().find(is_default) {
        merge(&mut network, interface(default));
    }
    json!({
        "nodeName": name,
        "systemContainers": [],
        "startTime": self::time(usage.booted),
        "cpu": cpu,
        "memory": {
            "time": time,
            "availableBytes": usage.memory_available,
            "usageBytes": usage.memory_usage,
            "workingSetBytes": usage.memory_working_set,
            "rssBytes": usage.memory_rss,
            "pageFaults": usage.page_faults,
            "majorPageFaults": usage.major_page_faults,
        },
        "network": network,
        "fs": {
            "time": time,
            "availableBytes": file_system.available,
            "capacityBytes": file_system.capacity,
            "usedBytes": file_system.used,
            "inodesFree": file_system.inodes_free,
            "inodes": file_system.inodes,
            "inodesUsed": file_system.inodes.saturating_sub(file_system.inodes_free),
        },
        "rlimit": {"time": time, "maxpid": usage.pid_max, "curproc": usage.processes},
    })
}

/// A pod's statistics; `None` for a sandbox without pod metadata.
fn pod(stats: &PodSandboxStats, pods: &[Pod]) -> Option<Value> {
    let metadata = stats.attributes.as_ref()?.metadata.as_ref()?;
    let known = pods
        .iter()
        .find(|pod| PodUid::of(pod).as_str() == metadata.uid);
    let status = known.and_then(|pod| pod.status.as_ref());
    let linux = stats.linux.clone().unwrap_or_default();
    let statuses: Vec<&ContainerStatus> = status
        .iter()
        .flat_map(|status| {
            let init = status.init_container_statuses.iter().flatten();
            let ephemeral = status.ephemeral_container_statuses.iter().flatten();
            let main = status.container_statuses.iter().flatten();
            main.chain(init).chain(ephemeral)
        })
        .collect();
    let containers: Vec<Value> = linux
        .containers
        .iter()
        .filter_map(|stats| container(stats, &statuses))
        .collect();
    let (namespace, name) = match known {
        Some(pod) => (identity::namespace(pod), identity::name(pod)),
        None => (metadata.namespace.as_str(), metadata.name.as_str()),
    };
    let mut entry = json!({
        "podRef": {"name": name, "namespace": namespace, "uid": metadata.uid},
        "startTime": status.and_then(|status| status.start_time.as_ref()),
        "containers": containers,
    });
    let parts = [
        ("cpu", linux.cpu.as_ref().map(cpu)),
        ("memory", linux.memory.as_ref().map(memory)),
        ("network", linux.network.as_ref().map(network)),
        (
            "process_stats",
            linux
                .process
                .as_ref()
                .map(|process| json!({"process_count": value(&process.process_count)})),
        ),
    ];
    for (name, part) in parts {
        if let Some(part) = part {
            entry[name] = part;
        }
    }
    Some(entry)
}

fn container(stats: &ContainerStats, statuses: &[&ContainerStatus]) -> Option<Value> {
    let attributes = stats.attributes.as_ref()?;
    let name = attributes.labels.get(labels::CONTAINER_NAME)?;
    let running = statuses
        .iter()
        .find(|status| status.name == *name)
        .and_then(|status| status.state.as_ref()?.running.as_ref());
    let mut entry = json!({
        "name": name,
        "startTime": running.and_then(|running| running.started_at.as_ref()),
    });
    let parts = [
        ("cpu", stats.cpu.as_ref().map(cpu)),
        ("memory", stats.memory.as_ref().map(memory)),
        ("rootfs", stats.writable_layer.as_ref().map(file_system)),
    ];
    for (name, part) in parts {
        if let Some(part) = part {
            entry[name] = part;
        }
    }
    Some(entry)
}

fn cpu(usage: &CpuUsage) -> Value {
    measured(
        usage.timestamp,
        [
            ("usageNanoCores", &usage.usage_nano_cores),
            ("usageCoreNanoSeconds", &usage.usage_core_nano_seconds),
        ],
    )
}

fn memory(usage: &MemoryUsage) -> Value {
    measured(
        usage.timestamp,
        [
            ("availableBytes", &usage.available_bytes),
            ("usageBytes", &usage.usage_bytes),
            ("workingSetBytes", &usage.working_set_bytes),
            ("rssBytes", &usage.rss_bytes),
            ("pageFaults", &usage.page_faults),
            ("majorPageFaults", &usage.major_page_faults),
        ],
    )
}

fn file_system(usage: &FilesystemUsage) -> Value {
    measured(
        usage.timestamp,
        [
            ("usedBytes", &usage.used_bytes),
            ("inodesUsed", &usage.inodes_used),
        ],
    )
}

fn network(usage: &NetworkUsage) -> Value {
    let of = |usage: &NetworkInterfaceUsage| {
        interface(&Interface {
            name: usage.name.clone(),
            rx_bytes: value(&usage.rx_bytes),
            rx_errors: value(&usage.rx_errors),
            tx_bytes: value(&usage.tx_bytes),
            tx_errors: value(&usage.tx_errors),
        })
    };
    let default = usage.default_interface.as_ref();
    let all: Vec<Value> = default
        .into_iter()
        .chain(&usage.interfaces)
        .map(of)
        .collect();
    let mut network = json!({"time": nanoseconds(usage.timestamp), "interfaces": all});
    if let Some(default) = default {
        merge(&mut network, of(default));
    }
    network
}

fn interface(interface: &Interface) -> Value {
    json!({
        "name": interface.name,
        "rxBytes": interface.rx_bytes,
        "rxErrors": interface.rx_errors,
        "txBytes": interface.tx_bytes,
        "txErrors": interface.tx_errors,
    })
}

/// The time of measurement and the values that the runtime reports.
fn measured<const N: usize>(at: i64, values: [(&str, &Option<UInt64Value>); N]) -> Value {
    let mut fields = Map::from_iter([("time".to_owned(), nanoseconds(at))]);
    for (name, value) in values {
        if let Some(UInt64Value { value }) = value {
            fields.insert(name.to_owned(), (*value).into());
        }
    }
    Value::Object(fields)
}

fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}

fn value(value: &Option<UInt64Value>) -> u64 {
    value.as_ref().map_or(0, |value| value.value)
}

fn nanoseconds(at: i64) -> Value {
    time(Timestamp::from_nanosecond(i128::from(at)).unwrap_or_default())
}

/// In whole seconds, the API's format of times.
fn time(at: Timestamp) -> Value {
    format!("{at:.0}").into()
}
