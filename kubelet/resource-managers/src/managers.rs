//! The managers of a node.

#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use kubelet_cpu_manager::Level;
use kubelet_device_manager::DeviceManager;
use kubelet_host::{
    cpu_set::CpuSet,
    saver::{Saver, Snapshot},
};
use kubelet_machine_info::MachineInfo;
use kubelet_memory_manager::Block;
use kubelet_metrics::{Collector, Exposition, Family, Gauge};
use kubelet_pod_spec::identity::PodUid;
use kubelet_topology_manager::{Policy, PolicyName};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    error::StartError,
    held::{Held, HeldMemory},
    metrics::Metrics,
    options::{ResourceManagerOptions, Scope, TopologyOptions},
    requests::{self, Role},
    start,
};

/// The boundary of alignment in metrics.
pub(crate) const NUMA_NODE: &str = "numa_node";

/// The managers of CPUs, memory and devices, and the topology manager. The default manages nothing.
#[derive(Debug, Default)]
pub struct ResourceManagers {
    pub(crate) topology: Option<Topology>,
    pub(crate) devices: Option<DeviceManager>,
    keeps_cpu_quota: bool,
    root_dir: PathBuf,
    pub(crate) state: Mutex<State>,
    saver: Saver,
    changed: Notify,
    pub(crate) metrics: Metrics,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) held: Held,
    /// Grows with each change.
    version: u64,
}

#[derive(Debug)]
pub(crate) struct Topology {
    pub(crate) policy: Policy,
    pub(crate) scope: Scope,
    /// Whether each admitted container is aligned.
    pub(crate) guarantees: bool,
}

