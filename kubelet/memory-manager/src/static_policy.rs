//! The static policy: containers of guaranteed pods have their memory from certain NUMA nodes.

use std::collections::{BTreeMap, BTreeSet};

use kubelet_machine_info::Node;
use kubelet_topology_manager::{NodeMask, ResourceHints, TopologyHint};

use crate::{
    block::Block,
    nodes::{
        MEMORY, MachineMemory, MemoryTable, NodeMemory, Reserved, assign, of_machine, release, sum,
    },
    state::MemoryState,
};

/// Bytes by resource: `memory`, or huge pages of a size.
pub type Amounts = BTreeMap<String, u64>;

/// A container of a guaranteed pod.
#[derive(Debug, Clone, Copy)]
pub struct MemoryRequest<'a> {
    /// The pod's UID.
    pub pod: &'a str,
    /// The container's name.
    pub container: &'a str,
    /// What it requests.
    pub amounts: &'a Amounts,
    /// Whether it ends before the pod's other containers start, which can then have its memory.
    pub ends_first: bool,
    /// The containers before it that do.
    pub after: &'a [&'a str],
}

/// Why a container does not get its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// No nodes have enough.
    #[error(
        "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory \
         is available"
    )]
    NoNodes,
    /// More nodes are needed than on an empty machine.
    #[error("[memorymanager] failed to find the default preferred hint")]
    NotPreferred,
    /// No nodes that include the chosen ones have enough.
    #[error("[memorymanager] failed to find NUMA nodes to extend the current topology hint")]
    NoMoreNodes,
    /// The same, with more nodes than on an empty machine.
    #[error("[memorymanager] failed to find the extended preferred hint")]
    MoreNotPreferred,
    /// A node serves either containers with memory of this node alone, or those with memory of one
    /// set of nodes.
    #[error("[memorymanager] preferred hint violates NUMA node allocation")]
    Mixed,
}

/// The static policy on this machine.
#[derive(Debug, Clone)]
pub struct StaticPolicy {
    empty: MachineMemory,
    /// The memory of init containers of this pod, which its next containers can have.
    reusable: (String, BTreeMap<(NodeMask, String), u64>),
}

impl StaticPolicy {
    /// The policy on a machine with these NUMA nodes.
    ///
    /// # Errors
    /// No memory is reserved for the system.
    pub fn new(nodes: &[Node], reserved: &Reserved) -> Result<Self, String> {
        let of_nodes = reserved.values().filter_map(|amounts| amounts.get(MEMORY));
        if of_nodes.sum::<u64>() == 0 {
            return Err("the static policy requires that reservedMemory has memory".to_owned());
        }
        Ok(Self {
            empty: of_machine(nodes, reserved),
            reusable: Default::default(),
        })
    }

    /// Initializes an empty state, and checks any other against the machine.
    ///
    /// # Errors
    /// The state is not one of this machine with these settings.
    pub fn start(&self, state: &mut MemoryState) -> Result<(), String> {
        if state.machine.is_empty() {
            if !state.assignments.is_empty() {
                return Err("containers have memory, and the machine has none".to_owned());
            }
            state.machine = self.empty.clone();
            return Ok(());
        }
        let mut expected = self.empty.clone();
        for (pod, containers) in &state.assignments {
            for (container, blocks) in containers {
                for block in blocks {
                    let has_it = |node| {
                        let of_node: Option<&NodeMemory> = expected.get(node);
                        of_node.is_some_and(|it| it.memory_map.contains_key(&block.resource))
                    };
                    if !block.numa_affinity.iter().all(has_it) {
                        return Err(format!(
                            "container {container} of pod {pod} has {} of NUMA nodes {:?}, which \
                             the machine does not have",
                            block.resource, block.numa_affinity
                        ));
                    }
                    assign(&mut expected, block, block.size);
                }
            }
        }
        difference(&state.machine, &expected).map_or(Ok(()), Err)
    }

    /// From which NUMA nodes a container can have its memory, or all containers of a pod together.
    pub fn hints(&self, state: &MemoryState, request: MemoryRequest<'_>) -> Vec<ResourceHints> {
        if let Some(blocks) = state.of(request.pod, request.container) {
            return again(blocks, request.amounts);
        }
        let hints = self.fitting(&state.machine, request.pod, request.amounts);
        if hints.is_empty() {
            // As upstream, which reports it when the memory is assigned.
            return vec![ResourceHints::Any];
        }
        let of_resource = |_| ResourceHints::Among(hints.clone());
        request.amounts.keys().map(of_resource).collect()
    }

