//! Restart decisions for exited containers: the container's rules come first, then its own policy,
//! then the pod's policy.

use k8s_openapi::api::core::v1::{Container, PodSpec};

/// Rule action: restart the container.
const RESTART: &str = "Restart";
/// Rule action: restart all containers of the pod.
const RESTART_ALL: &str = "RestartAllContainers";

/// The restart policy of a pod or container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Restart after any exit.
    Always,
    /// Restart after a failure.
    OnFailure,
    /// Do not restart.
    Never,
}

impl RestartPolicy {
    /// The policy of a pod; upstream's default (`Always`) if it sets none.
    pub fn of(spec: &PodSpec) -> Self {
        Self::parse(spec.restart_policy.as_deref()).unwrap_or(Self::Always)
    }

    /// The policy of a container: its own, or else its pod's.
    pub fn of_container(spec: &PodSpec, container: &Container) -> Self {
        Self::parse(container.restart_policy.as_deref()).unwrap_or_else(|| Self::of(spec))
    }

    fn parse(policy: Option<&str>) -> Option<Self> {
        match policy? {
            "Always" => Some(Self::Always),
            "OnFailure" => Some(Self::OnFailure),
            "Never" => Some(Self::Never),
            _ => None,
        }
    }

    /// Whether a container that exited with `exit_code` is restarted.
    pub const fn restarts(self, exit_code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => exit_code != 0,
            Self::Never => false,
        }
    }
}

/// Whether an init container is a sidecar, which keeps running alongside the other containers.
pub fn is_sidecar(init: &Container) -> bool {
    init.restart_policy.as_deref() == Some("Always")
}

/// Whether a container that exited with `exit_code` is restarted.
pub fn restarts(spec: &PodSpec, container: &Container, exit_code: i32) -> bool {
    let Some(policy) = container.restart_policy.as_deref() else {
        return RestartPolicy::of(spec).restarts(exit_code);
    };
    if matches!(action(container, exit_code), Some(RESTART | RESTART_ALL)) {
        return true;
    }
    match policy {
        "Always" => true,
        "OnFailure" => exit_code != 0,
        "Never" => false,
        _ => RestartPolicy::of(spec).restarts(exit_code),
    }
}

/// Whether a container's exit with `exit_code` restarts all containers of the pod.
pub fn restarts_all(container: &Container, exit_code: i32) -> bool {
    action(container, exit_code) == Some(RESTART_ALL)
}

/// Whether the exit of any container can restart all containers of the pod.
pub fn can_restart_all(spec: &PodSpec) -> bool {
    spec.init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .flat_map(|container| container.restart_policy_rules.iter().flatten())
        .any(|rule| rule.action == RESTART_ALL)
}

/// The action of the first rule that matches an exit code.
fn action(container: &Container, exit_code: i32) -> Option<&str> {
    let rule = container
        .restart_policy_rules
        .iter()
        .flatten()
        .find(|rule| {
            rule.exit_codes.as_ref().is_some_and(|codes| {
                let named = codes.values.iter().flatten().any(|code| *code == exit_code);
                match codes.operator.as_str() {
                    "In" => named,
                    "NotIn" => !named,
                    _ => false,
                }
            })
        })?;
    Some(&rule.action)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(json: &str) -> Container {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn rules_come_before_the_containers_policy_and_that_before_the_pods() {
        let ruled = r#"{"name": "a", "restartPolicy": "Never", "restartPolicyRules": [
            {"action": "Restart", "exitCodes": {"operator": "In", "values": [3]}},
            {"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0, 5]}}
        ]}"#;
        for (policy, json, exit_code, expected) in [
            ("Never", r#"{"name": "a"}"#, 1, false),
            (
                "Never",
                r#"{"name": "a", "restartPolicy": "Always"}"#,
                0,
                true,
            ),
            (
                "Always",
                r#"{"name": "a", "restartPolicy": "OnFailure"}"#,
                0,
                false,
            ),
            (
                "Always",
                r#"{"name": "a", "restartPolicy": "Never"}"#,
                1,
                false,
            ),
            ("Always", ruled, 3, true),
            ("Always", ruled, 4, true),
            ("Always", ruled, 5, false),
        ] {
            let spec = PodSpec {
                restart_policy: Some(policy.to_owned()),
                ..PodSpec::default()
            };
            let found = restarts(&spec, &container(json), exit_code);
            assert_eq!(found, expected, "{policy} {json} {exit_code}");
        }
        let ruled = container(ruled);
        assert!(!restarts_all(&ruled, 3) && restarts_all(&ruled, 4));
        let spec = PodSpec {
            containers: vec![ruled],
            ..PodSpec::default()
        };
        assert!(can_restart_all(&spec));
    }

    #[test]
    fn a_policy_is_the_containers_own_or_that_of_its_pod() {
        let spec = PodSpec {
            restart_policy: Some("Never".to_owned()),
            ..PodSpec::default()
        };
        let own = |policy: Option<&str>| {
            let container = Container {
                restart_policy: policy.map(str::to_owned),
                ..Container::default()
            };
            RestartPolicy::of_container(&spec, &container)
        };
        for (policy, expected) in [
            (Some("Always"), RestartPolicy::Always),
            (Some("OnFailure"), RestartPolicy::OnFailure),
            (Some("Never"), RestartPolicy::Never),
            (None, RestartPolicy::Never),
        ] {
            assert_eq!(own(policy), expected, "{policy:?}");
        }
    }
}
