//! Pod admission: whether this kubelet runs a pod, and for how long.

mod app_armor;
pub mod deadline;
mod fit;
mod host_ports;
mod metrics;
mod node_facts;
pub mod preemption;
mod resize;
mod unsupported;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kubelet_eviction::EvictionManager;
use kubelet_metrics::{Collector, Exposition};
use kubelet_node::shutdown::NodeShutdown;
use kubelet_pod_spec::{
    identity, node_affinity, phase::Phase, priority, resources, shortage::Shortage,
    sysctl::Allowlist, taints,
};
use kubelet_resource_managers::{Admitted, ResourceManagers};

use self::metrics::AdmissionMetrics;
pub use self::{
    node_facts::{NodeFacts, NodeSource},
    unsupported::unsupported,
};
use crate::pod::{features::PodFeatures, rejection::Rejection};

/// Reason of a critical pod for which no other pods can make room.
const NO_VICTIMS: &str = "UnexpectedAdmissionError";

/// Reason of a pod that does not fit the node's labels. They may have changed since the node was
/// last seen here.
pub const NODE_AFFINITY: &str = "NodeAffinity";

/// The operating system of this node.
const OS: &str = "linux";

/// How a pod is admitted.
#[derive(Clone, Debug, PartialEq)]
pub enum AdmissionOutcome {
    /// It can start at once.
    Now,
    /// It can start once these pods have been preempted.
    AfterPreemption(Vec<Arc<Pod>>),
}

/// Decides on the admission of pods.
#[derive(Clone, Debug)]
pub struct Admission {
    sysctls: Allowlist,
    features: PodFeatures,
    has_app_armor: bool,
    shutdown: Arc<NodeShutdown>,
    eviction: Arc<EvictionManager>,
    managers: Arc<ResourceManagers>,
    metrics: Arc<AdmissionMetrics>,
}

impl Admission {
    /// The admission rules of this host; no pod is admitted during a `shutdown`, and only some while
    /// `eviction` observes pressure. `managers` give pods CPUs and memory. Reads the host's `/sys`:
    /// briefly blocking.
    pub fn new(
        allowed_unsafe_sysctls: &[String],
        features: PodFeatures,
        shutdown: Arc<NodeShutdown>,
        eviction: Arc<EvictionManager>,
        managers: Arc<ResourceManagers>,
    ) -> Self {
        Self {
            sysctls: Allowlist::new(allowed_unsafe_sysctls),
            features,
            has_app_armor: app_armor::is_enabled(),
            shutdown,
            eviction,
            managers,
            metrics: Arc::default(),
        }
    }

    /// Checks whether `node` can run the pod beside `others`, the pods already admitted. For a pod
    /// that does not fit, `allocate` asks the managers, too: upstream asks them first, so their
    /// rejection is the one that is reported.
    ///
    /// # Errors
    /// The rejection, with upstream's reason and message.
    pub fn admit(
        &self,
        pod: &Pod,
        node: &NodeFacts,
        others: &[Arc<Pod>],
        allocate: impl FnOnce() -> Result<Admitted, Rejection>,
    ) -> Result<AdmissionOutcome, Rejection> {
        let shortages = fit::shortages(pod, others, node);
        let mut admitted = self.decide(pod, node, others, &shortages);
        if let (Err(rejection), Some(shortage)) = (&admitted, shortages.first())
            && [NO_VICTIMS, &shortage.reason()].contains(&&*rejection.reason)
        {
            admitted = allocate().and(admitted);
        }
        if let Ok(admitted) = &admitted {
            self.count_preempted(admitted, &shortages);
        }
        admitted
    }

    /// Gives an admitted pod that can start the CPUs, memory and devices that its containers have for
    /// themselves. It `runs` if it has a running container.
    ///
    /// # Errors
    /// The rejection, with upstream's reason and message.
    pub fn allocate(&self, pod: &Pod, runs: bool) -> Result<Admitted, Rejection> {
        let admitted = self.managers.admit(pod, runs);
        admitted.map_err(|error| Rejection::new(error.reason(), error.to_string()))
    }

