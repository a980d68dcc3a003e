//! Feature gates of Kubernetes 1.36: which are on, and which of them this kubelet can switch.

use super::{faults::Faults, kubelet_configuration::KubeletConfiguration};

/// Rows of four columns: gate, default, stage, and what this kubelet does. `switch`: what the gate
/// says. `always`: the feature cannot be switched off. `never`: the feature is missing. `locked`:
/// Kubernetes does not allow another value than the default. `-`: the gate is one of other
/// components, or switches between two ways to the same behaviour.
const TABLE: &str = include_str!("feature_gates.tsv");

/// All gates of a stage whose value is not given.
const STAGES: [(&str, &str); 2] = [("AllAlpha", "alpha"), ("AllBeta", "beta")];

/// Protection and throttling of pods' memory with cgroup v2.
pub(super) const MEMORY_QOS: &str = "MemoryQoS";
/// Reservation of requested memory from lower QoS classes.
pub(super) const QOS_RESERVED: &str = "QOSReserved";

/// Some options of the static policy of the CPU manager.
pub(super) const CPU_ALPHA_OPTIONS: &str = "CPUManagerPolicyAlphaOptions";
pub(super) const CPU_BETA_OPTIONS: &str = "CPUManagerPolicyBetaOptions";
/// Containers with CPUs of their own have no CPU quota.
pub(super) const NO_QUOTA: &str = "DisableCPUQuotaWithExclusiveCPUs";

/// Pods end in order when the node shuts down.
pub(super) const SHUTDOWN: &str = "GracefulNodeShutdown";
pub(super) const SHUTDOWN_BY_PRIORITY: &str = "GracefulNodeShutdownBasedOnPodPriority";
/// A maximum of the crash-loop back-off.
pub(super) const CRASH_LOOP_MAXIMUM: &str = "KubeletCrashLoopBackOffMax";
/// Shorter delays of the crash-loop back-off.
pub(super) const QUICK_RESTARTS: &str = "ReduceDefaultCrashLoopBackOffDecay";
/// Images pulled with a secret need it.
pub(super) const VERIFY_PULLED_IMAGES: &str = "KubeletEnsureSecretPulledImages";
/// Serving certificates of the API server.
pub(super) const SERVING_CERTIFICATES: &str = "RotateKubeletServerCertificate";
/// Resources of pods as wholes, and their resize in place.
pub(super) const POD_RESOURCES: &str = "PodLevelResources";
pub(super) const POD_RESIZE: &str = "InPlacePodLevelResourcesVerticalScaling";
/// The pod resources API lists only pods that run or will run.
pub(super) const LIST_ACTIVE_PODS: &str = "KubeletPodResourcesListUseActivePods";
/// Lists of the runtime are read as streams.
pub(super) const LIST_STREAMING: &str = "CRIListStreaming";
/// `/checkpoint`, `/statusz` and `/flagz` on port 10250.
pub(super) const CHECKPOINT: &str = "ContainerCheckpoint";
pub(super) const STATUSZ: &str = "ComponentStatusz";
pub(super) const FLAGZ: &str = "ComponentFlagz";

/// Gates that do nothing without another one.
const REQUIRED: [(&str, &str); 2] = [
    (SHUTDOWN_BY_PRIORITY, SHUTDOWN),
    (POD_RESIZE, POD_RESOURCES),
];

/// A row of the table.
struct Gate<'a> {
    name: &'a str,
    on: bool,
    stage: &'a str,
    here: &'a str,
}

fn gates() -> impl Iterator<Item = Gate<'static>> {
    let rows = TABLE.lines().filter(|row| !row.starts_with('#'));
    rows.map(|row| {
        let mut columns = row.split('\t');
        let [name, default, stage, here] =
            std::array::from_fn(|_| columns.next().unwrap_or_default());
        Gate {
            name,
            on: default == "on",
            stage,
            here,
        }
    })
}

impl Gate<'_> {
    /// Whether the configuration has the gate on.
    fn is_on(&self, config: &KubeletConfiguration) -> bool {
        let given = |name: &str| config.feature_gates.get(name).copied();
        let of_stage = || {
            let stage = STAGES.iter().find(|(_, stage)| *stage == self.stage);
            stage.and_then(|(name, _)| given(name))
        };
        given(self.name).or_else(of_stage).unwrap_or(self.on)
    }

    /// Why the gate cannot have this value.
    fn refuses(&self, on: bool) -> Option<&'static str> {
        match self.here {
            "locked" if on != self.on => Some("the gate is locked to its default"),
            "always" if !on => Some("this kubelet cannot switch the feature off"),
            "never" if on => Some("this kubelet does not have the feature"),
            _ => None,
        }
    }
}

