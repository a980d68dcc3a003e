//! Gives the containers of a pod what they request, when the pod is admitted.
//!
//! An attempt is made in memory, under the locks of all managers. If a device plugin must be asked
//! something first, everything is taken back, and the next attempt has its answer.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kubelet_device_manager::{
    ContainerDevices, DeviceError, DeviceManager, DeviceRequest, Ledger, Obstacle,
    PreferenceRequest, Preferences, Reusable,
};
use kubelet_pod_spec::identity::{self, PodUid};
use kubelet_topology_manager::{ResourceHints, TopologyHint};
use tokio::time::Instant;
use tracing::info;

use crate::{
    error::{AdmissionError, Hindrance},
    held::Held,
    managers::{NUMA_NODE, ResourceManagers, Topology},
    options::Scope,
    requests::{self, Request, Role},
};

/// The most times that plugins are asked for their preferences while a pod is admitted.
const MOST_PREFERENCES: usize = 64;

/// Whether a pod has its resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// It has all.
    Complete,
    /// Device plugins must be asked first: see
    /// [`allocate_devices`](ResourceManagers::allocate_devices).
    AfterPlugins,
}

/// What an attempt does about devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceScope {
    /// Containers get all, and those that they have must work: the pod is to start.
    Admitted,
    /// They keep what they have: the pod runs. What is missing, a container gets when it starts.
    Running,
    /// They get all: a container starts.
    Starting,
}

/// The result of an attempt.
enum Attempt {
    Complete,
    /// A plugin must be asked which devices it prefers.
    Ask(PreferenceRequest),
    /// The plugin of this resource must register, or report its devices.
    Awaited(String),
    /// Plugins must be asked what the containers need to use their devices.
    Unanswered,
}

/// What containers have of all resources, during an attempt.
struct Given<'a> {
    held: &'a mut Held,
    devices: Option<&'a mut Ledger>,
    reusable: Reusable,
    preferences: &'a Preferences,
}

impl ResourceManagers {
    /// Gives the pod's containers what they request. What they have already, they keep. On an error,
    /// they get nothing. A pod that `runs` does not wait for device plugins.
    ///
    /// # Errors
    /// The pod must be rejected.
    pub fn admit(&self, pod: &Pod, runs: bool) -> Result<Admitted, AdmissionError> {
        self.metrics.admissions.of([]).increment();
        let begun = Instant::now();
        let scope = match runs {
            true => DeviceScope::Running,
            false => DeviceScope::Admitted,
        };
        let admitted = self.attempt(pod, scope, &Preferences::new());
        let took = begun.elapsed().as_secs_f64() * 1000.0;
        self.metrics.admission_durations.of([]).observe(took);
        Ok(match admitted? {
            Attempt::Complete => Admitted::Complete,
            _ => Admitted::AfterPlugins,
        })
    }

    /// Asks device plugins until the pod has everything. Waits a while for plugins that are gone. On an
    /// error, the pod may have got CPUs and memory.
    ///
    /// # Errors
    /// The pod must be rejected.
    pub async fn allocate_devices(&self, pod: &Pod) -> Result<(), AdmissionError> {
        self.ask_plugins(pod, DeviceScope::Admitted).await
    }

    async fn ask_plugins(&self, pod: &Pod, scope: DeviceScope) -> Result<(), AdmissionError> {
        let Some(devices) = &self.devices else {
            return Ok(());
        };
        let mut preferences = Preferences::new();
        let mut seen = devices.plugins_version();
        let mut told = None;
        loop {
            match self.attempt(pod, scope, &preferences)? {
                Attempt::Complete => return Ok(()),
                Attempt::Ask(request) => {
                    // A plugin whose devices change all the time would be asked without end.
                    let answer = match preferences.len() < MOST_PREFERENCES {
                        true => devices.preferred(&request).await?,
                        false => BTreeSet::new(),
                    };
                    preferences.insert(request, answer);
                }
                Attempt::Awaited(resource) if scope == DeviceScope::Starting => {
                    return Err(DeviceError::Stopped(resource).into());
                }
                Attempt::Awaited(resource) => {
                    if told.as_ref() != Some(&resource) {
                        let pod = identity::full_name(pod);
                        info!(pod, resource, "pod waits for a device plugin");
                    }
                    told = Some(resource);
                    seen = devices.plugins_changed(seen).await;
                }
                Attempt::Unanswered => devices.allocate(&PodUid::of(pod)).await?,
            }
        }
    }

