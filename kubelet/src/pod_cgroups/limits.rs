//! The node's resources as limits of cgroups.

use std::{collections::BTreeMap, path::Path};

use kubelet_container_manager::{Limits, NodeLimits};
use kubelet_host::machine::{Machine, most_processes};
use kubelet_node::{capacity::huge_pages, reservation::Reservation};
use kubelet_pod_spec::resources::{Amounts, millis, units};

use super::options::CgroupOptions;

/// The limits of the node's cgroups; blocking. What eviction keeps free is not part of them: it must
/// be in use before the kubelet evicts.
pub(crate) fn of_node(
    machine: &Machine,
    reservation: &Reservation,
    options: &CgroupOptions,
) -> NodeLimits {
    let pages = machine.huge_page_sizes.iter();
    let capacity = Limits {
        cpu: Some(machine.cpus.saturating_mul(1000)),
        memory: Some(machine.memory),
        pids: most_processes(Path::new("/proc")).and_then(|most| i64::try_from(most).ok()),
        huge_pages: pages
            .map(|size| (*size, huge_pages(*size).saturating_mul(*size)))
            .collect(),
    };
    NodeLimits {
        allocatable: without(&capacity, &reservation.amounts),
        capacity,
        kube_reserved: options.kube_reserved.clone(),
        system_reserved: options.system_reserved.clone(),
    }
}

/// Amounts by resource, as limits.
pub(crate) fn of_amounts(amounts: &Amounts) -> Limits {
    let amount = |name: &str| amounts.get(name).copied();
    Limits {
        cpu: amount("cpu").map(millis),
        memory: amount("memory").map(units),
        pids: amount("pid").map(units),
        huge_pages: BTreeMap::new(),
    }
}

fn without(capacity: &Limits, reserved: &Amounts) -> Limits {
    let reserved = of_amounts(reserved);
    let rest = |all: Option<i64>, taken: Option<i64>| {
        all.map(|all| all.saturating_sub(taken.unwrap_or_default()).max(0))
    };
    Limits {
        cpu: rest(capacity.cpu, reserved.cpu),
        memory: rest(capacity.memory, reserved.memory),
        pids: rest(capacity.pids, reserved.pids),
        huge_pages: capacity.huge_pages.clone(),
    }
}

#[cfg(test)]
mod tests {
    use kubelet_pod_spec::quantity::NANOS;

    use super::*;

    #[test]
    fn reservations_are_taken_from_the_capacity() {
        let reserved = |cpu: i128| {
            Amounts::from([
                ("cpu".to_owned(), cpu * NANOS / 1000),
                ("memory".to_owned(), 1000 * NANOS),
                ("pid".to_owned(), 10 * NANOS),
            ])
        };
        let capacity = Limits {
            cpu: Some(2000),
            memory: Some(5000),
            pids: Some(100),
            huge_pages: [(1 << 21, 1 << 22)].into(),
        };
        let left = without(&capacity, &reserved(500));
        assert_eq!(
            (left.cpu, left.memory, left.pids),
            (Some(1500), Some(4000), Some(90))
        );
        assert_eq!(left.huge_pages, capacity.huge_pages);
        assert_eq!(without(&capacity, &reserved(9000)).cpu, Some(0));
        assert_eq!(without(&capacity, &Amounts::new()), capacity);
    }
}
