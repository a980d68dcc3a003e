//! Starts the managers of CPUs, memory and devices.

use std::path::{Path, PathBuf};

use kubelet_device_manager::DeviceManager;
use kubelet_host::{machine::Machine, repeatable::blocking};
use kubelet_machine_info::{MachineInfo, MachineReader};
use kubelet_memory_manager::Reserved;
use kubelet_node::reservation::Reservation;
use kubelet_pod_spec::{quantity::NANOS, resources::units};
use kubelet_resource_managers::{ResourceManagerOptions, ResourceManagers, StartError};

use crate::kubelet::options::KubeletOptions;

const MEMORY: &str = "memory";

/// The managers of a node, with their state files written. With `devices`, also one of devices.
///
/// # Errors
/// See [`StartError`].
pub(crate) async fn start(
    options: &KubeletOptions,
    machine: &Machine,
    devices: Devices,
) -> Result<ResourceManagers, StartError> {
    let managers = options.managers.clone();
    if let Some(reserved) = &managers.memory {
        check_reserved(reserved, &options.capacity.reservation, machine.memory)?;
    }
    let hardware = match managers == ResourceManagerOptions::default() {
        true => MachineInfo::default(),
        false => {
            let read = MachineReader::new(PathBuf::from("/")).read().await;
            MachineInfo::clone(&*read.map_err(panicked)?)
        }
    };
    let root_dir = options.node.root_dir.clone();
    let start = move || {
        let started = ResourceManagers::start(&managers, &hardware, &root_dir)?;
        Ok::<_, StartError>(match devices {
            Devices::None => started,
            Devices::Managed => {
                let nodes = hardware.topology.iter().map(|node| node.node_id).collect();
                let devices = DeviceManager::start(&device_dir(&root_dir), nodes);
                started.with_devices(devices)
            }
        })
    };
    let managers = blocking(start).await.map_err(panicked)??;
    managers.save().await.map_err(StartError::Write)?;
    Ok(managers)
}

/// Whether the kubelet has a manager of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Devices {
    /// As with `--runonce`: no plugin can register.
    None,
    Managed,
}

/// The directory of device plugins' sockets.
pub(crate) fn device_dir(root_dir: &Path) -> PathBuf {
    root_dir.join("device-plugins")
}

fn panicked(error: tokio::task::JoinError) -> StartError {
    StartError::Policy {
        field: "cpuManagerPolicy",
        rule: format!("cannot read the machine's hardware: {error}"),
    }
}

/// Checks that what is reserved of the NUMA nodes is what is reserved of the node.
fn check_reserved(
    by_node: &Reserved,
    reservation: &Reservation,
    capacity: i64,
) -> Result<(), StartError> {
    let names = by_node.values().flat_map(|amounts| amounts.keys());
    for name in names.map(String::as_str).chain([MEMORY]) {
        let of_nodes = by_node.values().filter_map(|amounts| amounts.get(name));
        let sum = of_nodes.fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        let whole = units(reservation.amount(name, i128::from(capacity) * NANOS));
        if u64::try_from(whole) != Ok(sum) {
            return Err(StartError::Policy {
                field: "reservedMemory",
                rule: format!(
                    "the NUMA nodes' {name} adds up to {sum} bytes, and must be the {whole} bytes \
                     that systemReserved, kubeReserved and evictionHard reserve together"
                ),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use kubelet_pod_spec::amount_or_share::AmountOrShare;

    use super::*;

    #[test]
    fn the_numa_nodes_must_reserve_what_the_node_reserves() {
        let reservation = Reservation {
            amounts: [(MEMORY.to_owned(), 300 * NANOS)].into(),
            memory: AmountOrShare::Amount(100 * NANOS),
            ..Reservation::default()
        };
        let node = |name: &str, bytes| [(name.to_owned(), bytes)].into();
        let check = |nodes: Reserved| check_reserved(&nodes, &reservation, 1000);
        assert!(
            check(Reserved::from([
                (0, node(MEMORY, 150)),
                (1, node(MEMORY, 250))
            ]))
            .is_ok()
        );
        for (nodes, says) in [
            (
                Reserved::new(),
                "memory adds up to 0 bytes, and must be the 400 bytes",
            ),
            (Reserved::from([(0, node(MEMORY, 300))]), "300 bytes"),
            (
                Reserved::from([(0, node(MEMORY, 400)), (1, node("hugepages-2Mi", 1))]),
                "hugepages-2Mi adds up to 1 bytes",
            ),
        ] {
            let error = check(nodes).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
            assert!(error.starts_with("reservedMemory: "), "{error}");
        }
    }
}