    /// Assigns memory to a container, from the nodes of `hint` if possible. What it has already, it
    /// keeps.
    ///
    /// # Errors
    /// It gets none.
    pub fn allocate(
        &mut self,
        state: &mut MemoryState,
        request: MemoryRequest<'_>,
        hint: TopologyHint,
    ) -> Result<(), MemoryError> {
        if let Some(blocks) = state.of(request.pod, request.container) {
            let blocks = blocks.to_vec();
            self.reuse(request, &blocks);
            return Ok(());
        }
        let nodes = self.choose(&state.machine, request, hint)?;
        let affinity: Vec<u32> = nodes.nodes().collect();
        let mut blocks = Vec::with_capacity(request.amounts.len());
        for (resource, size) in request.amounts {
            let block = Block {
                numa_affinity: affinity.clone(),
                resource: resource.clone(),
                size: *size,
            };
            let reused = self.reusable_by(request.pod, nodes, resource);
            assign(&mut state.machine, &block, size.saturating_sub(reused));
            blocks.push(block);
        }
        self.reuse(request, &blocks);
        let of_pod = state.assignments.entry(request.pod.to_owned()).or_default();
        for block in &blocks {
            take_over(of_pod, block, request.after);
        }
        of_pod.insert(request.container.to_owned(), blocks);
        Ok(())
    }

    /// Takes a container's memory.
    pub fn release(&self, state: &mut MemoryState, pod: &str, container: &str) {
        let Some(of_pod) = state.assignments.get_mut(pod) else {
            return;
        };
        for block in of_pod.remove(container).unwrap_or_default() {
            release(&mut state.machine, &block);
        }
        if of_pod.is_empty() {
            state.assignments.remove(pod);
        }
    }

    fn choose(
        &self,
        machine: &MachineMemory,
        request: MemoryRequest<'_>,
        hint: TopologyHint,
    ) -> Result<NodeMask, MemoryError> {
        let fitting = || self.fitting(machine, request.pod, request.amounts);
        let (chosen, preferred) = match hint.nodes {
            Some(nodes) => (nodes, hint.preferred),
            None => {
                let (nodes, preferred) = best(fitting()).ok_or(MemoryError::NoNodes)?;
                if hint.preferred && !preferred {
                    return Err(MemoryError::NotPreferred);
                }
                (nodes, preferred)
            }
        };
        let has_enough = |(resource, size): (&String, &u64)| {
            sum(machine, chosen, resource, |table| table.free) >= *size
        };
        let nodes = if request.amounts.iter().all(has_enough) {
            chosen
        } else {
            let includes =
                |hint: &TopologyHint| hint.nodes.is_some_and(|more| more.and(chosen) == chosen);
            let larger = fitting().into_iter().filter(includes).collect();
            let (more, is_preferred) = best(larger).ok_or(MemoryError::NoMoreNodes)?;
            if preferred && !is_preferred {
                return Err(MemoryError::MoreNotPreferred);
            }
            more
        };
        if nodes.count() > 1 && mixes(machine, nodes) {
            return Err(MemoryError::Mixed);
        }
        Ok(nodes)
    }

    /// The sets of nodes that have these amounts. Preferred are those of as few nodes as an empty
    /// machine would need.
    fn fitting(&self, machine: &MachineMemory, pod: &str, amounts: &Amounts) -> Vec<TopologyHint> {
        let all: NodeMask = machine.keys().copied().collect();
        let mut least = all.count();
        let mut fitting = Vec::new();
        for nodes in all.subsets() {
            let could = |(resource, size): (&String, &u64)| {
                sum(machine, nodes, resource, |table| table.allocatable) >= *size
            };
            if !amounts.iter().all(could) {
                continue;
            }
            least = least.min(nodes.count());
            if mixes(machine, nodes) {
                continue;
            }
            let can = |(resource, size): (&String, &u64)| {
                let free = sum(machine, nodes, resource, |table| table.free);
                free.saturating_add(self.reusable_by(pod, nodes, resource)) >= *size
            };
            if amounts.iter().all(can) {
                fitting.push(nodes);
            }
        }
        let hint = |nodes: NodeMask| TopologyHint {
            nodes: Some(nodes),
            preferred: nodes.count() == least,
        };
        if amounts.is_empty() {
            return Vec::new();
        }
        fitting.into_iter().map(hint).collect()
    }

    fn reusable_by(&self, pod: &str, nodes: NodeMask, resource: &str) -> u64 {
        let (owner, reusable) = &self.reusable;
        if owner != pod {
            return 0;
        }
        let found = reusable.get(&(nodes, resource.to_owned()));
        found.copied().unwrap_or(0)
    }

