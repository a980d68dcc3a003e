//! The static policy: containers of guaranteed pods that request whole CPUs get exclusive ones.

use kubelet_host::cpu_set::CpuSet;
use kubelet_topology_manager::{NodeMask, ResourceHints, TopologyHint};

use crate::{
    assignment::{NotEnoughCpus, Packing, Placement, take},
    options::StaticOptions,
    state::CpuState,
    topology::{CpuTopology, Level},
};

/// A container that gets exclusive CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuRequest<'a> {
    /// The pod's UID.
    pub pod: &'a str,
    /// The container's name.
    pub container: &'a str,
    /// The number of CPUs.
    pub cpus: usize,
    /// Whether it ends before the pod's other containers start, which can then have its CPUs.
    pub ends_first: bool,
}

/// Why a container does not get its CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CpuError {
    /// Too few are left.
    #[error(transparent)]
    NotEnough(#[from] NotEnoughCpus),
    /// `full-pcpus-only`: part of a core was requested.
    #[error(
        "SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {per_core}"
    )]
    PartOfCore {
        /// The number of CPUs.
        requested: usize,
        /// How many a core has.
        per_core: usize,
    },
    /// `full-pcpus-only`: too few whole cores are left.
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = \
         {available}, requested CPUs = {requested}, CPUs per core = {per_core}"
    )]
    NotEnoughCores {
        /// The number of CPUs.
        requested: usize,
        /// How many a core has.
        per_core: usize,
        /// The CPUs of whole cores that are left.
        available: usize,
    },
}

impl CpuError {
    /// The reason in the pod's status, if it is not that of every failure of this kind.
    pub fn reason(&self) -> Option<&'static str> {
        match self {
            Self::NotEnough(_) => None,
            Self::PartOfCore { .. } | Self::NotEnoughCores { .. } => Some("SMTAlignmentError"),
        }
    }
}

/// The static policy on this machine.
#[derive(Debug, Clone)]
pub struct StaticPolicy {
    topology: CpuTopology,
    reserved: CpuSet,
    /// The reserved CPUs, and the others of their cores.
    reserved_cores: CpuSet,
    options: StaticOptions,
    /// The CPUs of init containers of this pod, which its next containers can have.
    reusable: (String, CpuSet),
}

impl StaticPolicy {
    /// The policy with the CPUs `reserved`, or as many as `reserved_count` if it is empty.
    ///
    /// # Errors
    /// So many CPUs cannot be reserved, or an option does not suit the machine.
    pub fn new(
        topology: CpuTopology,
        reserved: CpuSet,
        reserved_count: usize,
        options: StaticOptions,
    ) -> Result<Self, String> {
        if reserved_count == 0 {
            return Err(
                "the static policy requires that systemReserved and kubeReserved have CPUs, so that \
                 some are left to share"
                    .to_owned(),
            );
        }
        let count = |level| topology.all(level).len();
        if options.align_by_socket && count(Level::Socket) > count(Level::NumaNode) {
            return Err("align-by-socket: the machine has more sockets than NUMA nodes".to_owned());
        }
        let mut policy = Self {
            topology,
            reserved,
            reserved_cores: CpuSet::EMPTY,
            options,
            reusable: Default::default(),
        };
        let all = policy.topology.cpus();
        if policy.reserved.is_empty() {
            policy.reserved = policy
                .take(&all, reserved_count)
                .map_err(|error| format!("cannot reserve {reserved_count} CPUs: {error}"))?;
        }
        if policy.reserved.len() != reserved_count {
            return Err(format!(
                "{reserved_count} CPUs are reserved, which are not as many as {}",
                policy.reserved
            ));
        }
        let places = policy.topology.places_of(&policy.reserved);
        let cores: Vec<u32> = places.values().map(|place| place.core).collect();
        policy.reserved_cores = policy.topology.cpus_in(Level::Core, &cores);
        Ok(policy)
    }

    /// The CPUs that containers may have for themselves.
    pub fn allocatable(&self) -> CpuSet {
        self.topology.cpus().difference(&self.reserved)
    }

