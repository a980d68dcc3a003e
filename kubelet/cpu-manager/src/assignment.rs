//! Which of the available CPUs a container gets.

use std::collections::{BTreeMap, BTreeSet};

use kubelet_host::cpu_set::CpuSet;

use crate::{
    distribution::distribute,
    topology::{CpuPlace, CpuTopology, Level},
};

/// How CPUs are taken from NUMA nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// From as few as possible: whole NUMA nodes and sockets first, then whole cores.
    Packed(Packing),
    /// Evenly from as few as necessary, in groups of this many CPUs
    /// (`distribute-cpus-across-numa`).
    Distributed {
        /// 1, or the CPUs of a core.
        group: usize,
    },
}

/// What is preferred below NUMA nodes and sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// Whole cores.
    Cores,
    /// Whole caches, then cores (`prefer-align-cpus-by-uncorecache`).
    UncoreCaches,
    /// Different cores (`distribute-cpus-across-cores`).
    AcrossCores,
}

/// Fewer CPUs are available than requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not enough cpus available to satisfy request: requested={requested}, available={available}"
)]
pub struct NotEnoughCpus {
    requested: usize,
    available: usize,
}

/// Takes `count` of the `available` CPUs.
///
/// # Errors
/// There are fewer.
pub fn take(
    topology: &CpuTopology,
    available: &CpuSet,
    count: usize,
    placement: Placement,
) -> Result<CpuSet, NotEnoughCpus> {
    let mut taking = Taking::new(topology, available, count)?;
    let packing = match placement {
        Placement::Packed(packing) => packing,
        Placement::Distributed { group } => {
            // A request that is not a multiple of the group is packed.
            if group > 0 && count.is_multiple_of(group) && taking.distribute(group) {
                return Ok(taking.taken.into_iter().collect());
            }
            Packing::Cores
        }
    };
    taking.pack(packing);
    Ok(taking.taken.into_iter().collect())
}

/// CPUs that are being taken. Enough of them are free.
#[derive(Debug, Clone)]
struct Taking<'a> {
    topology: &'a CpuTopology,
    free: BTreeMap<u32, CpuPlace>,
    taken: BTreeSet<u32>,
    needed: usize,
}

impl<'a> Taking<'a> {
    fn new(
        topology: &'a CpuTopology,
        available: &CpuSet,
        needed: usize,
    ) -> Result<Self, NotEnoughCpus> {
        let free = topology.places_of(available);
        if needed > free.len() {
            return Err(NotEnoughCpus {
                requested: needed,
                available: available.len(),
            });
        }
        Ok(Self {
            topology,
            free,
            taken: BTreeSet::new(),
            needed,
        })
    }

    /// The free CPUs of one NUMA node, socket, cache or core.
    fn free_in(&self, level: Level, id: u32) -> impl Iterator<Item = u32> {
        let inside = self.free.iter();
        let inside = inside.filter(move |(_, place)| place.at(level) == id);
        inside.map(|(cpu, _)| *cpu)
    }

    fn take(&mut self, cpus: impl IntoIterator<Item = u32>) {
        for cpu in cpus {
            if self.free.remove(&cpu).is_some() {
                self.taken.insert(cpu);
                self.needed = self.needed.saturating_sub(1);
            }
        }
    }

    /// Whichever of NUMA nodes and sockets contains the other, from the outer to the inner.
    fn nesting(&self) -> [Level; 2] {
        let count = |level| self.topology.all(level).len();
        if count(Level::Socket) >= count(Level::NumaNode) {
            [Level::NumaNode, Level::Socket]
        } else {
            [Level::Socket, Level::NumaNode]
        }
    }

    /// What has free CPUs at a level, by what contains it, then by the number of free CPUs, the
    /// fewest first, then by number.
    fn by_free(&self, level: Level) -> Vec<u32> {
        let [outer, inner] = self.nesting();
        let above = match level {
            _ if level == outer => None,
            _ if level == inner => Some(outer),
            Level::UncoreCache => Some(Level::NumaNode),
            _ => Some(inner),
        };
        let mut sorted = Vec::new();
        let groups = above.map(|above| self.by_free(above));
        let mut add = |places: &mut dyn Iterator<Item = &CpuPlace>| {
            let ids: BTreeSet<u32> = places.map(|place| place.at(level)).collect();
            let mut ids: Vec<u32> = ids.into_iter().filter(|id| !sorted.contains(id)).collect();
            ids.sort_by_key(|id| (self.free_in(level, *id).count(), *id));
            sorted.extend(ids);
        };
        match (above, groups) {
            (Some(above), Some(groups)) => {
                for group in groups {
                    add(&mut self.free.values().filter(|place| place.at(above) == group));
                }
            }
            _ => add(&mut self.free.values()),
        }
        sorted
    }

