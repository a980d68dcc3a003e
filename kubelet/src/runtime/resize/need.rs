//! CPU and memory that containers, pods and a node have or want.

use std::fmt;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};

use crate::{
    config::quantity::{self, NANOS},
    runtime::restart_rules,
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
        let Some(resources) = resources else {
            return Self::default();
        };
        let amount = |limit: bool, name, by| {
            let list = if limit {
                &resources.limits
            } else {
                &resources.requests
            };
            let nanos = list.as_ref()?.get(name);
            let nanos = quantity::parse(&nanos?.0).ok()?;
            i64::try_from(-(-nanos).div_euclid(by)).ok()
        };
        Self {
            cpu_request: amount(false, "cpu", NANOS / 1000).unwrap_or_default(),
            cpu_limit: amount(true, "cpu", NANOS / 1000).unwrap_or_default(),
            memory_request: amount(false, "memory", NANOS).unwrap_or_default(),
            memory_limit: amount(true, "memory", NANOS).unwrap_or_default(),
        }
    }

    /// What the containers of a pod are to have at the same time.
    pub(super) fn of_pod(spec: &PodSpec) -> Self {
        let of = |container: &Container| Self::of(container.resources.as_ref());
        let running = spec
            .containers
            .iter()
            .map(of)
            .fold(Self::default(), Self::plus);
        let (mut sidecars, mut most) = (Self::default(), Self::default());
        for init in spec.init_containers.iter().flatten() {
            let at_once = sidecars.plus(of(init));
            if restart_rules::is_sidecar(init) {
                sidecars = at_once;
            }
            most = most.max(at_once);
        }
        running.plus(sidecars).max(most)
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

    pub(super) fn plus(self, other: Self) -> Self {
        self.combine(other, i64::saturating_add)
    }

    fn max(self, other: Self) -> Self {
        self.combine(other, i64::max)
    }

    fn combine(self, other: Self, with: fn(i64, i64) -> i64) -> Self {
        Self {
            cpu_request: with(self.cpu_request, other.cpu_request),
            cpu_limit: with(self.cpu_limit, other.cpu_limit),
            memory_request: with(self.memory_request, other.memory_request),
            memory_limit: with(self.memory_limit, other.memory_limit),
        }
    }
}

/// What a node lacks of a resource, in upstream's words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shortage {
    resource: &'static str,
    requested: i64,
    used: i64,
    capacity: i64,
}

impl Shortage {
    /// Why a pod that has `last` cannot have `wanted` beside what others `use`;
    /// less than before always has room.
    pub(super) fn find(last: Need, wanted: Need, used: Need, capacity: Need) -> Option<Self> {
        let check = |resource, request: fn(&Need) -> i64| {
            let (requested, used) = (request(&wanted), request(&used));
            let capacity = request(&capacity);
            let fits = requested <= request(&last) || used.saturating_add(requested) <= capacity;
            (!fits).then_some(Self {
                resource,
                requested,
                used,
                capacity,
            })
        };
        check("cpu", |need| need.cpu_request)
            .or_else(|| check("memory", |need| need.memory_request))
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            resource,
            requested,
            used,
            capacity,
        } = self;
        write!(
            f,
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, \
             capacity: {capacity}"
        )
    }
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
    fn a_pod_may_grow_as_long_as_there_is_room_and_always_shrink() {
        let capacity = Need::capacity(2, 1000);
        let used = requests(1500, 900);
        let find = |last, wanted| Shortage::find(last, wanted, used, capacity);
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
