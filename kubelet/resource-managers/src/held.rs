//! What containers have, and the policies that decide it.

use kubelet_cpu_manager::{CpuRequest, CpuState, Level, StaticPolicy as CpuPolicy};
use kubelet_host::cpu_set::CpuSet;
use kubelet_memory_manager::{Amounts, MemoryRequest, MemoryState, StaticPolicy as MemoryPolicy};
use kubelet_topology_manager::{ResourceHints, TopologyHint};

use crate::{
    error::AdmissionError,
    metrics::Metrics,
    requests::{self, Request, Role},
};

/// The label values of alignment.
const CONTAINER: &str = "container";
const CORE: &str = "physical_cpu";
const CACHE: &str = "uncore_cache";

/// What containers have of each resource that has a static policy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    pub(crate) cpu: Option<HeldCpus>,
    pub(crate) memory: Option<HeldMemory>,
}

#[derive(Clone, Debug)]
pub(crate) struct HeldCpus {
    pub(crate) policy: CpuPolicy,
    pub(crate) state: CpuState,
    pub(crate) full_cores: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct HeldMemory {
    pub(crate) policy: MemoryPolicy,
    pub(crate) state: MemoryState,
}

impl Held {
    /// Whether the pod's containers have all that they request. Init containers have ended and
    /// released their memory once regular ones have some.
    pub(crate) fn has_all(&self, pod: &str, requests: &[Request<'_>]) -> bool {
        let has_memory = |memory: &HeldMemory, container| memory.state.of(pod, container).is_some();
        let runs = |memory: &HeldMemory| {
            let mut regular = requests.iter().filter(|it| it.role == Role::Regular);
            regular.any(|it| has_memory(memory, it.container))
        };
        requests.iter().all(|it| {
            let has_cpus = self
                .cpu
                .as_ref()
                .is_none_or(|cpu| it.cpus == 0 || cpu.state.of(pod, it.container).is_some());
            let has_memory = self.memory.as_ref().is_none_or(|memory| {
                it.memory.is_empty()
                    || has_memory(memory, it.container)
                    || it.role == Role::Init && runs(memory)
            });
            has_cpus && has_memory
        })
    }

    /// From which NUMA nodes a container can have each resource.
    pub(crate) fn hints(&self, pod: &str, request: &Request<'_>) -> Vec<ResourceHints> {
        let mut hints = Vec::new();
        if let Some(cpu) = &self.cpu
            && request.cpus > 0
        {
            hints.push(cpu.policy.hints(&cpu.state, cpu_request(pod, request)));
        }
        if let Some(memory) = &self.memory
            && !request.memory.is_empty()
        {
            let request = memory_request(pod, request, &[]);
            hints.extend(memory.policy.hints(&memory.state, request));
        }
        hints
    }

    /// From which NUMA nodes all containers of the pod can have each resource.
    pub(crate) fn pod_hints(&self, pod: &str, requests: &[Request<'_>]) -> Vec<ResourceHints> {
        let mut hints = Vec::new();
        let cpus = requests::cpus_at_once(requests);
        if let Some(cpu) = &self.cpu
            && cpus > 0
        {
            let each = requests.iter().filter(|it| it.cpus > 0);
            let each: Vec<CpuRequest<'_>> = each.map(|it| cpu_request(pod, it)).collect();
            hints.push(cpu.policy.pod_hints(&cpu.state, pod, &each, cpus));
        }
        let amounts: Amounts = requests::memory_at_once(requests);
        if let Some(memory) = &self.memory
            && !amounts.is_empty()
        {
            let request = MemoryRequest {
                pod,
                container: "",
                amounts: &amounts,
                ends_first: false,
                after: &[],
            };
            hints.extend(memory.policy.hints(&memory.state, request));
        }
        hints
    }

    /// Gives a container its resources. `after` are the init containers before it.
    pub(crate) fn give(
        &mut self,
        pod: &str,
        request: &Request<'_>,
        after: &[&str],
        hint: TopologyHint,
        metrics: &Metrics,
    ) -> Result<(), AdmissionError> {
        if let Some(cpu) = &mut self.cpu
            && request.cpus > 0
        {
            metrics.cpu_requests.of([]).increment();
            let given = cpu.give(pod, request, hint, metrics);
            given.inspect_err(|_| metrics.cpu_errors.of([]).increment())?;
        }
        if let Some(memory) = &mut self.memory
            && !request.memory.is_empty()
        {
            metrics.memory_requests.of([]).increment();
            let request = memory_request(pod, request, after);
            let given = memory.policy.allocate(&mut memory.state, request, hint);
            given.inspect_err(|_| metrics.memory_errors.of([]).increment())?;
        }
        Ok(())
    }

    /// Takes what containers have that do not exist any more. Returns whether any had something.
    pub(crate) fn release_gone(&mut self, exists: impl Fn(&str, &str) -> bool) -> bool {
        let mut any = false;
        if let Some(HeldCpus { policy, state, .. }) = &mut self.cpu {
            for (pod, container) in gone(&state.exclusive, &exists) {
                policy.release(state, &pod, &container);
                any = true;
            }
        }
        if let Some(HeldMemory { policy, state }) = &mut self.memory {
            for (pod, container) in gone(&state.assignments, &exists) {
                policy.release(state, &pod, &container);
                any = true;
            }
        }
        any
    }

    /// Takes the memory of init containers that have ended. Returns whether any had some.
    pub(crate) fn release_memory(&mut self, pod: &str, ended: &[&str]) -> bool {
        let Some(HeldMemory { policy, state }) = &mut self.memory else {
            return false;
        };
        let mut any = false;
        for container in ended {
            if state.of(pod, container).is_some() {
                policy.release(state, pod, container);
                any = true;
            }
        }
        any
    }
}

impl HeldCpus {
    fn give(
        &mut self,
        pod: &str,
        request: &Request<'_>,
        hint: TopologyHint,
        metrics: &Metrics,
    ) -> Result<(), AdmissionError> {
        let had_some = self.state.of(pod, request.container).is_some();
        let request = cpu_request(pod, request);
        let given = self.policy.allocate(&mut self.state, request, hint.nodes);
        if self.full_cores {
            let counter = match given {
                Ok(()) => &metrics.aligned,
                Err(_) => &metrics.not_aligned,
            };
            counter.of([CONTAINER, CORE]).increment();
        }
        given?;
        let cpus = self.state.of(pod, request.container);
        if !had_some && cpus.is_some_and(|cpus| self.share_a_cache(cpus)) {
            metrics.aligned.of([CONTAINER, CACHE]).increment();
        }
        Ok(())
    }

    fn share_a_cache(&self, cpus: &CpuSet) -> bool {
        let topology = self.policy.topology();
        let places = topology.places_of(cpus);
        let mut caches = places.values().map(|place| place.at(Level::UncoreCache));
        let first = caches.next();
        caches.all(|cache| Some(cache) == first)
    }

    /// The CPUs on which a container runs.
    pub(crate) fn of(&self, pod: &str, container: &str) -> CpuSet {
        match self.state.of(pod, container) {
            Some(exclusive) => exclusive.clone(),
            None => self.policy.shared(&self.state),
        }
    }

    /// All CPUs that are exclusive.
    pub(crate) fn exclusive(&self) -> CpuSet {
        let sets = self.state.exclusive.values().flat_map(|it| it.values());
        sets.fold(CpuSet::EMPTY, |all, cpus| all.union(cpus))
    }
}

/// The containers with an entry that do not exist.
fn gone<T>(
    entries: &std::collections::BTreeMap<String, std::collections::BTreeMap<String, T>>,
    exists: impl Fn(&str, &str) -> bool,
) -> Vec<(String, String)> {
    let all = entries.iter().flat_map(|(pod, containers)| {
        let names = containers.keys();
        names.map(move |container| (pod.clone(), container.clone()))
    });
    all.filter(|(pod, container)| !exists(pod, container))
        .collect()
}

fn cpu_request<'a>(pod: &'a str, request: &Request<'a>) -> CpuRequest<'a> {
    CpuRequest {
        pod,
        container: request.container,
        cpus: request.cpus,
        ends_first: request.role == Role::Init,
    }
}

fn memory_request<'a>(
    pod: &'a str,
    request: &'a Request<'a>,
    after: &'a [&'a str],
) -> MemoryRequest<'a> {
    MemoryRequest {
        pod,
        container: request.container,
        amounts: &request.memory,
        ends_first: request.role == Role::Init,
        after,
    }
}
