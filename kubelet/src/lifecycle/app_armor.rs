//! Checks of AppArmor profiles.

use std::{fs, path::Path};

use k8s_openapi::api::core::v1::{AppArmorProfile, Pod, PodSpec};
use kubelet_pod_spec::ephemeral::as_container;
use kubelet_runtime::security_context::apparmor_of;

/// Whether AppArmor is enabled in the kernel.
pub(super) fn is_enabled() -> bool {
    let enabled = fs::read_to_string("/sys/module/apparmor/parameters/enabled");
    Path::new("/sys/kernel/security/apparmor").exists()
        && enabled.is_ok_and(|text| text.starts_with('Y'))
}

/// Checks whether the pod's profiles can be enforced; `is_enabled` is the host's AppArmor state.
///
/// # Errors
/// The reason, in upstream's words.
pub(super) fn check(pod: &Pod, is_enabled: bool) -> Result<(), &'static str> {
    let Some(spec) = &pod.spec else {
        return Ok(());
    };
    let of_pod = spec.security_context.as_ref();
    let of_pod = of_pod.and_then(|context| context.app_armor_profile.as_ref());
    let profiles = profiles(pod, spec);
    if !of_pod.into_iter().chain(&profiles).any(confines) {
        return Ok(());
    }
    if !is_enabled {
        return Err("AppArmor is not enabled on the host");
    }
    let is_nameless = |profile: &AppArmorProfile| {
        let name = profile.localhost_profile.as_deref().unwrap_or_default();
        profile.type_ == "Localhost" && name.trim().is_empty()
    };
    if profiles.iter().any(is_nameless) {
        return Err("invalid empty AppArmor profile name");
    }
    Ok(())
}

/// The profiles of all containers that have one.
fn profiles(pod: &Pod, spec: &PodSpec) -> Vec<AppArmorProfile> {
    let of_pod = spec.security_context.as_ref();
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let ephemeral: Vec<_> = ephemeral.map(as_container).collect();
    let init = spec.init_containers.iter().flatten();
    init.chain(&spec.containers)
        .chain(&ephemeral)
        .filter_map(|container| apparmor_of(pod, of_pod, container))
        .collect()
}

fn confines(profile: &AppArmorProfile) -> bool {
    profile.type_ != "Unconfined"
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(of_pod: Value, of_container: Value) -> Pod {
        let pod = json!({"spec": {
            "securityContext": of_pod,
            "containers": [{"name": "c", "securityContext": of_container}]
        }});
        serde_json::from_value(pod).unwrap()
    }

    fn profile(type_: &str) -> Value {
        json!({"appArmorProfile": {"type": type_}})
    }

    #[test]
    fn a_profile_of_pod_or_container_needs_apparmor() {
        let required = |pod: Pod| check(&pod, false).is_err();
        assert!(!required(pod(json!({}), json!({}))));
        assert!(!required(pod(profile("Unconfined"), profile("Unconfined"))));
        assert!(required(pod(profile("RuntimeDefault"), json!({}))));
        assert!(required(pod(json!({}), profile("RuntimeDefault"))));
        let mut debugged = pod(json!({}), json!({}));
        debugged.spec.as_mut().unwrap().ephemeral_containers = serde_json::from_value(
            json!([{"name": "e", "securityContext": profile("RuntimeDefault")}]),
        )
        .unwrap();
        assert!(required(debugged));
    }

    #[test]
    fn a_profile_of_the_host_has_a_name() {
        assert_eq!(
            check(&pod(json!({}), profile("RuntimeDefault")), true),
            Ok(())
        );
        let mut named = profile("Localhost");
        assert_eq!(
            check(&pod(json!({}), named.clone()), true),
            Err("invalid empty AppArmor profile name")
        );
        named["appArmorProfile"]["localhostProfile"] = json!("mine");
        assert_eq!(check(&pod(json!({}), named), true), Ok(()));
    }
}
