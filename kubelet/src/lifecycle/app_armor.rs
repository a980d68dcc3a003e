//! Whether this host can confine a pod by AppArmor.

use std::{fs, path::Path};

use k8s_openapi::api::core::v1::{AppArmorProfile, Pod};

use crate::runtime::security_context::apparmor_of;

/// Whether the kernel has AppArmor switched on.
pub(super) fn is_enabled() -> bool {
    let enabled = fs::read_to_string("/sys/module/apparmor/parameters/enabled");
    Path::new("/sys/kernel/security/apparmor").exists()
        && enabled.is_ok_and(|text| text.starts_with('Y'))
}

/// Whether some container is to be confined.
pub(super) fn is_required(pod: &Pod) -> bool {
    let confines = |profile: &AppArmorProfile| profile.type_ != "Unconfined";
    let Some(spec) = &pod.spec else {
        return false;
    };
    let of_pod = spec.security_context.as_ref();
    if of_pod
        .and_then(|context| context.app_armor_profile.as_ref())
        .is_some_and(confines)
    {
        return true;
    }
    let init = spec.init_containers.iter().flatten();
    init.chain(&spec.containers)
        .filter_map(|container| apparmor_of(pod, of_pod, container))
        .any(|profile| confines(&profile))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_profile_of_pod_or_container_needs_apparmor() {
        let required = |pod: Value, container: Value| {
            let pod = json!({"spec": {
                "securityContext": pod,
                "containers": [{"name": "c", "securityContext": container}]
            }});
            is_required(&serde_json::from_value(pod).unwrap())
        };
        let profile = |type_: &str| json!({"appArmorProfile": {"type": type_}});
        assert!(!required(json!({}), json!({})));
        assert!(!required(profile("Unconfined"), profile("Unconfined")));
        assert!(required(profile("RuntimeDefault"), json!({})));
        assert!(required(json!({}), profile("RuntimeDefault")));
    }
}
