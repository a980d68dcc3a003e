//! The node's capacity and allocatable.

use std::{collections::BTreeMap, fs, path::Path};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kubelet_host::machine::Machine;
use kubelet_pod_spec::{
    quantity::{self, NANOS},
    resources::is_huge_pages,
};

use crate::reservation::Reservation;

/// Options of capacity and allocatable.
#[derive(Clone, Debug, PartialEq)]
pub struct CapacityOptions {
    /// Most pods (`maxPods`).
    pub max_pods: u32,
    /// Most pods per core (`podsPerCore`); no limit when 0.
    pub pods_per_core: u32,
    /// Account for local ephemeral storage (`localStorageCapacityIsolation`).
    pub local_storage: bool,
    /// Resources that are reserved from pods.
    pub reservation: Reservation,
}

impl Default for CapacityOptions {
    /// Upstream's defaults, with nothing reserved.
    fn default() -> Self {
        Self {
            max_pods: 110,
            pods_per_core: 0,
            local_storage: true,
            reservation: Reservation::default(),
        }
    }
}

/// Amounts by resource name.
pub type Quantities = BTreeMap<String, Quantity>;

/// Reads the node's capacity; blocking. `root_dir` is on the file system that pods write to.
pub fn read(machine: &Machine, root_dir: &Path, options: &CapacityOptions) -> Quantities {
    let mut capacity = machine.capacity(root_dir);
    if !options.local_storage {
        capacity.remove("ephemeral-storage");
    }
    let cores = u32::try_from(machine.cpus).unwrap_or(1);
    let pods = match options.pods_per_core {
        0 => options.max_pods,
        each => options.max_pods.min(cores.saturating_mul(each)),
    };
    capacity.insert("pods".to_owned(), Quantity(pods.to_string()));
    for size in &machine.huge_page_sizes {
        let pages = huge_pages(*size);
        let size = i128::from(*size) * NANOS;
        let name = format!("hugepages-{}", quantity::format("memory", size));
        capacity.insert(
            name,
            Quantity((i128::from(pages) * size / NANOS).to_string()),
        );
    }
    // In canonical form, so that a different notation is not a change.
    for (name, amount) in &mut capacity {
        if let Ok(value) = quantity::parse(&amount.0) {
            *amount = Quantity(quantity::format(name, value));
        }
    }
    capacity
}

/// The number of reserved huge pages of a size in bytes.
pub fn huge_pages(size: u64) -> u64 {
    let path = format!(
        "/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages",
        size / 1024
    );
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or_default()
}

/// Updates the node object's capacity. Extended resources are kept; huge page sizes that the
/// machine no longer has are removed.
pub fn update(capacity: &mut Quantities, own: &Quantities) {
    capacity.retain(|name, _| !is_huge_pages(name) || own.contains_key(name));
    for (name, amount) in own {
        capacity.insert(name.clone(), amount.clone());
    }
}

/// The allocatable amounts: capacity less reservations, and for memory also less huge pages.
pub fn allocatable(capacity: &Quantities, options: &CapacityOptions) -> Quantities {
    let amount = |quantity: &Quantity| quantity::parse(&quantity.0).unwrap_or_default();
    let pages: i128 = capacity
        .iter()
        .filter(|(name, _)| is_huge_pages(name))
        .map(|(_, quantity)| amount(quantity))
        .sum();
    capacity
        .iter()
        .map(|(name, quantity)| {
            let whole = amount(quantity);
            let mut taken = options.reservation.amount(name, whole);
            if name == "memory" {
                taken += pages;
            }
            // Without a reservation the notation is kept.
            let left = match taken {
                0 => quantity.clone(),
                taken => Quantity(quantity::format(name, (whole - taken).max(0))),
            };
            (name.clone(), left)
        })
        .collect()
}

/// More is reserved than the node has.
#[derive(Debug, thiserror::Error)]
#[error(
    "systemReserved, kubeReserved and evictionHard together reserve more than the node has: {}",
    .0.join(", ")
)]
pub struct OverReserved(Vec<String>);

/// Checks that no more is reserved than the node has.
///
/// # Errors
/// The resources that it has too little of.
pub fn check(capacity: &Quantities, options: &CapacityOptions) -> Result<(), OverReserved> {
    let over: Vec<String> = capacity
        .iter()
        .filter_map(|(name, quantity)| {
            let whole = quantity::parse(&quantity.0).unwrap_or_default();
            let reserved = options.reservation.amount(name, whole);
            let shown = |amount| quantity::format(name, amount);
            (reserved > whole).then(|| format!("{} of {} {name}", shown(reserved), shown(whole)))
        })
        .collect();
    if over.is_empty() {
        Ok(())
    } else {
        Err(OverReserved(over))
    }
}

#[cfg(test)]
mod tests {
    use kubelet_pod_spec::amount_or_share::AmountOrShare;

    use super::*;

    fn quantities(pairs: &[(&str, &str)]) -> Quantities {
        pairs
            .iter()
            .map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned())))
            .collect()
    }

    #[test]
    fn huge_pages_are_taken_from_memory() {
        let capacity = quantities(&[
            ("cpu", "2"),
            ("memory", "1Gi"),
            ("hugepages-2Mi", "256Mi"),
            ("example.com/gpu", "3"),
        ]);
        let allocatable = allocatable(&capacity, &CapacityOptions::default());
        assert_eq!(
            allocatable,
            quantities(&[
                ("cpu", "2"),
                ("memory", "768Mi"),
                ("hugepages-2Mi", "256Mi"),
                ("example.com/gpu", "3"),
            ])
        );
    }

    #[test]
    fn resources_of_others_stay_and_old_page_sizes_go() {
        let mut capacity = quantities(&[
            ("cpu", "1"),
            ("hugepages-1Gi", "0"),
            ("example.com/gpu", "3"),
        ]);
        update(
            &mut capacity,
            &quantities(&[("cpu", "2"), ("hugepages-2Mi", "0")]),
        );
        assert_eq!(
            capacity,
            quantities(&[
                ("cpu", "2"),
                ("hugepages-2Mi", "0"),
                ("example.com/gpu", "3")
            ])
        );
    }

    #[test]
    fn no_more_can_be_reserved_than_there_is() {
        let capacity = quantities(&[("cpu", "2"), ("memory", "1Gi"), ("pods", "110")]);
        let options = |cpu: i128, memory: i128| CapacityOptions {
            reservation: Reservation {
                amounts: [
                    ("cpu".to_owned(), cpu * NANOS),
                    ("memory".to_owned(), (memory << 20) * NANOS),
                ]
                .into(),
                memory: AmountOrShare::Amount((100 << 20) * NANOS),
                ..Reservation::default()
            },
            ..CapacityOptions::default()
        };
        check(&capacity, &options(2, 924)).unwrap();
        let error = check(&capacity, &options(3, 925)).unwrap_err().to_string();
        assert!(
            error.ends_with(": 3 of 2 cpu, 1025Mi of 1Gi memory"),
            "{error}"
        );
    }

    #[test]
    fn pods_per_core_bound_the_pods() {
        let machine = Machine {
            cpus: 2,
            memory: 1 << 30,
            ..Machine::default()
        };
        let options = CapacityOptions {
            pods_per_core: 3,
            local_storage: false,
            ..CapacityOptions::default()
        };
        assert_eq!(
            read(&machine, Path::new("/"), &options),
            quantities(&[("cpu", "2"), ("memory", "1Gi"), ("pods", "6")])
        );
    }
}