    /// Takes the CPUs evenly from several NUMA nodes, in groups. Returns whether that is possible;
    /// else nothing is taken.
    fn distribute(&mut self, group: usize) -> bool {
        if self.needed == 0 {
            return true;
        }
        let nodes = self.topology.all(Level::NumaNode).len();
        let per_node = self.topology.cpus().len().div_ceil(group).div_ceil(nodes);
        let least = self.needed.div_ceil(group).div_ceil(per_node);
        let order = self.by_free(Level::NumaNode);
        let free = order.iter().map(|node| {
            let of_node = self.free_in(Level::NumaNode, *node);
            (*node, of_node.count())
        });
        let Some(found) = distribute(&free.collect(), &order, self.needed, group, least) else {
            return false;
        };
        let mut attempt = self.clone();
        for node in &found.nodes {
            attempt.take_packed_in(*node, found.each);
        }
        while attempt.needed > 0 {
            let before = attempt.needed;
            for node in &found.more {
                if attempt.needed > 0 && attempt.free_in(Level::NumaNode, *node).count() >= group {
                    attempt.take_packed_in(*node, group);
                }
            }
            if attempt.needed == before {
                return false;
            }
        }
        *self = attempt;
        true
    }

    fn take_packed_in(&mut self, node: u32, count: usize) {
        let inside: CpuSet = self.free_in(Level::NumaNode, node).collect();
        if let Ok(mut part) = Taking::new(self.topology, &inside, count) {
            part.pack(Packing::Cores);
            self.take(part.taken);
        }
    }

    fn pack(&mut self, packing: Packing) {
        let [outer, inner] = self.nesting();
        self.take_whole(outer);
        self.take_whole(inner);
        match packing {
            Packing::Cores => self.take_whole(Level::Core),
            Packing::UncoreCaches => {
                self.take_caches();
                self.take_whole(Level::Core);
            }
            Packing::AcrossCores => {}
        }
        let order = if packing == Packing::AcrossCores {
            Level::Socket
        } else {
            Level::Core
        };
        let mut rest = Vec::with_capacity(self.free.len());
        for id in self.by_free(order) {
            rest.extend(self.free_in(order, id));
        }
        rest.truncate(self.needed);
        self.take(rest);
    }

    /// Takes whatever is entirely free at a level and no larger than what is needed.
    fn take_whole(&mut self, level: Level) {
        for id in self.by_free(level) {
            let free: Vec<u32> = self.free_in(level, id).collect();
            let size = self.topology.cpus_in(level, &[id]).len();
            // Upstream compares with the average: of a core or socket of another size, it takes
            // CPUs that are not available, or none.
            let is_average = match level {
                Level::Socket | Level::Core => size == self.topology.cpus_per(level),
                Level::NumaNode | Level::UncoreCache => true,
            };
            if is_average && free.len() == size && (1..=self.needed).contains(&size) {
                self.take(free);
            }
        }
    }

    /// Takes whole caches, and the rest from one cache that has enough free cores.
    fn take_caches(&mut self) {
        for cache in self.by_free(Level::UncoreCache) {
            if self.needed == 0 {
                return;
            }
            if self.needed >= self.topology.cpus_per(Level::UncoreCache) {
                self.take_whole(Level::UncoreCache);
            }
            if self.needed > 0 {
                self.take_part_of_cache(cache);
            }
        }
    }

    fn take_part_of_cache(&mut self, cache: u32) {
        let per_core = self.topology.cpus_per(Level::Core).max(1);
        let in_cache = self.free.values();
        let in_cache = in_cache.filter(|place| place.uncore_cache == cache);
        let cores: BTreeSet<u32> = in_cache.map(|place| place.core).collect();
        let cores = cores.into_iter().take(self.needed.div_ceil(per_core));
        let cores: BTreeSet<u32> = cores.collect();
        let inside = self.free.iter();
        let inside = inside.filter(|(_, place)| cores.contains(&place.core));
        let mut cpus: Vec<u32> = inside.map(|(cpu, _)| *cpu).collect();
        // An odd request leaves one CPU of its last core.
        if per_core > 1 && !self.needed.is_multiple_of(2) && cpus.len() > self.needed {
            cpus.pop();
        }
        if cpus.len() == self.needed {
            self.take(cpus);
        }
    }
}
