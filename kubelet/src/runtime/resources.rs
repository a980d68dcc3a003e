//! Resource quantities of a pod in the units of the cgroup files, and the
//! quality of service that follows from them.

use std::collections::BTreeMap;

use cri_proto::runtime::v1::LinuxContainerResources;
use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};

use crate::config::quantity::{self, NANOS};

/// Microseconds in which a CPU quota holds.
const CPU_PERIOD: i64 = 100_000;
/// Smallest quota that the kernel takes, microseconds.
const MIN_CPU_QUOTA: i64 = 1000;
const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
const SHARES_PER_CPU: i64 = 1024;
const MILLI_CPU: i64 = 1000;

const GUARANTEED_OOM_SCORE_ADJ: i64 = -997;
const BEST_EFFORT_OOM_SCORE_ADJ: i64 = 1000;
/// Lowest priority of the pods that the node itself cannot do without.
const NODE_CRITICAL_PRIORITY: i32 = 2_000_001_000;

/// Quality of service of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QosClass {
    /// Every container has limits for CPU and memory, and requests as much.
    Guaranteed,
    /// Some container requests or is limited in something.
    Burstable,
    /// Nothing is requested.
    BestEffort,
}

impl QosClass {
    /// The class as the API writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }

    /// The class of a pod.
    pub fn of(spec: &PodSpec) -> Self {
        let mut any = false;
        let mut guaranteed = true;
        for container in all_containers(spec) {
            for name in ["cpu", "memory"] {
                let amounts = Amounts::of(container, name);
                any |= amounts.request > 0 || amounts.limit > 0;
                guaranteed &= amounts.limit > 0 && amounts.request == amounts.limit;
            }
        }
        match (any, guaranteed) {
            (false, _) => Self::BestEffort,
            (true, true) => Self::Guaranteed,
            (true, false) => Self::Burstable,
        }
    }
}

fn all_containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
}

/// Request and limit of one resource, in thousandths for CPU, else in units;
/// zero where there is none.
#[derive(Clone, Copy, Debug, Default)]
struct Amounts {
    request: i64,
    limit: i64,
}

impl Amounts {
    /// What a container asks for; a limit without a request requests as much.
    fn of(container: &Container, name: &str) -> Self {
        let Some(resources) = &container.resources else {
            return Self::default();
        };
        let limit = amount(resources.limits.as_ref(), name).unwrap_or_default();
        let request = amount(resources.requests.as_ref(), name).unwrap_or(limit);
        Self { request, limit }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            request: self.request.saturating_add(other.request),
            limit: self.limit.saturating_add(other.limit),
        }
    }

    fn max(self, other: Self) -> Self {
        Self {
            request: self.request.max(other.request),
            limit: self.limit.max(other.limit),
        }
    }
}

fn amount(list: Option<&BTreeMap<String, Quantity>>, name: &str) -> Option<i64> {
    let quantity = list?.get(name)?;
    if name == "cpu" {
        millis(quantity)
    } else {
        units(quantity)
    }
}

/// A quantity in units, rounded up; `None` when it is none.
pub fn units(quantity: &Quantity) -> Option<i64> {
    scaled(quantity, 1)
}

fn millis(quantity: &Quantity) -> Option<i64> {
    scaled(quantity, 1000)
}

/// A quantity times `by`, rounded up; the ends of the range where it has no room.
fn scaled(quantity: &Quantity, by: i128) -> Option<i64> {
    let billionths = quantity::parse(&quantity.0).ok()?.saturating_mul(by);
    let rounded_up = -(-billionths).div_euclid(NANOS);
    let range = i128::from(i64::MIN)..=i128::from(i64::MAX);
    i64::try_from(rounded_up.clamp(*range.start(), *range.end())).ok()
}

/// Resources of a container: CPU shares and quota, memory limit and OOM score.
/// `memory_capacity` is the node's, in bytes.
pub fn container_resources(
    pod: &Pod,
    container: &Container,
    memory_capacity: i64,
) -> LinuxContainerResources {
    let cpu = Amounts::of(container, "cpu");
    let memory = Amounts::of(container, "memory");
    LinuxContainerResources {
        oom_score_adj: oom_score_adj(pod, memory.request, memory_capacity),
        ..linux_resources(cpu, memory)
    }
}

/// Resources of the whole pod, for runtimes that size a sandbox by them.
pub fn sandbox_resources(spec: &PodSpec) -> LinuxContainerResources {
    let total = |name| {
        let sum = spec
            .containers
            .iter()
            .map(|container| Amounts::of(container, name))
            .fold(Amounts::default(), Amounts::plus);
        spec.init_containers
            .iter()
            .flatten()
            .map(|container| Amounts::of(container, name))
            .fold(sum, Amounts::max)
    };
    linux_resources(total("cpu"), total("memory"))
}

fn linux_resources(cpu: Amounts, memory: Amounts) -> LinuxContainerResources {
    LinuxContainerResources {
        cpu_period: CPU_PERIOD,
        cpu_quota: quota(cpu.limit),
        cpu_shares: shares(cpu.request),
        memory_limit_in_bytes: memory.limit,
        ..LinuxContainerResources::default()
    }
}