    /// Asks device plugins what is left to ask after [`allocate`](Self::allocate).
    ///
    /// # Errors
    /// The rejection, with upstream's reason and message.
    pub async fn allocate_devices(&self, pod: &Pod) -> Result<(), Rejection> {
        let allocated = self.managers.allocate_devices(pod).await;
        allocated.map_err(|error| Rejection::new(error.reason(), error.to_string()))
    }

    /// Counts a pod that is rejected.
    pub fn count_rejection(&self, rejection: &Rejection) {
        self.metrics.rejected(&rejection.reason);
    }

    fn count_preempted(&self, admitted: &AdmissionOutcome, shortages: &[Shortage]) {
        if let (AdmissionOutcome::AfterPreemption(victims), Some(shortage)) =
            (admitted, shortages.first())
        {
            self.metrics
                .preempted(shortage.resource.clone(), victims.len());
        }
    }

    /// Applies all rules. `shortages` are the resources that the node lacks for the pod.
    fn decide(
        &self,
        pod: &Pod,
        node: &NodeFacts,
        others: &[Arc<Pod>],
        shortages: &[Shortage],
    ) -> Result<AdmissionOutcome, Rejection> {
        // Other pods are held back instead, as their controller would replace a failed one at once:
        // see `hold_back`.
        let is_static = identity::is_static(pod);
        if is_static {
            check_supported(pod, Some(node))?;
        }
        let Some(spec) = &pod.spec else {
            return Ok(AdmissionOutcome::Now);
        };
        // A pod that runs since before the kubelet's start goes only if it is its turn.
        let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
        let phase = Phase::parse(phase);
        if phase != Phase::Running {
            let pressure = self.eviction.admit(pod);
            pressure.map_err(|message| Rejection::new(kubelet_eviction::REASON, message))?;
        }
        self.check_sysctls(spec)?;
        check_os(pod, spec)?;
        check_group_policy(spec, node)?;
        let admitted = check_node(pod, spec, node, others, shortages)?;
        // A pod that was started has its profiles.
        if phase == Phase::Pending {
            self.check_app_armor(pod)?;
        }
        self.check_pod_resources(spec)?;
        if self.shutdown.is_under_way() {
            let message = "Pod was rejected as the node is shutting down.";
            return Err(Rejection::new("NodeShutdown", message));
        }
        Ok(admitted)
    }

    /// Checks whether an admitted pod can run now. A pod from the API server that needs what this
    /// node does not support stays pending until it is deleted or the node supports it: if it
    /// failed, its controller would replace it again and again. Once a pod is no longer pending, the
    /// resources of `node` are not checked any more.
    ///
    /// # Errors
    /// Why the pod is held back.
    pub fn hold_back(
        &self,
        pod: &Pod,
        is_pending: bool,
        node: &NodeFacts,
    ) -> Result<(), Rejection> {
        if identity::is_static(pod) {
            return Ok(());
        }
        check_supported(pod, is_pending.then_some(node))
    }

    fn check_app_armor(&self, pod: &Pod) -> Result<(), Rejection> {
        app_armor::check(pod, self.has_app_armor)
            .map_err(|why| Rejection::new("AppArmor", format!("Cannot enforce AppArmor: {why}")))
    }

    fn check_pod_resources(&self, spec: &PodSpec) -> Result<(), Rejection> {
        if self.features.pod_resources || !resources::has_pod_level(spec) {
            return Ok(());
        }
        Err(Rejection::new(
            "PodLevelResourcesNotSupported",
            "PodLevelResources feature gate is disabled",
        ))
    }