impl ResourceManagers {
    /// The managers with what containers have by the state files in `root_dir`. Blocks.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(
        options: &ResourceManagerOptions,
        machine: &MachineInfo,
        root_dir: &Path,
    ) -> Result<Self, StartError> {
        let topology = options.topology.as_ref();
        let topology = topology.map(|options| Topology::new(options, machine));
        let held = Held {
            cpu: start::cpus(options.cpu.as_ref(), machine, root_dir)?,
            memory: start::memory(options, machine, root_dir)?,
        };
        let metrics = Metrics::default();
        for scope in ["container", "pod"] {
            if options.topology.is_some() {
                metrics.aligned.of([scope, NUMA_NODE]);
                metrics.not_aligned.of([scope, NUMA_NODE]);
            }
        }
        if held.cpu.is_some() {
            metrics.aligned.of(["container", "physical_cpu"]);
            metrics.aligned.of(["container", "uncore_cache"]);
            metrics.not_aligned.of(["container", "physical_cpu"]);
        }
        let cpu = options.cpu.as_ref();
        Ok(Self {
            topology: topology.transpose()?,
            devices: None,
            keeps_cpu_quota: cpu.is_some_and(|cpu| cpu.keeps_quota),
            root_dir: root_dir.to_owned(),
            state: Mutex::new(State { held, version: 1 }),
            saver: Saver::default(),
            changed: Notify::new(),
            metrics,
        })
    }

    /// The managers with one of devices.
    #[must_use]
    pub fn with_devices(self, devices: DeviceManager) -> Self {
        Self {
            devices: Some(devices),
            ..self
        }
    }

    /// The manager of devices.
    pub fn devices(&self) -> Option<&DeviceManager> {
        self.devices.as_ref()
    }

    pub(crate) fn note_change(&self, state: &mut State) {
        state.version += 1;
        self.changed.notify_one();
    }

    /// The pods whose containers have something for themselves.
    pub fn holders(&self) -> BTreeSet<PodUid> {
        let state = self.state.lock();
        let cpus = state
            .held
            .cpu
            .iter()
            .flat_map(|it| it.state.exclusive.keys());
        let memory = state.held.memory.iter();
        let memory = memory.flat_map(|it| it.state.assignments.keys());
        let held = cpus.chain(memory).map(|uid| PodUid::from(&**uid));
        let mut holders: BTreeSet<PodUid> = held.collect();
        if let Some(devices) = &self.devices {
            holders.extend(devices.ledger().holders().map(PodUid::from));
        }
        holders
    }

    /// Takes what containers have that are neither in these pods, nor in a pod that `still_runs`.
    pub fn release_gone(&self, active: &[Arc<Pod>], still_runs: impl Fn(&PodUid) -> bool) {
        let uids: Vec<PodUid> = active.iter().map(|pod| PodUid::of(pod)).collect();
        let mut containers = BTreeMap::<&str, BTreeSet<&str>>::new();
        for (uid, pod) in uids.iter().zip(active) {
            let names = pod.spec.iter().flat_map(|spec| {
                let init = spec.init_containers.iter().flatten();
                init.chain(&spec.containers).map(|it| it.name.as_str())
            });
            containers.insert(uid.as_str(), names.collect());
        }
        let exists = |pod: &str, container: &str| {
            let of_pod = containers.get(pod);
            of_pod.is_some_and(|names| names.contains(container)) || still_runs(&PodUid::from(pod))
        };
        let mut state = self.state.lock();
        let devices = self.devices.as_ref();
        let freed_devices = devices.is_some_and(|it| it.ledger().release_gone(exists));
        if state.held.release_gone(exists) || freed_devices {
            self.note_change(&mut state);
        }
    }

    /// Takes the memory of the init containers before `container`, which starts.
    pub fn container_starts(&self, pod: &Pod, container: &str) {
        let mut state = self.state.lock();
        if state.held.memory.is_none() {
            return;
        }
        let requests = requests::of_pod(pod);
        let before = requests.iter().take_while(|it| it.container != container);
        let init = before.filter(|it| it.role == Role::Init);
        let ended: Vec<&str> = init.map(|it| it.container).collect();
        let uid = PodUid::of(pod);
        if state.held.release_memory(uid.as_str(), &ended) {
            self.note_change(&mut state);
        }
    }

    /// The CPUs on which a container runs; `None` if it may run on all.
    pub fn cpus(&self, pod: &PodUid, container: &str) -> Option<CpuSet> {
        let state = self.state.lock();
        let cpu = state.held.cpu.as_ref()?;
        Some(cpu.of(pod.as_str(), container))
    }

    /// The NUMA nodes of a container's memory, such as `0-1`; `None` if it may have memory of all.
    pub fn memory_nodes(&self, pod: &PodUid, container: &str) -> Option<CpuSet> {
        let state = self.state.lock();
        state
            .held
            .memory
            .as_ref()?
            .nodes_of(pod.as_str(), container)
    }

    /// The CPUs that a container has for itself.
    pub fn exclusive_cpus(&self, pod: &PodUid, container: &str) -> CpuSet {
        let state = self.state.lock();
        let cpu = state.held.cpu.as_ref();
        let cpus = cpu.and_then(|cpu| cpu.state.of(pod.as_str(), container));
        cpus.cloned().unwrap_or(CpuSet::EMPTY)
    }

    /// The memory that a container has of certain NUMA nodes.
    pub fn memory(&self, pod: &PodUid, container: &str) -> Vec<Block> {
        let state = self.state.lock();
        let memory = state.held.memory.as_ref();
        let blocks = memory.and_then(|memory| memory.state.of(pod.as_str(), container));
        blocks.unwrap_or_default().to_vec()
    }

    /// The CPUs that containers can have for themselves.
    pub fn allocatable_cpus(&self) -> CpuSet {
        let state = self.state.lock();
        let cpu = state.held.cpu.as_ref();
        cpu.map_or(CpuSet::EMPTY, |cpu| cpu.policy.allocatable())
    }

    /// The memory of each NUMA node that containers can have.
    pub fn allocatable_memory(&self) -> Vec<Block> {
        let state = self.state.lock();
        let nodes = state.held.memory.iter().flat_map(|it| &it.state.machine);
        let tables = nodes.flat_map(|(node, of_node)| {
            let tables = of_node.memory_map.iter();
            tables.map(move |(resource, table)| Block {
                numa_affinity: vec![*node],
                resource: resource.clone(),
                size: table.allocatable,
            })
        });
        tables.filter(|block| block.size > 0).collect()
    }

    /// Whether the CPU quota of a container does not apply, as it has CPUs of its own.
    pub fn is_without_quota(&self, pod: &PodUid, container: &str) -> bool {
        self.exclusive(pod, |containers| containers.contains_key(container))
    }

    /// Whether the CPU quota of a pod does not apply, as a container has CPUs of its own.
    pub fn is_pod_without_quota(&self, pod: &PodUid) -> bool {
        self.exclusive(pod, |_| true)
    }

    fn exclusive(
        &self,
        pod: &PodUid,
        has_some: impl Fn(&BTreeMap<String, CpuSet>) -> bool,
    ) -> bool {
        let state = self.state.lock();
        let cpu = state.held.cpu.as_ref().filter(|_| !self.keeps_cpu_quota);
        let of_pod = cpu.and_then(|cpu| cpu.state.exclusive.get(pod.as_str()));
        of_pod.is_some_and(has_some)
    }

    /// Whether CPUs are managed.
    pub fn manages_cpus(&self) -> bool {
        self.state.lock().held.cpu.is_some()
    }

    /// Whether memory is managed.
    pub fn manages_memory(&self) -> bool {
        self.state.lock().held.memory.is_some()
    }

    /// Waits until containers got or lost resources.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Writes what has changed to the state files.
    ///
    /// # Errors
    /// A file cannot be written.
    pub async fn save(&self) -> io::Result<()> {
        if let Some(devices) = &self.devices {
            devices.save().await?;
        }
        let snapshot = |saved| {
            let state = self.state.lock();
            if state.version == saved {
                return Ok(None);
            }
            let files = state.held.files()?.into_iter();
            let files = files.map(|(name, content)| (self.root_dir.join(name), content));
            Ok(Some(Snapshot {
                version: state.version,
                files: files.collect(),
            }))
        };
        self.saver.save(snapshot).await
    }
}

