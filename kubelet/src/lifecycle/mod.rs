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
    identity, node_affinity, phase::Phase, priority, shortage::Shortage, sysctl::Allowlist, taints,
};
use kubelet_resource_managers::{Admitted, ResourceManagers};

use self::metrics::AdmissionMetrics;
pub use self::{
    node_facts::{NodeFacts, NodeSource},
    unsupported::unsupported,
};
use crate::pod::rejection::Rejection;

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
        shutdown: Arc<NodeShutdown>,
        eviction: Arc<EvictionManager>,
        managers: Arc<ResourceManagers>,
    ) -> Self {
        Self {
            sysctls: Allowlist::new(allowed_unsafe_sysctls),
            has_app_armor: app_armor::is_enabled(),
            shutdown,
            eviction,
            managers,
            metrics: Arc::default(),
        }
    }

    /// Checks whether `node` can run the pod beside `others`, the pods already admitted.
    ///
    /// # Errors
    /// The rejection, with upstream's reason and message.
    pub fn admit(
        &self,
        pod: &Pod,
        node: &NodeFacts,
        others: &[Arc<Pod>],
    ) -> Result<AdmissionOutcome, Rejection> {
        let shortages = fit::shortages(pod, others, node);
        let admitted = self.decide(pod, node, others, &shortages);
        match &admitted {
            Ok(admitted) => self.count_preempted(admitted, &shortages),
            Err(rejection) => self.metrics.rejected(&rejection.reason),
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

    /// Counts a rejection for the reason that [`allocate`](Self::allocate) returned.
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
        if Phase::parse(phase) != Phase::Running {
            let pressure = self.eviction.admit(pod);
            pressure.map_err(|message| Rejection::new(kubelet_eviction::REASON, message))?;
        }
        self.check_sysctls(spec)?;
        check_os(pod, spec)?;
        check_group_policy(spec, node)?;
        let admitted = check_node(pod, spec, node, others, shortages)?;
        if is_static {
            self.check_app_armor(pod)?;
        }
        if self.shutdown.is_under_way() {
            let message = "Pod was rejected as the node is shutting down.";
            return Err(Rejection::new("NodeShutdown", message));
        }
        Ok(admitted)
    }

    /// Checks whether an admitted pod can run now. A pod from the API server that needs what this
    /// node does not support stays pending until it is deleted or the node supports it: if it
    /// failed, its controller would replace it again and again. Once a pod is no longer pending,
    /// AppArmor and the resources of `node` are not checked any more.
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
        check_supported(pod, is_pending.then_some(node))?;
        if is_pending {
            self.check_app_armor(pod)?;
        }
        Ok(())
    }

    fn check_app_armor(&self, pod: &Pod) -> Result<(), Rejection> {
        app_armor::check(pod, self.has_app_armor)
            .map_err(|why| Rejection::new("AppArmor", format!("Cannot enforce AppArmor: {why}")))
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
        return Err(Rejection::predicate("NodeAffinity", what));
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
            Rejection::new("UnexpectedAdmissionError", format!("{what}: {why}"))
        })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use kubelet_api_client::events::EventRecorder;
    use kubelet_eviction::EvictionOptions;
    use kubelet_pod_spec::resources;
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, priority: i32, spec: Value) -> Arc<Pod> {
        let mut pod = json!({"metadata": {"name": name}, "spec": spec});
        pod["spec"]["containers"] = json!([
            {"name": "c", "resources": {"requests": spec["requests"]}, "ports": spec["ports"]}
        ]);
        pod["spec"]["priority"] = priority.into();
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    pub(super) fn admission() -> Admission {
        Admission::new(
            &[],
            Arc::new(NodeShutdown::new(std::path::Path::new("/nonexistent"))),
            Arc::new(EvictionManager::new(
                EvictionOptions::default(),
                EventRecorder::default(),
            )),
            Arc::default(),
        )
    }

    fn admit(pod: &Pod, others: &[Arc<Pod>]) -> Result<AdmissionOutcome, Rejection> {
        let node = json!({
            "metadata": {"name": "node", "labels": {"kubernetes.io/os": "linux"}},
            "spec": {"taints": [{"key": "k", "effect": "NoExecute"}]},
            "status": {"allocatable": {"cpu": "2", "pods": "2"}},
        });
        let node = NodeFacts::of(&serde_json::from_value(node).unwrap());
        admission().admit(pod, &node, others)
    }

    #[test]
    fn reasons_are_upstreams() {
        let tolerates = |mut spec: Value| {
            spec["tolerations"] = json!([{"operator": "Exists"}]);
            spec
        };
        let other = pod(
            "o",
            0,
            tolerates(
                json!({"requests": {"cpu": "1"}, "ports": [{"containerPort": 1, "hostPort": 80}]}),
            ),
        );
        for (spec, reason) in [
            (tolerates(json!({"requests": {"cpu": "1"}})), None),
            (json!({}), Some("TaintToleration")),
            (
                tolerates(json!({"requests": {"cpu": "1001m"}})),
                Some("OutOfcpu"),
            ),
            (
                tolerates(json!({"nodeSelector": {"a": "b"}})),
                Some("NodeAffinity"),
            ),
            (tolerates(json!({"nodeName": "another"})), Some("NodeName")),
            (
                tolerates(json!({"ports": [{"containerPort": 1, "hostPort": 80}]})),
                Some("NodePorts"),
            ),
            (
                tolerates(json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}})),
                Some("SupplementalGroupsPolicyNotSupported"),
            ),
            (
                tolerates(json!({"securityContext": {"supplementalGroupsPolicy": "Merge"}})),
                None,
            ),
            (
                tolerates(json!({"os": {"name": "windows"}})),
                Some("PodOSNotSupported"),
            ),
            (
                tolerates(
                    json!({"securityContext": {"sysctls": [{"name": "kernel.nope", "value": "1"}]}}),
                ),
                Some("SysctlForbidden"),
            ),
        ] {
            let admitted = admit(&pod("p", 0, spec.clone()), std::slice::from_ref(&other));
            let rejected = admitted.err().map(|rejection| rejection.reason);
            assert_eq!(rejected.as_deref(), reason, "{spec}");
        }
    }

    #[test]
    fn static_pods_need_not_tolerate_what_ends_pods() {
        let mut pod = Pod::clone(&pod("p", 0, json!({})));
        let rejection = admit(&pod, &[]).unwrap_err();
        assert_eq!(rejection.reason, "TaintToleration");
        for (source, is_static) in [("file", true), ("http", true), ("api", false)] {
            let source = ("kubernetes.io/config.source".to_owned(), source.to_owned());
            pod.metadata.annotations = Some([source].into());
            assert_eq!(admit(&pod, &[]).is_ok(), is_static);
        }
    }

    #[test]
    fn what_cannot_be_done_is_held_back_but_for_static_pods() {
        let admission = Admission {
            has_app_armor: false,
            ..admission()
        };
        let tolerations = json!([{"operator": "Exists"}]);
        let unbuilt = json!({
            "tolerations": tolerations, "volumes": [{"name": "v", "rbd": {"image": "i", "monitors": []}}]
        });
        let confined = json!({
            "tolerations": tolerations,
            "securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}
        });
        for (spec, reason) in [(unbuilt, "UnsupportedPodSpec"), (confined, "AppArmor")] {
            let mut pod = Pod::clone(&pod("p", 0, spec));
            let node = NodeFacts {
                allocatable: resources::amounts(&BTreeMap::from([(
                    "pods".to_owned(),
                    Quantity("1".to_owned()),
                )])),
                ..NodeFacts::default()
            };
            assert_eq!(admission.admit(&pod, &node, &[]), Ok(AdmissionOutcome::Now));
            let held = admission.hold_back(&pod, true, &node).unwrap_err();
            assert_eq!(held.reason, reason);
            // A running pod already has its profile.
            let runs = admission.hold_back(&pod, false, &node).is_ok();
            assert_eq!(runs, reason == "AppArmor");

            let source = ("kubernetes.io/config.source".to_owned(), "file".to_owned());
            pod.metadata.annotations = Some([source].into());
            assert_eq!(admission.hold_back(&pod, true, &node), Ok(()));
            let rejection = admission.admit(&pod, &node, &[]).unwrap_err();
            assert_eq!(rejection.reason, reason);
        }
    }

    #[test]
    fn resources_that_somebody_gave_the_node_are_counted() {
        let spec = json!({
            "requests": {"x.y/card": "2"}, "tolerations": [{"operator": "Exists"}]
        });
        let mut pod = Pod::clone(&pod("p", 0, spec));
        let source = ("kubernetes.io/config.source".to_owned(), "file".to_owned());
        let node = |cards: &str| {
            let given = json!({"status": {"allocatable": {
                "cpu": "2", "pods": "9", "x.y/card": cards
            }}});
            NodeFacts::of(&serde_json::from_value(given).unwrap())
        };
        let without = NodeFacts::of(
            &serde_json::from_value(json!({
                "status": {"allocatable": {"cpu": "2", "pods": "9"}}
            }))
            .unwrap(),
        );
        let admission = admission();
        for is_static in [false, true] {
            if is_static {
                pod.metadata.annotations = Some([source.clone()].into());
            }
            let others = [Arc::new(pod.clone())];
            assert_eq!(admission.hold_back(&pod, true, &node("2")), Ok(()));
            let alone = admission.admit(&pod, &node("2"), &[]);
            assert_eq!(alone, Ok(AdmissionOutcome::Now));
            let rejection = admission.admit(&pod, &node("3"), &others).unwrap_err();
            // A static pod is critical, but there is none to preempt.
            let reason = match is_static {
                true => "UnexpectedAdmissionError",
                false => "OutOfx.y/card",
            };
            assert_eq!(rejection.reason, reason);
            let refused = match is_static {
                true => admission.admit(&pod, &without, &[]).map(|_| ()),
                false => admission.hold_back(&pod, true, &without),
            };
            assert_eq!(refused.unwrap_err().reason, "UnsupportedPodSpec");
            // A running pod is not ended because the resources are gone.
            assert_eq!(admission.hold_back(&pod, false, &without), Ok(()));
        }
    }

    #[test]
    fn a_critical_pod_runs_instead_of_others() {
        let spec = json!({"requests": {"cpu": "2"}, "tolerations": [{"operator": "Exists"}]});
        let critical = pod("critical", 2_000_000_000, spec);
        let others = [pod("a", 0, json!({"requests": {"cpu": "1"}}))];
        assert_eq!(
            admit(&critical, &others),
            Ok(AdmissionOutcome::AfterPreemption(others.to_vec()))
        );
        let others = [pod("a", 2_000_000_001, json!({"requests": {"cpu": "1"}}))];
        let rejection = admit(&critical, &others).unwrap_err();
        assert_eq!(rejection.reason, "UnexpectedAdmissionError");
        assert_eq!(
            rejection.message,
            "Unexpected error while attempting to recover from admission failure: preemption: \
             error finding a set of pods to preempt: no set of running pods found to reclaim \
             resources: [(res: cpu, q: 1000), ]"
        );
    }
}
