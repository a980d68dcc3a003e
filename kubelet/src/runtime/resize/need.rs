//! CPU and memory that containers, pods and a node have or want.

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};

use crate::pod::{
    resources::{self, Side, amount, millis, units},
    shortage::Shortage,
};

/// Requests and limits: thousandths of a CPU, and bytes. Zero where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) cpu_request: i64,
    pub(super) cpu_limit: i64,
    pub(super) memory_request: i64,
    pub(super) memory_limit: i64,
}

impl Need {
    /// What one container is to have.
    pub(super) fn of(resources: Option<&ResourceRequirements>) -> Self {
        let of = |side: Side, name| amount(resources.and_then(|own| side.of(own)), name);
        Self {
            cpu_request: millis(of(Side::Requests, "cpu")),
            cpu_limit: millis(of(Side::Limits, "cpu")),
            memory_request: units(of(Side::Requests, "memory")),
            memory_limit: units(of(Side::Limits, "memory")),
        }
    }

    /// What a pod is to have as a whole, with what it costs beside its containers.
    pub(super) fn of_pod(spec: &PodSpec) -> Self {
        let requests = resources::of_pod(spec, Side::Requests);
        let limits = resources::of_pod(spec, Side::Limits);
        let overhead = |name| amount(spec.overhead.as_ref(), name);
        let request = |name| {
            let own = requests.get(name).copied().unwrap_or_default();
            own.saturating_add(overhead(name))
        };
        // What has no limit gets none from its overhead.
        let limit = |name| {
            let own = limits.get(name).copied().unwrap_or_default();
            if own == 0 {
                0
            } else {
                own.saturating_add(overhead(name))
            }
        };
        Self {
            cpu_request: millis(request("cpu")),
            cpu_limit: millis(limit("cpu")),
            memory_request: units(request("memory")),
            memory_limit: units(limit("memory")),
        }
    }

    /// What a node of so many CPUs and bytes has to give.
    pub(super) const fn capacity(cpus: i64, memory: i64) -> Self {
        Self {
            cpu_request: cpus.saturating_mul(1000),
            cpu_limit: 0,
            memory_request: memory,
            memory_limit: 0,
        }
    }

    pub(super) const fn plus(self, other: Self) -> Self {
        Self {
            cpu_request: self.cpu_request.saturating_add(other.cpu_request),
            cpu_limit: self.cpu_limit.saturating_add(other.cpu_limit),
            memory_request: self.memory_request.saturating_add(other.memory_request),
            memory_limit: self.memory_limit.saturating_add(other.memory_limit),
        }
    }
}

/// Why a pod that has `last` cannot have `wanted` beside what others `use`; less than
/// before always has room.
pub(super) fn shortage(last: Need, wanted: Need, used: Need, capacity: Need) -> Option<Shortage> {
    let check = |resource, request: fn(&Need) -> i64| {
        let is_more = request(&wanted) > request(&last);
        is_more.then(|| {
            Shortage::find(
                resource,
                request(&wanted),
                request(&used),
                request(&capacity),
            )
        })?
    };
    check("cpu", |need| need.cpu_request).or_else(|| check("memory", |need| need.memory_request))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn requests(cpu_request: i64, memory_request: i64) -> Need {
        Need {
            cpu_request,
            memory_request,
            cpu_limit: 0,
            memory_limit: 0,
        }
    }

    #[test]
    fn a_pod_has_what_it_says_of_itself_and_its_overhead() {
        let spec = |own| {
            serde_json::from_value(serde_json::json!({
                "overhead": {"memory": "7"},
                "resources": own,
                "initContainers": [
                    {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
                    {"name": "i", "resources": {"requests": {"cpu": "2", "memory": "20"}}}
                ],
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "9"}}}]
            }))
            .unwrap()
        };
        assert_eq!(
            Need::of_pod(&spec(serde_json::json!(null))),
            requests(3000, 27)
        );
        let own = serde_json::json!({"requests": {"cpu": "5"}});
        assert_eq!(Need::of_pod(&spec(own)), requests(5000, 27));
    }

    #[test]
    fn a_pod_may_grow_as_long_as_there_is_room_and_always_shrink() {
        let capacity = Need::capacity(2, 1000);
        let used = requests(1500, 900);
        let find = |last, wanted| shortage(last, wanted, used, capacity);
        assert_eq!(find(requests(100, 50), requests(500, 100)), None);
        assert_eq!(find(requests(900, 500), requests(800, 400)), None);
        let shortage = find(requests(100, 50), requests(600, 50)).unwrap();
        assert_eq!(
            shortage.to_string(),
            "Node didn't have enough resource: cpu, requested: 600, used: 1500, capacity: 2000"
        );
        assert_eq!(
            find(requests(100, 50), requests(100, 101))
                .unwrap()
                .resource,
            "memory"
        );
    }
}
