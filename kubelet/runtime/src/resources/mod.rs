//! Resources of containers and sandboxes as values of cgroup files.

mod huge_pages;
mod memory_qos;
mod oom_score;
mod swap;

use std::time::Duration;

use cri_proto::runtime::v1::LinuxContainerResources;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use kubelet_host::machine::Machine;
use kubelet_pod_spec::{
    cpu::{quota, shares},
    resources::{self, Side, amount, millis},
};

pub use self::memory_qos::MemoryQos;
pub(crate) use self::swap::may_swap;

/// Options of the enforcement of resource limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResourceOptions {
    /// Whether CPU limits are enforced (`cpuCFSQuota`).
    pub cpu_cfs_quota: bool,
    /// Period of the CPU quota (`cpuCFSQuotaPeriod`).
    pub cpu_cfs_quota_period: Duration,
    /// How containers use swap (`memorySwap.swapBehavior`).
    pub swap_behavior: SwapBehavior,
    /// Whether the OOM killer kills a single process instead of the whole container
    /// (`singleProcessOOMKill`). If unset, it kills the whole container where supported (cgroup
    /// v2).
    pub single_process_oom_kill: Option<bool>,
    /// Throttling and protection of memory with cgroup v2; none without the feature gate
    /// `MemoryQoS`.
    pub memory_qos: Option<MemoryQos>,
}

impl Default for ResourceOptions {
    /// Upstream's defaults.
    fn default() -> Self {
        Self {
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: Duration::from_millis(100),
            swap_behavior: SwapBehavior::NoSwap,
            single_process_oom_kill: None,
            memory_qos: None,
        }
    }
}

/// How containers use swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwapBehavior {
    /// Containers do not use swap.
    #[default]
    NoSwap,
    /// Containers of burstable pods use swap. Each gets the share of the node's swap that its
    /// memory request has of the node's memory.
    LimitedSwap,
}

/// The node's settings that container resources depend on.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// Options of the kubelet.
    pub options: ResourceOptions,
    /// Properties of the machine.
    pub machine: &'a Machine,
}

/// Resources of a container: CPU, memory, huge pages, swap and OOM score adjustment. The pod's
/// limits apply where the container has none.
pub fn container_resources(
    pod: &Pod,
    container: &Container,
    rules: Rules<'_>,
) -> LinuxContainerResources {
    let nothing = (PodSpec::default(), ResourceRequirements::default());
    let spec = pod.spec.as_ref().unwrap_or(&nothing.0);
    let own = container.resources.as_ref().unwrap_or(&nothing.1);
    let of_pod = resources::pod_level(spec, Side::Limits);
    let limit = |name: &str| match amount(own.limits.as_ref(), name) {
        0 => of_pod.get(name).copied().unwrap_or_default(),
        own => own,
    };
    let requested = own.requests.as_ref().and_then(|list| list.get("cpu"));
    let cpu = Cpu {
        request: requested.map(|_| millis(amount(own.requests.as_ref(), "cpu"))),
        limit: millis(limit("cpu")),
    };
    let mut linux = linux_resources(cpu, resources::units(limit("memory")), rules);
    linux.oom_score_adj = oom_score::adjustment(pod, container, rules.machine.memory);
    linux.hugepage_limits = huge_pages::limits(own, &of_pod, &rules.machine.huge_page_sizes);
    swap::configure(&mut linux, pod, own, rules);
    memory_qos::configure(&mut linux, spec, own, rules);
    linux
}

/// The effective resources of a container: the pod's CPU and memory limits apply where the
/// container has none.
pub fn effective(own: Option<&ResourceRequirements>, spec: &PodSpec) -> ResourceRequirements {
    let mut effective = own.cloned().unwrap_or_default();
    let of_pod = spec
        .resources
        .as_ref()
        .and_then(|of_pod| of_pod.limits.as_ref());
    for (name, quantity) in of_pod.into_iter().flatten() {
        let is_shared = matches!(name.as_str(), "cpu" | "memory");
        if is_shared && amount(effective.limits.as_ref(), name) == 0 {
            let limits = effective.limits.get_or_insert_default();
            limits.insert(name.clone(), quantity.clone());
        }
    }
    effective
}

/// Resources of the whole pod without its overhead, for runtimes that size sandboxes by them.
pub fn sandbox_resources(spec: &PodSpec, rules: Rules<'_>) -> LinuxContainerResources {
    let requests = resources::of_pod(spec, Side::Requests);
    let limits = resources::of_pod(spec, Side::Limits);
    let limit = |name: &str| limits.get(name).copied().unwrap_or_default();
    let cpu = Cpu {
        request: requests.get("cpu").copied().map(millis),
        limit: millis(limit("cpu")),
    };
    linux_resources(cpu, resources::units(limit("memory")), rules)
}

/// The pod overhead, as both request and limit.
pub fn overhead_resources(spec: &PodSpec, rules: Rules<'_>) -> LinuxContainerResources {
    let Some(overhead) = &spec.overhead else {
        return LinuxContainerResources::default();
    };
    let cpu = millis(amount(Some(overhead), "cpu"));
    let cpu = Cpu {
        request: Some(cpu),
        limit: cpu,
    };
    let memory = resources::units(amount(Some(overhead), "memory"));
    linux_resources(cpu, memory, rules)
}

/// Millicores.
#[derive(Clone, Copy)]
struct Cpu {
    request: Option<i64>,
    limit: i64,
}

fn linux_resources(cpu: Cpu, memory_limit: i64, rules: Rules<'_>) -> LinuxContainerResources {
    let mut linux = LinuxContainerResources {
        cpu_shares: shares(cpu.request.unwrap_or(cpu.limit)),
        memory_limit_in_bytes: memory_limit,
        ..LinuxContainerResources::default()
    };
    if rules.options.cpu_cfs_quota {
        let period = rules.options.cpu_cfs_quota_period.as_micros();
        linux.cpu_period = i64::try_from(period).unwrap_or(i64::MAX);
        linux.cpu_quota = quota(cpu.limit, linux.cpu_period);
    }
    if rules.machine.cgroup_v2 && rules.options.single_process_oom_kill != Some(true) {
        // The OOM killer kills the whole container, because a partly killed one is useless.
        let group = ("memory.oom.group".to_owned(), "1".to_owned());
        linux.unified.extend([group]);
    }
    linux
}

#[cfg(test)]
mod tests;
