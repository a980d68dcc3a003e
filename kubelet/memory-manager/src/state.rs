//! Which container has memory from which NUMA nodes, in the format of upstream's
//! `memory_manager_state`.

use std::{collections::BTreeMap, fmt::Write as _};

use kubelet_host::state_file::{InvalidState, StateFile};
use serde::{Deserialize, Serialize};

use crate::{
    block::Block,
    nodes::{MachineMemory, NodeMemory},
};

/// The memory of each container, by the pod's UID and the container's name.
pub type Assignments = BTreeMap<String, BTreeMap<String, Vec<Block>>>;

/// The memory of the machine, and of containers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryState {
    /// By NUMA node.
    pub machine: MachineMemory,
    /// By container.
    pub assignments: Assignments,
}

/// The file. That of the feature gate `PodLevelResourceManagers` is refused.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MemoryStateFile {
    policy_name: String,
    machine_state: MachineMemory,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: Assignments,
    checksum: u64,
}

impl MemoryState {
    /// Reads the content of a state file.
    ///
    /// # Errors
    /// The file must not be used.
    pub fn parse(content: &[u8], policy: &str) -> Result<Self, InvalidState> {
        let file = MemoryStateFile::parse(content, policy)?;
        Ok(Self {
            machine: file.machine_state,
            assignments: file.entries,
        })
    }

    /// The content of the state file.
    ///
    /// # Errors
    /// It is no JSON object.
    pub fn to_file(&self, policy: &str) -> serde_json::Result<String> {
        let file = MemoryStateFile {
            policy_name: policy.to_owned(),
            machine_state: self.machine.clone(),
            entries: self.assignments.clone(),
            checksum: 0,
        };
        file.content()
    }

    /// The memory of a container; `None` if it has none assigned.
    pub fn of(&self, pod: &str, container: &str) -> Option<&[Block]> {
        let blocks = self.assignments.get(pod)?.get(container)?;
        Some(blocks)
    }
}

impl StateFile for MemoryStateFile {
    fn policy(&self) -> &str {
        &self.policy_name
    }

    fn checksum(&mut self) -> &mut u64 {
        &mut self.checksum
    }

    fn as_go_prints(&self) -> String {
        let mut text = format!(
            "(*state.MemoryManagerCheckpoint){{PolicyName:(string){} \
             MachineState:(state.NUMANodeMap)map[",
            self.policy_name
        );
        let nodes = self.machine_state.iter();
        text.push_str(&joined(nodes.map(|(id, node)| node_text(*id, node))));
        text.push_str("] Entries:(state.ContainerMemoryAssignments)map[");
        let pods = self.entries.iter();
        text.push_str(&joined(pods.map(|(pod, containers)| {
            let containers = containers.iter();
            let containers = containers.map(|(name, blocks)| {
                format!("{name}:[{}]", joined(blocks.iter().map(block_text)))
            });
            format!("{pod}:map[{}]", joined(containers))
        })));
        text.push_str("] Checksum:(checksum.Checksum)0}");
        text
    }
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(" ")
}

fn numbers(numbers: &[u32]) -> String {
    let numbers = numbers.iter().map(u32::to_string);
    format!("([]int)[{}]", joined(numbers))
}

fn node_text(id: u32, node: &NodeMemory) -> String {
    let mut text = format!(
        "{id}:<*>{{NumberOfAssignments:(int){} \
         MemoryMap:(map[v1.ResourceName]*state.MemoryTable)map[",
        node.number_of_assignments
    );
    text.push_str(&joined(node.memory_map.iter().map(|(resource, table)| {
        let mut text = format!("{resource}:<*>{{");
        let mut separator = "";
        for (name, amount) in [
            ("TotalMemSize", table.total),
            ("SystemReserved", table.system_reserved),
            ("Allocatable", table.allocatable),
            ("Reserved", table.reserved),
            ("Free", table.free),
        ] {
            // Writing to a string cannot fail.
            let _ = write!(text, "{separator}{name}:(uint64){amount}");
            separator = " ";
        }
        text.push('}');
        text
    })));
    let _ = write!(text, "] Cells:{}}}", numbers(&node.cells));
    text
}

fn block_text(block: &Block) -> String {
    format!(
        "{{NUMAAffinity:{} Type:(v1.ResourceName){} Size:(uint64){}}}",
        numbers(&block.numa_affinity),
        block.resource,
        block.size
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files that upstream's kubelet wrote.
    const FILES: [&str; 3] = [
        r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#,
        r#"{"policyName":"Static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"hugepages-2Mi":{"total":0,"systemReserved":0,"allocatable":0,"reserved":0,"free":0},"memory":{"total":4096,"systemReserved":1024,"allocatable":3072,"reserved":72,"free":3000}},"cells":[0]}},"checksum":2431999779}"#,
        r#"{"policyName":"Static","machineState":{"0":{"numberOfAssignments":3,"memoryMap":{"hugepages-2Mi":{"total":0,"systemReserved":0,"allocatable":0,"reserved":0,"free":0},"memory":{"total":4096,"systemReserved":1024,"allocatable":3072,"reserved":72,"free":3000}},"cells":[0,10]},"10":{"numberOfAssignments":1,"memoryMap":{"hugepages-2Mi":{"total":0,"systemReserved":0,"allocatable":0,"reserved":0,"free":0},"memory":{"total":4096,"systemReserved":1024,"allocatable":3072,"reserved":72,"free":3000}},"cells":[0,10]},"2":{"numberOfAssignments":0,"memoryMap":{"hugepages-2Mi":{"total":0,"systemReserved":0,"allocatable":0,"reserved":0,"free":0},"memory":{"total":4096,"systemReserved":1024,"allocatable":3072,"reserved":72,"free":3000}},"cells":[2]}},"entries":{"a":{"c":[]},"b":{"x":[{"numaAffinity":[0,10],"type":"memory","size":7}],"y":[{"numaAffinity":[0,10],"type":"memory","size":72},{"numaAffinity":[0,10],"type":"hugepages-2Mi","size":0}]}},"checksum":2968297270}"#,
    ];

    fn policy(file: &str) -> &str {
        file.split('"').nth(3).unwrap()
    }

    #[test]
    fn files_of_upstream_are_read_and_written_the_same() {
        for file in FILES {
            let state = MemoryState::parse(file.as_bytes(), policy(file)).unwrap();
            let written = state.to_file(policy(file)).unwrap();
            // The order of the nodes is another.
            let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            assert_eq!(json(&written), json(file));
        }
        let state = MemoryState::parse(FILES[2].as_bytes(), "Static").unwrap();
        assert_eq!(state.of("b", "x").unwrap()[0].size, 7);
        assert_eq!(
            (state.of("a", "c"), state.of("a", "d")),
            (Some(&[][..]), None)
        );
    }

    #[test]
    fn a_file_that_must_not_be_used_is_refused() {
        let changed = FILES[2].replace("\"size\":7}", "\"size\":8}");
        for (file, policy, says) in [
            (FILES[0], "Static", "the policy \"None\""),
            (&changed, "Static", "checksum is 2968297270"),
            ("{", "Static", "invalid"),
            (
                r#"{"policyName":"Static","machineState":{},"podEntries":{},"checksum":0}"#,
                "Static",
                "podEntries",
            ),
        ] {
            let error = MemoryState::parse(file.as_bytes(), policy).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