    fn check_sysctls(&self, spec: &PodSpec) -> Result<(), Rejection> {
        let host_network = spec.host_network == Some(true);
        let host_ipc = spec.host_ipc == Some(true);
        let context = spec.security_context.as_ref();
        let sysctls = context.and_then(|context| context.sysctls.as_ref());
        for sysctl in sysctls.into_iter().flatten() {
            self.sysctls
                .check(&sysctl.name, host_network, host_ipc)
                .map_err(|error| Rejection::new("SysctlForbidden", error.to_string()))?;
        }
        Ok(())
    }
}

impl Collector for Admission {
    /// Rejections and preemptions.
    fn collect(&self, page: &mut Exposition) {
        self.metrics.collect(page);
    }
}

/// Checks that this kubelet supports the pod's fields.
fn check_supported(pod: &Pod, node: Option<&NodeFacts>) -> Result<(), Rejection> {
    let fields = unsupported(pod, node.map(|node| &node.allocatable));
    if fields.is_empty() {
        return Ok(());
    }
    let message = format!("this kubelet does not support: {}", fields.join("; "));
    Err(Rejection::new("UnsupportedPodSpec", message))
}

/// Checks the pod's operating system.
fn check_os(pod: &Pod, spec: &PodSpec) -> Result<(), Rejection> {
    let labels = pod.metadata.labels.as_ref();
    let label = labels.and_then(|labels| labels.get(node_facts::OS));
    if label.is_some_and(|os| os != OS) {
        return Err(Rejection::new(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ));
    }
    if spec.os.as_ref().is_some_and(|os| os.name != OS) {
        return Err(Rejection::new(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ));
    }
    Ok(())
}

/// Checks that the runtime supports `supplementalGroupsPolicy: Strict` if the pod sets it; a
/// runtime that does not would add the image's groups as well.
fn check_group_policy(spec: &PodSpec, node: &NodeFacts) -> Result<(), Rejection> {
    let context = spec.security_context.as_ref();
    let policy = context.and_then(|context| context.supplemental_groups_policy.as_deref());
    if policy == Some("Strict") && !node.has_group_policies {
        return Err(Rejection::new(
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ));
    }
    Ok(())
}

/// Checks the node's resources and the scheduling constraints. For missing resources a critical pod
/// may preempt others.
fn check_node(
    pod: &Pod,
    spec: &PodSpec,
    node: &NodeFacts,
    others: &[Arc<Pod>],
    shortages: &[Shortage],
) -> Result<AdmissionOutcome, Rejection> {
    let is_critical = priority::is_critical(pod);
    if let Some(shortage) = shortages.first().filter(|_| !is_critical) {
        return Err(Rejection::new(shortage.reason(), shortage.to_string()));
    }
    if !node_affinity::matches(spec, &node.name, &node.labels) {
        let what = "node(s) didn't match Pod's node affinity/selector";
        return Err(Rejection::predicate(NODE_AFFINITY, what));
    }
    let name = spec.node_name.as_deref().unwrap_or_default();
    if !name.is_empty() && name != node.name {
        let what = "node(s) didn't match the requested node name";
        return Err(Rejection::predicate("NodeName", what));
    }
    if !host_ports::are_free(spec, others) {
        let what = "node(s) didn't have free ports for the requested pod ports";
        return Err(Rejection::predicate("NodePorts", what));
    }
    if !identity::is_static(pod) && !taints::are_tolerated(spec, &node.taints) {
        let what = "node(s) had taints that the pod didn't tolerate";
        return Err(Rejection::predicate("TaintToleration", what));
    }
    if shortages.is_empty() {
        return Ok(AdmissionOutcome::Now);
    }
    preemption::victims(pod, others, shortages)
        .map(AdmissionOutcome::AfterPreemption)
        .map_err(|why| {
            let what = "Unexpected error while attempting to recover from admission failure";
            Rejection::new(NO_VICTIMS, format!("{what}: {why}"))
        })
}

#[cfg(test)]
mod tests;