    /// What a container that starts needs to use its devices. It gets them now if it has none, as
    /// when their plugin registered after the pod was admitted.
    ///
    /// # Errors
    /// The container must not start yet.
    pub async fn container_devices(
        &self,
        pod: &Pod,
        container: &str,
    ) -> Result<ContainerDevices, AdmissionError> {
        let Some(devices) = &self.devices else {
            return Ok(ContainerDevices::default());
        };
        let uid = PodUid::of(pod);
        let mut requests = requests::of_pod(pod);
        requests.retain(|request| request.container == container);
        keep_managed(&mut requests, &devices.ledger());
        if !has_devices(&devices.ledger(), uid.as_str(), &requests) {
            self.ask_plugins(pod, DeviceScope::Starting).await?;
        }
        Ok(devices.prepare(&uid, container).await?)
    }

    fn attempt(
        &self,
        pod: &Pod,
        scope: DeviceScope,
        preferences: &Preferences,
    ) -> Result<Attempt, AdmissionError> {
        let mut requests = requests::of_pod(pod);
        let uid = PodUid::of(pod);
        let uid = uid.as_str();
        let mut state = self.state.lock();
        let mut ledger = self.devices.as_ref().map(DeviceManager::ledger);
        match &ledger {
            Some(ledger) => {
                keep_managed(&mut requests, ledger);
                if scope == DeviceScope::Running {
                    keep_held(&mut requests, ledger, uid);
                }
            }
            None => requests.iter_mut().for_each(|it| it.devices.clear()),
        }
        let has_devices = |ledger: &Ledger| has_devices(ledger, uid, &requests);
        if state.held.has_all(uid, &requests) && ledger.as_deref().is_none_or(has_devices) {
            let checked = match &ledger {
                Some(ledger) if scope == DeviceScope::Admitted => ledger.check(uid),
                _ => Ok(()),
            };
            return match checked {
                Ok(()) => Ok(Attempt::Complete),
                Err(obstacle) => attempt_after(obstacle),
            };
        }
        // A plugin that is gone has no hints.
        let awaited = ledger
            .as_deref()
            .and_then(|ledger| awaited(ledger, uid, scope, &requests));
        if let Some(resource) = awaited {
            return Ok(Attempt::Awaited(resource));
        }
        let before = state.held.clone();
        let devices_before = ledger.as_ref().map(|ledger| ledger.assignments_of(uid));
        let mut given = Given {
            held: &mut state.held,
            devices: ledger.as_deref_mut(),
            reusable: Reusable::default(),
            preferences,
        };
        if let Err(hindrance) = self.give(&mut given, uid, scope, &requests) {
            state.held = before;
            if let (Some(ledger), Some(before)) = (&mut ledger, devices_before) {
                ledger.restore(uid, before);
            }
            let attempt = match hindrance {
                Hindrance::Devices(obstacle) => attempt_after(obstacle),
                Hindrance::Rejected(error) => Err(error),
            };
            return attempt.inspect_err(|_| {
                if self.topology.is_some() {
                    self.metrics.admission_errors.of([]).increment();
                }
            });
        }
        log_given(pod, &requests, &state.held);
        self.note_change(&mut state);
        let is_answered = ledger.as_deref().is_none_or(has_devices);
        Ok(match is_answered {
            true => Attempt::Complete,
            false => Attempt::Unanswered,
        })
    }

    fn give(
        &self,
        given: &mut Given<'_>,
        pod: &str,
        scope: DeviceScope,
        requests: &[Request<'_>],
    ) -> Result<(), Hindrance> {
        const ANYWHERE: TopologyHint = TopologyHint {
            nodes: None,
            preferred: false,
        };
        let of_pod = match &self.topology {
            Some(topology) if topology.scope == Scope::Pod => {
                let hints = given.pod_hints(pod, requests);
                Some(self.choose(topology, "pod", &hints)?)
            }
            _ => None,
        };
        let mut ended = Vec::new();
        for request in requests {
            let hint = match (&self.topology, of_pod) {
                (_, Some(hint)) => hint,
                (Some(topology), None) => {
                    self.choose(topology, "container", &given.hints(pod, request))?
                }
                (None, None) => ANYWHERE,
            };
            given.give_devices(pod, request, scope, hint)?;
            given.held.give(pod, request, &ended, hint, &self.metrics)?;
            if of_pod.is_none() {
                self.count_aligned("container");
            }
            if request.role == Role::Init {
                ended.push(request.container);
            }
        }
        if of_pod.is_some() {
            self.count_aligned("pod");
        }
        Ok(())
    }

    fn choose(
        &self,
        topology: &Topology,
        scope: &'static str,
        hints: &[ResourceHints],
    ) -> Result<TopologyHint, AdmissionError> {
        let (hint, is_admitted) = topology.policy.merge(hints);
        if is_admitted {
            return Ok(hint);
        }
        if topology.guarantees {
            let counter = self.metrics.not_aligned.of([scope, NUMA_NODE]);
            counter.increment();
        }
        Err(AdmissionError::Topology)
    }

    fn count_aligned(&self, scope: &'static str) {
        if self.topology.as_ref().is_some_and(|it| it.guarantees) {
            self.metrics.aligned.of([scope, NUMA_NODE]).increment();
        }
    }
}

impl Given<'_> {
    /// From which NUMA nodes a container can have each resource.
    fn hints(&self, pod: &str, request: &Request<'_>) -> Vec<ResourceHints> {
        let mut hints = Vec::new();
        if let Some(ledger) = &self.devices {
            let requests = device_requests(pod, request);
            hints.extend(requests.map(|request| ledger.hints(request, &self.reusable)));
        }
        hints.extend(self.held.hints(pod, request));
        hints
    }