    /// Initializes an empty state, and checks any other against the machine.
    ///
    /// # Errors
    /// The state is not one of this machine with these settings.
    pub fn start(&self, state: &mut CpuState) -> Result<(), String> {
        let all = self.topology.cpus();
        if state.shared.is_empty() && state.exclusive.is_empty() {
            state.shared = if self.options.strict_reservation {
                all.difference(&self.reserved)
            } else {
                all
            };
            return Ok(());
        }
        let shared_reserved = self.reserved.intersection(&state.shared);
        if self.options.strict_reservation && !shared_reserved.is_empty() {
            return Err(format!(
                "the reserved CPUs {shared_reserved} are among those that containers share, {}",
                state.shared
            ));
        }
        if !self.options.strict_reservation && shared_reserved != self.reserved {
            return Err(format!(
                "not all of the reserved CPUs {} are among those that containers share, {}",
                self.reserved, state.shared
            ));
        }
        let mut known = state.shared.clone();
        for (pod, containers) in &state.exclusive {
            for (container, cpus) in containers {
                if !cpus.intersection(&state.shared).is_empty() {
                    return Err(format!(
                        "container {container} of pod {pod} has CPUs {cpus}, and containers share \
                         some of them: {}",
                        state.shared
                    ));
                }
                known = known.union(cpus);
            }
        }
        let expected = if self.options.strict_reservation {
            all.difference(&self.reserved)
        } else {
            all
        };
        if known != expected {
            return Err(format!(
                "the CPUs of the machine are {expected}, and those of the state {known}"
            ));
        }
        Ok(())
    }

    /// From which NUMA nodes a container can have its CPUs.
    pub fn hints(&self, state: &CpuState, request: CpuRequest<'_>) -> ResourceHints {
        if let Some(cpus) = state.of(request.pod, request.container) {
            if cpus.len() != request.cpus {
                return ResourceHints::Among(Vec::new());
            }
            return self.hints_among(cpus, &CpuSet::EMPTY, request.cpus);
        }
        let available = self.available(state);
        self.hints_among(&available, self.reusable_by(request.pod), request.cpus)
    }