impl Topology {
    fn new(options: &TopologyOptions, machine: &MachineInfo) -> Result<Self, StartError> {
        let count = machine.topology.len();
        if count > options.most_nodes {
            return Err(StartError::Policy {
                field: "topologyManagerPolicy",
                rule: format!(
                    "the machine has {count} NUMA nodes, and at most {} are supported; each \
                     further one doubles the time to admit a pod; \
                     topologyManagerPolicyOptions[max-allowable-numa-nodes] can allow more",
                    options.most_nodes
                ),
            });
        }
        Ok(Self {
            policy: Policy::new(options.policy, &machine.topology, options.prefer_closest),
            scope: options.scope,
            guarantees: options.policy == PolicyName::SingleNumaNode,
        })
    }
}

impl HeldMemory {
    pub(crate) fn nodes_of(&self, pod: &str, container: &str) -> Option<CpuSet> {
        let blocks = self.state.of(pod, container)?;
        let nodes = blocks
            .iter()
            .flat_map(|it| it.numa_affinity.iter().copied());
        let nodes: CpuSet = nodes.collect();
        (!nodes.is_empty()).then_some(nodes)
    }
}

impl Collector for ResourceManagers {
    fn collect(&self, page: &mut Exposition) {
        self.metrics.collect(page);
        let state = self.state.lock();
        let Some(cpu) = &state.held.cpu else {
            return;
        };
        let exclusive = cpu.exclusive();
        page.gauge(
            "kubelet_cpu_manager_exclusive_cpu_allocation_count",
            "[ALPHA] The total number of CPUs exclusively allocated to containers running on this \
             node",
            exclusive.len(),
        );
        page.gauge(
            "kubelet_cpu_manager_shared_pool_size_millicores",
            "[ALPHA] The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
            cpu.policy.available(&cpu.state).len() * 1000,
        );
        let per_node = Family::<Gauge, 1>::gauge(
            "kubelet_cpu_manager_allocation_per_numa",
            "[ALPHA] Number of CPUs allocated per NUMA node",
            [NUMA_NODE],
        );
        for place in cpu.policy.topology().places_of(&exclusive).values() {
            let node = place.at(Level::NumaNode).to_string();
            per_node.with([Cow::Owned(node)]).increment();
        }
        per_node.collect(page);
    }
}
