//! Rules of restart policies: after an exit and after a resize.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::Container;

use crate::field::{Faults, Path};

const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;

pub(super) fn validate(container: &Container, pod_never: bool, path: &Path, faults: &mut Faults) {
    validate_policy(container, path, faults);
    validate_resize(container, pod_never, &path.child("resizePolicy"), faults);
}

fn validate_policy(container: &Container, path: &Path, faults: &mut Faults) {
    let rules = container.restart_policy_rules.as_deref();
    let rules = rules.unwrap_or_default();
    let policy_path = path.child("restartPolicy");
    match &container.restart_policy {
        Some(policy) => faults.one_of(&policy_path, policy, &["Always", "OnFailure", "Never"]),
        None if rules.is_empty() => {}
        None => faults.required(
            &policy_path,
            "must specify restartPolicy when restart rules are used",
        ),
    }
    let path = path.child("restartPolicyRules");
    faults.at_most_items(&path, rules.len(), MAX_RULES);
    for (index, rule) in rules.iter().enumerate() {
        let path = path.index(index);
        faults.one_of(
            &path.child("action"),
            &rule.action,
            &["Restart", "RestartAllContainers"],
        );
        let path = path.child("exitCodes");
        let Some(codes) = &rule.exit_codes else {
            faults.required(&path, "must be specified");
            continue;
        };
        faults.one_of(&path.child("operator"), &codes.operator, &["In", "NotIn"]);
        let values = codes.values.as_ref().map_or(0, Vec::len);
        faults.at_most_items(&path.child("values"), values, MAX_EXIT_CODES);
    }
}

fn validate_resize(container: &Container, pod_never: bool, path: &Path, faults: &mut Faults) {
    let mut seen = HashSet::new();
    for (index, policy) in container.resize_policy.iter().flatten().enumerate() {
        if !seen.insert(policy.resource_name.as_str()) {
            faults.duplicate(&path.index(index), &policy.resource_name);
        }
        for (value, supported) in [
            (&policy.resource_name, ["cpu", "memory"]),
            (&policy.restart_policy, ["NotRequired", "RestartContainer"]),
        ] {
            if value.is_empty() {
                faults.required(path, "");
            } else {
                faults.one_of(path, value, &supported);
            }
        }
        if pod_never && policy.restart_policy != "NotRequired" {
            faults.invalid(
                path,
                &policy.restart_policy,
                "must be 'NotRequired' when pod `restartPolicy` is 'Never'",
            );
        }
    }
}
