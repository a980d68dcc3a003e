//! The start of the managers: what containers have by the state files, checked against the machine.

use std::path::Path;

use kubelet_cpu_manager::{CpuState, CpuTopology, StaticPolicy as CpuPolicy};
use kubelet_machine_info::MachineInfo;
use kubelet_memory_manager::{MemoryState, StaticPolicy as MemoryPolicy};

use crate::{
    error::StartError,
    held::{HeldCpus, HeldMemory},
    options::{CpuOptions, ResourceManagerOptions},
    state_file::{self, CPU_FILE, CPU_POLICIES, MEMORY_FILE, MEMORY_POLICIES},
};

/// `None` without a policy.
pub(crate) fn cpus(
    options: Option<&CpuOptions>,
    machine: &MachineInfo,
    root_dir: &Path,
) -> Result<Option<HeldCpus>, StartError> {
    let path = root_dir.join(CPU_FILE);
    let name = CPU_POLICIES[usize::from(options.is_some())];
    let state = state_file::read(&path, |content| CpuState::parse(content, name))?;
    let Some(options) = options else {
        return Ok(None);
    };
    let policy = CpuPolicy::new(
        CpuTopology::of(machine),
        options.reserved.clone(),
        options.reserved_count,
        options.policy,
    );
    let policy = policy.map_err(|rule| StartError::Policy {
        field: "cpuManagerPolicy",
        rule,
    })?;
    let mut state = state.unwrap_or_default();
    let started = policy.start(&mut state);
    started.map_err(|rule| StartError::State { path, rule })?;
    Ok(Some(HeldCpus {
        policy,
        state,
        full_cores: options.policy.full_cores,
    }))
}

/// `None` without a policy.
pub(crate) fn memory(
    options: &ResourceManagerOptions,
    machine: &MachineInfo,
    root_dir: &Path,
) -> Result<Option<HeldMemory>, StartError> {
    let path = root_dir.join(MEMORY_FILE);
    let name = MEMORY_POLICIES[usize::from(options.memory.is_some())];
    let state = state_file::read(&path, |content| MemoryState::parse(content, name))?;
    let Some(reserved) = &options.memory else {
        return Ok(None);
    };
    let unknown = reserved.keys().find(|node| {
        let mut nodes = machine.topology.iter();
        !nodes.any(|known| known.node_id == **node)
    });
    if let Some(node) = unknown {
        return Err(StartError::Policy {
            field: "reservedMemory",
            rule: format!("the machine has no NUMA node {node}"),
        });
    }
    let policy = MemoryPolicy::new(&machine.topology, reserved);
    let policy = policy.map_err(|rule| StartError::Policy {
        field: "memoryManagerPolicy",
        rule,
    })?;
    let mut state = state.unwrap_or_default();
    let started = policy.start(&mut state);
    started.map_err(|rule| StartError::State { path, rule })?;
    Ok(Some(HeldMemory { policy, state }))
}
