//! Where the CPUs of a machine are, as the CPU manager sees it.

use std::collections::{BTreeMap, BTreeSet};

use kubelet_host::cpu_set::CpuSet;
use kubelet_machine_info::MachineInfo;

/// What contains CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// A NUMA node.
    NumaNode,
    /// A CPU socket.
    Socket,
    /// CPUs that share a cache of the last level.
    UncoreCache,
    /// A physical core.
    Core,
}

/// Where a CPU is: the numbers of what contains it. A core has the number of its first CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuPlace {
    /// The NUMA node.
    pub numa_node: u32,
    /// The socket.
    pub socket: u32,
    /// The cache of the last level; the socket if none is known.
    pub uncore_cache: u32,
    /// The core.
    pub core: u32,
}

impl CpuPlace {
    /// The number of what contains the CPU at this level.
    pub fn at(&self, level: Level) -> u32 {
        match level {
            Level::NumaNode => self.numa_node,
            Level::Socket => self.socket,
            Level::UncoreCache => self.uncore_cache,
            Level::Core => self.core,
        }
    }
}

/// The online CPUs of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuTopology {
    cpus: BTreeMap<u32, CpuPlace>,
}

impl CpuTopology {
    /// The CPUs of a machine.
    pub fn of(machine: &MachineInfo) -> Self {
        let mut cpus = BTreeMap::new();
        for node in &machine.topology {
            for core in &node.cores {
                let Some(first) = core.thread_ids.iter().min() else {
                    continue;
                };
                let cache = core.uncore_caches.first();
                let place = CpuPlace {
                    numa_node: node.node_id,
                    socket: core.socket_id,
                    uncore_cache: cache.map_or(core.socket_id, |cache| cache.id),
                    core: *first,
                };
                cpus.extend(core.thread_ids.iter().map(|cpu| (*cpu, place)));
            }
        }
        Self { cpus }
    }

    /// All CPUs.
    pub fn cpus(&self) -> CpuSet {
        self.cpus.keys().copied().collect()
    }

    /// Where a CPU is; `None` if it is not one of the machine's.
    pub fn place(&self, cpu: u32) -> Option<&CpuPlace> {
        self.cpus.get(&cpu)
    }

    /// The places of those of the machine's CPUs that are in `set`.
    pub fn places_of(&self, set: &CpuSet) -> BTreeMap<u32, CpuPlace> {
        let known = self.cpus.iter().filter(|(cpu, _)| set.contains(**cpu));
        known.map(|(cpu, place)| (*cpu, *place)).collect()
    }

    /// The numbers of everything that contains CPUs at a level.
    pub fn all(&self, level: Level) -> BTreeSet<u32> {
        self.cpus.values().map(|place| place.at(level)).collect()
    }

    /// The CPUs that one of these contains.
    pub fn cpus_in(&self, level: Level, ids: &[u32]) -> CpuSet {
        let inside = self.cpus.iter();
        let inside = inside.filter(|(_, place)| ids.contains(&place.at(level)));
        inside.map(|(cpu, _)| *cpu).collect()
    }

    /// The average number of CPUs at a level, rounded down, as upstream. The cores of a machine
    /// may have different sizes.
    pub fn cpus_per(&self, level: Level) -> usize {
        self.cpus
            .len()
            .checked_div(self.all(level).len())
            .unwrap_or(0)
    }
}