    /// Notes what the next containers of the pod can have of these blocks, or what this one took.
    fn reuse(&mut self, request: MemoryRequest<'_>, blocks: &[Block]) {
        if self.reusable.0 != request.pod {
            self.reusable = (request.pod.to_owned(), BTreeMap::new());
        }
        for block in blocks {
            let nodes = block.numa_affinity.iter().copied().collect();
            let key = (nodes, block.resource.clone());
            let amount = self.reusable.1.entry(key).or_default();
            *amount = if request.ends_first {
                block.size.max(*amount)
            } else {
                amount.saturating_sub(block.size)
            };
        }
    }
}

/// The hints for memory that the container has already.
fn again(blocks: &[Block], amounts: &Amounts) -> Vec<ResourceHints> {
    let is_same = |block: &Block| amounts.get(&block.resource) == Some(&block.size);
    if blocks.len() != amounts.len() || !blocks.iter().all(is_same) {
        // As upstream, with another request than at first.
        return vec![ResourceHints::Any];
    }
    let hint = |block: &Block| TopologyHint {
        nodes: Some(block.numa_affinity.iter().copied().collect()),
        preferred: true,
    };
    let hints = |block: &Block| ResourceHints::Among(vec![hint(block)]);
    blocks.iter().map(hints).collect()
}

/// The best of these: preferred, then the fewest nodes.
fn best(hints: Vec<TopologyHint>) -> Option<(NodeMask, bool)> {
    let hints = hints.into_iter();
    let hints = hints.filter_map(|hint| Some((hint.nodes?, hint.preferred)));
    hints.min_by_key(|(nodes, preferred)| (!preferred, nodes.count(), *nodes))
}

/// Whether memory of these nodes would be assigned both together and otherwise.
fn mixes(machine: &MachineMemory, nodes: NodeMask) -> bool {
    let together: BTreeSet<u32> = nodes.nodes().collect();
    let mut used = nodes.nodes().filter_map(|node| machine.get(&node));
    used.any(|node| {
        if nodes.count() == 1 {
            return node.cells.len() > 1;
        }
        let cells: BTreeSet<u32> = node.cells.iter().copied().collect();
        node.number_of_assignments > 0 && cells != together
    })
}

/// Reduces the blocks of init containers by what this block takes over from them, so that the
/// blocks of a pod are as large as what it has.
fn take_over(of_pod: &mut BTreeMap<String, Vec<Block>>, block: &Block, from: &[&str]) {
    let mut size = block.size;
    for name in from {
        let Some(blocks) = of_pod.get_mut(*name) else {
            continue;
        };
        for other in blocks {
            if other.resource == block.resource && other.numa_affinity == block.numa_affinity {
                let taken = size.min(other.size);
                other.size -= taken;
                size -= taken;
            }
        }
    }
}

/// What differs between the memory in a state and that of the machine.
fn difference(found: &MachineMemory, expected: &MachineMemory) -> Option<String> {
    if !found.keys().eq(expected.keys()) {
        let nodes = |machine: &MachineMemory| format!("{:?}", machine.keys().collect::<Vec<_>>());
        return Some(format!(
            "the NUMA nodes of the machine are {}, and those of the state {}",
            nodes(expected),
            nodes(found)
        ));
    }
    found
        .iter()
        .zip(expected.values())
        .find_map(|((id, found_node), node)| {
            let cells = |node: &NodeMemory| node.cells.iter().copied().collect::<BTreeSet<u32>>();
            if found_node.number_of_assignments != node.number_of_assignments
                || cells(found_node) != cells(node)
                || !found_node.memory_map.keys().eq(node.memory_map.keys())
            {
                return Some(format!(
                    "NUMA node {id} is {found_node:?} in the state, and should be {node:?}"
                ));
            }
            let together: NodeMask = node.cells.iter().copied().collect();
            node.memory_map.iter().find_map(|(resource, table)| {
                let fixed =
                    |table: &MemoryTable| (table.total, table.system_reserved, table.allocatable);
                let in_state = found_node.memory_map.get(resource)?;
                // The order in which containers came decides how much each of several nodes has.
                let amounts = |machine| {
                    let of =
                        |amount: fn(&MemoryTable) -> u64| sum(machine, together, resource, amount);
                    (of(|table| table.free), of(|table| table.reserved))
                };
                let differs =
                    fixed(in_state) != fixed(table) || amounts(found) != amounts(expected);
                differs.then(|| {
                    format!(
                        "{resource} of NUMA node {id} is {in_state:?} in the state, and should be \
                     {table:?}"
                    )
                })
            })
        })
}