/// Whether a gate is on.
pub(super) fn is_on(config: &KubeletConfiguration, gate: &str) -> bool {
    gates().any(|known| known.name == gate && known.is_on(config))
}

/// Refuses unknown gates, and values that this kubelet cannot provide.
pub(super) fn validate(config: &KubeletConfiguration, faults: &mut Faults) {
    let given = &config.feature_gates;
    for (name, on) in given {
        let is_stage = STAGES.iter().any(|(stage, _)| stage == name);
        if !is_stage && !gates().any(|gate| gate.name == name) {
            let rule = "is no feature gate of Kubernetes 1.36";
            faults.add(&format!("featureGates.{name}"), on, rule);
        }
    }
    for gate in gates() {
        let on = gate.is_on(config);
        let is_changed = on != gate.on || given.contains_key(gate.name);
        if let Some(rule) = gate.refuses(on).filter(|_| is_changed) {
            faults.add(&format!("featureGates.{}", gate.name), on, rule);
        }
    }
    for (gate, required) in REQUIRED {
        if is_on(config, gate) && !is_on(config, required) {
            let rule = format!("depends on {required}, which is off");
            faults.add(&format!("featureGates.{gate}"), true, rule);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(gates: serde_json::Value) -> KubeletConfiguration {
        serde_json::from_value(json!({ "featureGates": gates })).unwrap()
    }

    #[test]
    fn gates_are_known_honoured_or_refused_by_name() {
        for (gates, expected) in [
            (json!({}), &[][..]),
            (
                json!({"MemoryQoS": true, "NodeSwap": true, "PodsAPI": false}),
                &[],
            ),
            // Those of other components are theirs.
            (json!({"WatchList": false}), &[]),
            (
                json!({"MemoryQos": true}),
                &[
                    "featureGates.MemoryQos: invalid value true: is no feature gate of Kubernetes 1.36",
                ],
            ),
            (
                json!({"PodLevelResources": false}),
                &[
                    "featureGates.InPlacePodLevelResourcesVerticalScaling: invalid value true: depends on PodLevelResources, which is off",
                ],
            ),
            (
                json!({
                    "PodLevelResources": false,
                    "InPlacePodLevelResourcesVerticalScaling": false,
                    "KubeletPodResourcesListUseActivePods": false,
                }),
                &[],
            ),
            (
                json!({"NodeSwap": false, "PodsAPI": true, "EnvFiles": false}),
                &[
                    "featureGates.EnvFiles: invalid value false: this kubelet cannot switch the feature off",
                    "featureGates.NodeSwap: invalid value false: the gate is locked to its default",
                    "featureGates.PodsAPI: invalid value true: this kubelet does not have the feature",
                ],
            ),
        ] {
            let mut faults = Faults::default();
            validate(&config(gates), &mut faults);
            assert_eq!(faults.into_list(), expected);
        }
    }

    #[test]
    fn a_stage_has_the_gates_that_are_not_given() {
        let mut faults = Faults::default();
        let all = config(json!({"AllAlpha": true, "PodsAPI": false}));
        validate(&all, &mut faults);
        let faults = faults.into_list();
        assert!(!faults.is_empty());
        assert!(
            faults
                .iter()
                .all(|fault| fault.contains("invalid value true: this kubelet does not"))
        );
        assert!(
            !faults.iter().any(|fault| fault.contains("PodsAPI")),
            "{faults:?}"
        );
        assert!(is_on(&all, MEMORY_QOS));
        assert!(!is_on(&config(json!({"AllBeta": false})), CPU_BETA_OPTIONS));
        assert!(is_on(&config(json!({})), CPU_BETA_OPTIONS));
    }

    #[test]
    fn the_gates_that_are_honoured_are_in_the_table() {
        for name in [
            MEMORY_QOS,
            QOS_RESERVED,
            CPU_ALPHA_OPTIONS,
            CPU_BETA_OPTIONS,
            NO_QUOTA,
            SHUTDOWN,
            SHUTDOWN_BY_PRIORITY,
            CRASH_LOOP_MAXIMUM,
            VERIFY_PULLED_IMAGES,
            SERVING_CERTIFICATES,
            QUICK_RESTARTS,
            POD_RESOURCES,
            POD_RESIZE,
            LIST_ACTIVE_PODS,
            CHECKPOINT,
            STATUSZ,
            FLAGZ,
        ] {
            let gate = gates().find(|gate| gate.name == name);
            assert_eq!(gate.map(|gate| gate.here), Some("switch"), "{name}");
        }
    }
}