/// Zero, for no quota, without a limit.
fn quota(milli_cpu: i64) -> i64 {
    if milli_cpu == 0 {
        return 0;
    }
    milli_cpu
        .saturating_mul(CPU_PERIOD / MILLI_CPU)
        .max(MIN_CPU_QUOTA)
}

fn shares(milli_cpu: i64) -> i64 {
    (milli_cpu.saturating_mul(SHARES_PER_CPU) / MILLI_CPU).clamp(MIN_SHARES, MAX_SHARES)
}

/// What is added to the score by which the kernel chooses whom to kill: a
/// burstable container that uses more than it requests comes before one that
/// does not.
fn oom_score_adj(pod: &Pod, memory_request: i64, memory_capacity: i64) -> i64 {
    let Some(spec) = &pod.spec else {
        return BEST_EFFORT_OOM_SCORE_ADJ;
    };
    if spec.priority.is_some_and(|p| p >= NODE_CRITICAL_PRIORITY) {
        return GUARANTEED_OOM_SCORE_ADJ;
    }
    match QosClass::of(spec) {
        QosClass::Guaranteed => GUARANTEED_OOM_SCORE_ADJ,
        QosClass::BestEffort => BEST_EFFORT_OOM_SCORE_ADJ,
        QosClass::Burstable => {
            let share = memory_request.saturating_mul(1000) / memory_capacity.max(1);
            (1000 - share).clamp(
                1000 + GUARANTEED_OOM_SCORE_ADJ,
                BEST_EFFORT_OOM_SCORE_ADJ - 1,
            )
        }
    }
}

/// Bytes of memory that this node has, from the text of `/proc/meminfo`.
pub fn memory_capacity(meminfo: &str) -> Option<i64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kibibytes: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Names of the resources in `requirements` other than CPU and memory.
pub fn other_resources(requirements: &ResourceRequirements) -> impl Iterator<Item = &str> {
    let lists = [requirements.limits.as_ref(), requirements.requests.as_ref()];
    lists
        .into_iter()
        .flatten()
        .flat_map(BTreeMap::keys)
        .map(String::as_str)
        .filter(|name| !matches!(*name, "cpu" | "memory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(pairs: &[(&str, &str)]) -> Option<BTreeMap<String, Quantity>> {
        let pairs = pairs.iter();
        Some(
            pairs
                .map(|(name, value)| ((*name).to_owned(), Quantity((*value).to_owned())))
                .collect(),
        )
    }

    fn pod(requests: &[(&str, &str)], limits: &[(&str, &str)]) -> Pod {
        Pod {
            spec: Some(PodSpec {
                containers: vec![Container {
                    resources: Some(ResourceRequirements {
                        requests: list(requests),
                        limits: list(limits),
                        ..ResourceRequirements::default()
                    }),
                    ..Container::default()
                }],
                ..PodSpec::default()
            }),
            ..Pod::default()
        }
    }

    fn resources(pod: &Pod) -> LinuxContainerResources {
        let container = &pod.spec.as_ref().unwrap().containers[0];
        container_resources(pod, container, 10 << 30)
    }

    #[test]
    fn amounts_become_shares_quota_and_bytes() {
        let r = resources(&pod(
            &[("cpu", "100m"), ("memory", "1Gi")],
            &[("cpu", "1.5"), ("memory", "2Gi")],
        ));
        assert_eq!((r.cpu_shares, r.cpu_quota), (102, 150_000));
        assert_eq!(r.memory_limit_in_bytes, 2 << 30);
        assert_eq!(r.oom_score_adj, 900);
        let r = resources(&pod(&[], &[("cpu", "1m")]));
        assert_eq!((r.cpu_shares, r.cpu_quota), (2, MIN_CPU_QUOTA));
    }

    #[test]
    fn classes_follow_from_requests_and_limits() {
        let class = |pod: Pod| QosClass::of(&pod.spec.unwrap());
        assert_eq!(class(pod(&[], &[])), QosClass::BestEffort);
        assert_eq!(class(pod(&[("cpu", "1")], &[])), QosClass::Burstable);
        let limits = [("cpu", "1"), ("memory", "1Gi")];
        assert_eq!(class(pod(&[], &limits)), QosClass::Guaranteed);
        let equal = [("cpu", "1000m"), ("memory", "1024Mi")];
        assert_eq!(class(pod(&equal, &limits)), QosClass::Guaranteed);
        let less = [("cpu", "500m")];
        assert_eq!(class(pod(&less, &limits)), QosClass::Burstable);
    }

    #[test]
    fn the_score_keeps_burstable_pods_between_the_others() {
        assert_eq!(resources(&pod(&[], &[])).oom_score_adj, 1000);
        assert_eq!(resources(&pod(&[("cpu", "1")], &[])).oom_score_adj, 999);
        let all = [("memory", "20Gi")];
        assert_eq!(resources(&pod(&all, &[])).oom_score_adj, 3);
    }

    #[test]
    fn capacity_is_read_in_bytes() {
        let text = "MemTotal:        2048 kB\nMemFree: 1 kB\n";
        assert_eq!(memory_capacity(text), Some(2 << 20));
    }
}
