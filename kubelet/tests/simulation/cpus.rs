//! The CPUs of the simulated node, and the containers on them.

use fake_runtime::Container;
use k8s_openapi::{
    api::core::v1::{Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use kubelet_cpu_manager::StaticOptions;
use kubelet_host::cpu_set::CpuSet;
use kubelet_machine_info::{Core, MachineInfo};
use kubelet_resource_managers::{CpuOptions, ResourceManagerOptions};

use crate::driver::Simulation;

/// All CPUs of the node. The first one is reserved.
const ALL: &str = "0-3";
const COUNT: u32 = 4;

/// Containers of guaranteed pods get CPUs of their own.
pub(crate) fn options() -> ResourceManagerOptions {
    ResourceManagerOptions {
        cpu: Some(CpuOptions {
            policy: StaticOptions::default(),
            reserved: "0".parse().unwrap(),
            reserved_count: 1,
            keeps_quota: false,
        }),
        ..ResourceManagerOptions::default()
    }
}

pub(crate) fn machine() -> MachineInfo {
    let core = |cpu| Core {
        core_id: cpu,
        thread_ids: vec![cpu],
        ..Core::default()
    };
    MachineInfo {
        topology: vec![kubelet_machine_info::Node {
            cores: (0..COUNT).map(core).collect(),
            ..kubelet_machine_info::Node::default()
        }],
        ..MachineInfo::default()
    }
}

/// Gives the pod's first container a CPU of its own.
pub(crate) fn give_one(pod: &mut Pod) {
    let list = [("cpu", "1"), ("memory", "1Mi")]
        .map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())));
    let resources = ResourceRequirements {
        requests: Some(list.clone().into()),
        limits: Some(list.into()),
        claims: None,
    };
    let spec = pod.spec.as_mut().unwrap();
    spec.containers[0].resources = Some(resources);
}

/// The first running container that does not have the CPUs that it should have: one of its own, or
/// all that no other container has for itself.
pub(crate) fn problem(simulation: &Simulation) -> Option<String> {
    let (own, sharing): (Vec<Container>, Vec<Container>) = simulation
        .node
        .runtime
        .containers()
        .into_iter()
        .filter(Container::runs)
        .partition(has_own_cpu);
    let mut shared: CpuSet = ALL.parse().unwrap();
    for container in &own {
        let cpus = cpus(container);
        if cpus.len() != 1 || !cpus.is_subset(&shared) {
            return Some(format!("{} has CPUs {cpus}", container.name()));
        }
        shared = shared.difference(&cpus);
    }
    let wrong = sharing.iter().find(|container| cpus(container) != shared)?;
    Some(format!(
        "{} shares CPUs {} instead of {shared}",
        wrong.name(),
        cpus(wrong)
    ))
}

/// No other pod of a simulation has a limit of memory.
fn has_own_cpu(container: &Container) -> bool {
    let linux = container.config.linux.as_ref();
    let resources = linux.and_then(|linux| linux.resources.as_ref());
    resources.is_some_and(|resources| resources.memory_limit_in_bytes > 0)
}

fn cpus(container: &Container) -> CpuSet {
    let linux = container.config.linux.as_ref();
    let resources = linux.and_then(|linux| linux.resources.as_ref());
    let text = resources.map(|resources| resources.cpuset_cpus.as_str());
    text.unwrap_or_default().parse().unwrap()
}