    /// From which NUMA nodes all containers of the pod can have each resource.
    fn pod_hints(&self, pod: &str, requests: &[Request<'_>]) -> Vec<ResourceHints> {
        let mut hints = Vec::new();
        if let Some(ledger) = &self.devices {
            for (resource, count) in &requests::devices_at_once(requests) {
                hints.push(ledger.pod_hints(DeviceRequest {
                    pod,
                    container: "",
                    resource,
                    count: *count,
                }));
            }
        }
        hints.extend(self.held.pod_hints(pod, requests));
        hints
    }

    fn give_devices(
        &mut self,
        pod: &str,
        request: &Request<'_>,
        scope: DeviceScope,
        hint: TopologyHint,
    ) -> Result<(), Hindrance> {
        let Some(ledger) = &mut self.devices else {
            return Ok(());
        };
        for each in device_requests(pod, request) {
            let has_them = ledger.has(pod, request.container, each.resource);
            if scope != DeviceScope::Admitted && has_them {
                continue;
            }
            let assigned = ledger.assign(each, &self.reusable, hint.nodes, self.preferences);
            assigned.map_err(|obstacle| match obstacle {
                Obstacle::Failed(error) => Hindrance::from(error),
                obstacle => Hindrance::Devices(obstacle),
            })?;
        }
        let ends = request.role == Role::Init;
        self.reusable.given(ledger, pod, request.container, ends);
        Ok(())
    }
}

fn device_requests<'a>(
    pod: &'a str,
    request: &'a Request<'a>,
) -> impl Iterator<Item = DeviceRequest<'a>> {
    request
        .devices
        .iter()
        .map(move |(resource, count)| DeviceRequest {
            pod,
            container: request.container,
            resource,
            count: *count,
        })
}

/// Leaves the extended resources that device plugins offer. Others need no plugin.
fn keep_managed(requests: &mut [Request<'_>], ledger: &Ledger) {
    for request in requests {
        request
            .devices
            .retain(|resource, _| ledger.manages(resource));
    }
}

/// Leaves the devices that the pod's containers have.
fn keep_held(requests: &mut [Request<'_>], ledger: &Ledger, pod: &str) {
    for request in requests {
        let container = request.container;
        request
            .devices
            .retain(|resource, _| ledger.has(pod, container, resource));
    }
}

/// A resource whose plugin must register, or report its devices, before an attempt.
fn awaited(
    ledger: &Ledger,
    pod: &str,
    scope: DeviceScope,
    requests: &[Request<'_>],
) -> Option<String> {
    let devices = requests
        .iter()
        .flat_map(|it| it.devices.keys().map(|resource| (it.container, resource)));
    let mut needed = devices.filter(|(container, resource)| {
        scope == DeviceScope::Admitted || !ledger.has(pod, container, resource)
    });
    let awaited = needed.find(|(_, resource)| ledger.is_awaited(resource));
    awaited.map(|(_, resource)| resource.clone())
}

fn has_devices(ledger: &Ledger, pod: &str, requests: &[Request<'_>]) -> bool {
    requests.iter().all(|request| {
        let mut resources = request.devices.keys();
        resources.all(|resource| ledger.has(pod, request.container, resource))
    })
}

fn attempt_after(obstacle: Obstacle) -> Result<Attempt, AdmissionError> {
    match obstacle {
        Obstacle::Ask(request) => Ok(Attempt::Ask(request)),
        Obstacle::Awaited(resource) => Ok(Attempt::Awaited(resource)),
        Obstacle::Failed(error) => Err(error.into()),
    }
}

fn log_given(pod: &Pod, requests: &[Request<'_>], held: &Held) {
    let uid = PodUid::of(pod);
    for request in requests {
        let cpus = held.cpu.as_ref();
        let cpus = cpus.and_then(|cpu| cpu.state.of(uid.as_str(), request.container));
        let memory = held.memory.as_ref();
        let memory = memory.and_then(|it| it.nodes_of(uid.as_str(), request.container));
        if cpus.is_some() || memory.is_some() {
            info!(
                pod = identity::full_name(pod), pod_uid = %uid, container = request.container,
                cpus = cpus.map(tracing::field::display),
                memory_nodes = memory.map(tracing::field::display),
                "assigned resources"
            );
        }
    }
}