    /// From which NUMA nodes all containers of a pod can have their CPUs: `count` at most at one
    /// time.
    pub fn pod_hints(
        &self,
        state: &CpuState,
        pod: &str,
        requests: &[CpuRequest<'_>],
        count: usize,
    ) -> ResourceHints {
        let mut assigned = CpuSet::EMPTY;
        for request in requests {
            if let Some(cpus) = state.of(pod, request.container) {
                if cpus.len() != request.cpus {
                    return ResourceHints::Among(Vec::new());
                }
                assigned = assigned.union(cpus);
            }
        }
        if assigned.len() == count {
            return self.hints_among(&assigned, &CpuSet::EMPTY, count);
        }
        let reusable = self.reusable_by(pod).union(&assigned);
        self.hints_among(&self.available(state), &reusable, count)
    }

    /// Gives a container CPUs, from these NUMA nodes if possible. What it has already, it keeps.
    ///
    /// # Errors
    /// It gets none.
    pub fn allocate(
        &mut self,
        state: &mut CpuState,
        request: CpuRequest<'_>,
        nodes: Option<NodeMask>,
    ) -> Result<(), CpuError> {
        self.check_cores(state, request.cpus)?;
        let cpus = match state.of(request.pod, request.container) {
            Some(cpus) => cpus.clone(),
            None => {
                let cpus = self.choose(state, request, nodes)?;
                state.shared = state.shared.difference(&cpus);
                let of_pod = state.exclusive.entry(request.pod.to_owned()).or_default();
                of_pod.insert(request.container.to_owned(), cpus.clone());
                cpus
            }
        };
        let reusable = self.reusable_by(request.pod);
        let reusable = if request.ends_first {
            reusable.union(&cpus)
        } else {
            reusable.difference(&cpus)
        };
        self.reusable = (request.pod.to_owned(), reusable);
        Ok(())
    }

    /// Takes a container's CPUs, except those that another container of its pod has too.
    pub fn release(&self, state: &mut CpuState, pod: &str, container: &str) {
        let Some(of_pod) = state.exclusive.get_mut(pod) else {
            return;
        };
        let released = of_pod.remove(container).unwrap_or_default();
        let others = of_pod.values();
        let kept = others.fold(CpuSet::EMPTY, |all, cpus| all.union(cpus));
        if of_pod.is_empty() {
            state.exclusive.remove(pod);
        }
        let released = released.difference(&kept);
        state.shared = state.shared.union(&released);
    }

    /// The CPUs that containers can still have for themselves.
    pub fn available(&self, state: &CpuState) -> CpuSet {
        state.shared.difference(&self.reserved)
    }

    /// The CPUs of containers without exclusive ones. If strict reservation leaves none, they run on
    /// the reserved CPUs, as exclusive ones stay exclusive.
    pub fn shared(&self, state: &CpuState) -> CpuSet {
        match state.shared.is_empty() {
            true => self.reserved.clone(),
            false => state.shared.clone(),
        }
    }

    /// The machine's CPUs.
    pub const fn topology(&self) -> &CpuTopology {
        &self.topology
    }

    fn reusable_by(&self, pod: &str) -> &CpuSet {
        static NONE: CpuSet = CpuSet::EMPTY;
        let (owner, cpus) = &self.reusable;
        if owner == pod { cpus } else { &NONE }
    }

    /// `full-pcpus-only`.
    fn check_cores(&self, state: &CpuState, requested: usize) -> Result<(), CpuError> {
        let per_core = self.topology.cpus_per(Level::Core).max(1);
        if !self.options.full_cores {
            return Ok(());
        }
        if !requested.is_multiple_of(per_core) {
            return Err(CpuError::PartOfCore {
                requested,
                per_core,
            });
        }
        // A core with a reserved CPU cannot be given whole.
        let available = state.shared.difference(&self.reserved_cores).len();
        if requested > available {
            return Err(CpuError::NotEnoughCores {
                requested,
                per_core,
                available,
            });
        }
        Ok(())
    }

    fn choose(
        &self,
        state: &CpuState,
        request: CpuRequest<'_>,
        nodes: Option<NodeMask>,
    ) -> Result<CpuSet, NotEnoughCpus> {
        let available = self.available(state).union(self.reusable_by(request.pod));
        let mut chosen = CpuSet::EMPTY;
        if let Some(nodes) = nodes {
            let aligned = self.aligned(&available, nodes);
            let count = aligned.len().min(request.cpus);
            chosen = self.take(&aligned, count)?;
        }
        let rest = available.difference(&chosen);
        let more = self.take(&rest, request.cpus - chosen.len())?;
        Ok(chosen.union(&more))
    }

    fn aligned(&self, available: &CpuSet, nodes: NodeMask) -> CpuSet {
        let nodes: Vec<u32> = nodes.nodes().collect();
        let inside = if self.options.align_by_socket {
            self.topology
                .cpus_in(Level::Socket, &self.sockets_of(&nodes))
        } else {
            self.topology.cpus_in(Level::NumaNode, &nodes)
        };
        available.intersection(&inside)
    }

    fn sockets_of(&self, nodes: &[u32]) -> Vec<u32> {
        let cpus = self.topology.cpus_in(Level::NumaNode, nodes);
        let places = self.topology.places_of(&cpus);
        let mut sockets: Vec<u32> = places.values().map(|place| place.socket).collect();
        sockets.sort_unstable();
        sockets.dedup();
        sockets
    }

    fn take(&self, available: &CpuSet, count: usize) -> Result<CpuSet, NotEnoughCpus> {
        let options = self.options;
        let placement = if options.across_numa_nodes {
            Placement::Distributed {
                group: if options.full_cores {
                    self.topology.cpus_per(Level::Core)
                } else {
                    1
                },
            }
        } else if options.across_cores {
            Placement::Packed(Packing::AcrossCores)
        } else if options.prefer_uncore_caches {
            Placement::Packed(Packing::UncoreCaches)
        } else {
            Placement::Packed(Packing::Cores)
        };
        take(&self.topology, available, count, placement)
    }

    /// Each set of NUMA nodes that has `count` CPUs among these and all of the reusable ones.
    /// Preferred are those of as few nodes as an empty machine would need.
    fn hints_among(&self, available: &CpuSet, reusable: &CpuSet, count: usize) -> ResourceHints {
        let node_of = |cpu| self.topology.place(cpu).map(|place| place.numa_node);
        let all: NodeMask = self.topology.all(Level::NumaNode).into_iter().collect();
        let masks = all.subsets();
        let inside = |set: &CpuSet, nodes: NodeMask| {
            let is_inside = |cpu: &u32| node_of(*cpu).is_some_and(|node| nodes.contains(node));
            set.iter().filter(is_inside).count()
        };
        let cpus = self.topology.cpus();
        let large = masks.iter().filter(|nodes| inside(&cpus, **nodes) >= count);
        let least = large
            .map(|nodes| nodes.count())
            .min()
            .unwrap_or(all.count());
        let fits = masks.into_iter().filter(|nodes| {
            let reused = inside(reusable, *nodes);
            reused == reusable.len() && reused + inside(available, *nodes) >= count
        });
        let hints = fits.map(|nodes| TopologyHint {
            nodes: Some(nodes),
            preferred: nodes.count() == least
                || self.options.align_by_socket && self.is_socket_aligned(nodes, least),
        });
        ResourceHints::Among(hints.collect())
    }

    /// Whether the nodes are in as few sockets as so many nodes can be.
    fn is_socket_aligned(&self, nodes: NodeMask, least: u32) -> bool {
        let count = |level| self.topology.all(level).len();
        let per_socket = count(Level::NumaNode) / count(Level::Socket).max(1);
        let nodes: Vec<u32> = nodes.nodes().collect();
        per_socket > 0 && self.sockets_of(&nodes).len() == (least as usize).div_ceil(per_socket)
    }
}
