//! The memory of each NUMA node.

use std::collections::BTreeMap;

use kubelet_machine_info::Node;
use kubelet_topology_manager::NodeMask;
use serde::{Deserialize, Serialize};

use crate::block::Block;

/// The resource of all memory but huge pages.
pub(crate) const MEMORY: &str = "memory";

/// The memory of each NUMA node, by its number.
pub type MachineMemory = BTreeMap<u32, NodeMemory>;
/// What the system keeps of each resource, in bytes, by the number of the NUMA node.
pub type Reserved = BTreeMap<u32, BTreeMap<String, u64>>;

/// The memory of a NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeMemory {
    /// How many blocks of containers are from this node.
    pub number_of_assignments: u64,
    /// By resource: `memory`, or huge pages of a size.
    pub memory_map: BTreeMap<String, MemoryTable>,
    /// The nodes that containers have memory from together; only this one if there are no others.
    pub cells: Vec<u32>,
}

/// Amounts of one resource of a NUMA node, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MemoryTable {
    /// All of it.
    pub total: u64,
    /// What the system keeps.
    pub system_reserved: u64,
    /// What containers may have.
    pub allocatable: u64,
    /// What containers have.
    pub reserved: u64,
    /// What they can still have.
    pub free: u64,
}

impl MemoryTable {
    fn new(total: u64, system_reserved: u64, other: u64) -> Self {
        let allocatable = total.saturating_sub(system_reserved).saturating_sub(other);
        Self {
            total,
            system_reserved,
            allocatable,
            reserved: 0,
            free: allocatable,
        }
    }
}

/// The memory of a machine on which no container has any.
pub(crate) fn of_machine(nodes: &[Node], reserved: &Reserved) -> MachineMemory {
    let nodes = nodes.iter().map(|node| {
        let reserved = |resource: &str| {
            let of_node = reserved.get(&node.node_id);
            of_node
                .and_then(|it| it.get(resource))
                .copied()
                .unwrap_or(0)
        };
        let mut memory_map = BTreeMap::new();
        let mut huge = 0_u64;
        for pages in &node.hugepages {
            let name = huge_pages(pages.page_size);
            let total = pages
                .num_pages
                .saturating_mul(pages.page_size.saturating_mul(1024));
            huge = huge.saturating_add(total);
            memory_map.insert(name.clone(), MemoryTable::new(total, reserved(&name), 0));
        }
        let memory = MemoryTable::new(node.memory, reserved(MEMORY), huge);
        memory_map.insert(MEMORY.to_owned(), memory);
        let of_node = NodeMemory {
            number_of_assignments: 0,
            memory_map,
            cells: vec![node.node_id],
        };
        (node.node_id, of_node)
    });
    nodes.collect()
}

/// The resource of huge pages of this size in KiB.
fn huge_pages(kibibytes: u64) -> String {
    const UNITS: [&str; 4] = ["Ki", "Mi", "Gi", "Ti"];
    let (mut size, mut unit) = (kibibytes, 0);
    while size >= 1024 && size.is_multiple_of(1024) && unit + 1 < UNITS.len() {
        size /= 1024;
        unit += 1;
    }
    format!("hugepages-{size}{}", UNITS[unit])
}

/// The sum of one amount of these nodes.
pub(crate) fn sum(
    machine: &MachineMemory,
    nodes: NodeMask,
    resource: &str,
    amount: impl Fn(&MemoryTable) -> u64,
) -> u64 {
    let tables = nodes.nodes().filter_map(|node| {
        let of_node = machine.get(&node)?;
        of_node.memory_map.get(resource)
    });
    tables.fold(0, |sum, table| sum.saturating_add(amount(table)))
}

/// Takes a block from its nodes, all of one before any of the next. `size` is what is not taken
/// already.
pub(crate) fn assign(machine: &mut MachineMemory, block: &Block, mut size: u64) {
    for node in &block.numa_affinity {
        let Some(of_node) = machine.get_mut(node) else {
            continue;
        };
        of_node.number_of_assignments += 1;
        of_node.cells.clone_from(&block.numa_affinity);
        if let Some(table) = of_node.memory_map.get_mut(&block.resource) {
            let taken = size.min(table.free);
            table.free -= taken;
            table.reserved = table.reserved.saturating_add(taken);
            size -= taken;
        }
    }
}

/// Returns a block to its nodes.
pub(crate) fn release(machine: &mut MachineMemory, block: &Block) {
    let mut size = block.size;
    for node in &block.numa_affinity {
        let Some(of_node) = machine.get_mut(node) else {
            continue;
        };
        of_node.number_of_assignments = of_node.number_of_assignments.saturating_sub(1);
        if of_node.number_of_assignments == 0 {
            of_node.cells = vec![*node];
        }
        if let Some(table) = of_node.memory_map.get_mut(&block.resource) {
            let returned = size.min(table.reserved);
            table.reserved -= returned;
            table.free = table.free.saturating_add(returned);
            size -= returned;
        }
    }
}
