//! Tests of the conversion of security contexts to CRI.

use serde_json::{Value, json};

use super::*;

fn context_of(
    pod: Value,
    container: Value,
    user: &ImageUser,
    seccomp_default: bool,
) -> Result<LinuxContainerSecurityContext, SecurityContextError> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u"},
        "spec": {
            "securityContext": pod,
            "containers": [{"name": "c", "securityContext": container}]
        }
    }))
    .unwrap();
    let spec = pod.spec.as_ref().unwrap();
    let node = NodeSecurity {
        seccomp_root: Path::new("/s"),
        seccomp_default,
        user_namespace: UserNamespace::default(),
    };
    container_security_context(&pod, spec, &spec.containers[0], user, node)
}

fn context(pod: Value, container: Value) -> LinuxContainerSecurityContext {
    context_of(pod, container, &ImageUser::default(), false).unwrap()
}

#[test]
fn the_container_overrides_the_pod() {
    let context = context(
        json!({
            "runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4],
            "supplementalGroupsPolicy": "Strict", "seLinuxOptions": {"level": "s0:c1"}
        }),
        json!({
            "runAsUser": 10, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]},
            "seLinuxOptions": {"type": "t"}
        }),
    );
    assert_eq!(context.run_as_user, id(Some(10)));
    assert_eq!(context.run_as_group, id(Some(2)));
    assert_eq!(context.supplemental_groups, [3, 4]);
    assert_eq!(
        context.supplemental_groups_policy(),
        SupplementalGroupsPolicy::Strict
    );
    assert!(context.no_new_privs && context.readonly_rootfs);
    let capabilities = context.capabilities.unwrap();
    assert_eq!(capabilities.add_capabilities, ["NET_ADMIN"]);
    assert_eq!(capabilities.drop_capabilities, ["ALL"]);
    let selinux = context.selinux_options.unwrap();
    assert_eq!((&*selinux.r#type, &*selinux.level), ("t", ""));
    assert!(context.masked_paths.contains(&"/proc/kcore".to_owned()));
}

#[test]
fn an_unmasked_proc_hides_nothing() {
    let context = context(json!({}), json!({"procMount": "Unmasked"}));
    assert!(context.masked_paths.is_empty() && context.readonly_paths.is_empty());
}

#[test]
fn a_container_runs_as_its_image_says() {
    for (uid, name, expected) in [
        (Some(7), "", (Some(7), "")),
        (None, "www", (None, "www")),
        (None, "", (Some(0), "")),
    ] {
        let user = ImageUser {
            uid,
            name: name.to_owned(),
        };
        let context = context_of(json!({}), json!({}), &user, false).unwrap();
        assert_eq!(
            (context.run_as_user, context.run_as_username.as_str()),
            (id(expected.0), expected.1)
        );
    }
}

#[test]
fn root_is_refused_where_it_must_not_be() {
    let check = |run_as_user: Option<i64>, uid: Option<i64>, name: &str| {
        let user = ImageUser {
            uid,
            name: name.to_owned(),
        };
        let pod = json!({"runAsNonRoot": true});
        let checked = context_of(pod, json!({"runAsUser": run_as_user}), &user, false);
        checked
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    let subject = r#"(pod: "web_ns(u)", container: c)"#;
    for (run_as_user, uid, name, expected) in [
        (
            Some(0),
            None,
            "",
            format!("container's runAsUser breaks non-root policy {subject}"),
        ),
        (
            None,
            Some(0),
            "",
            format!("container has runAsNonRoot and image will run as root {subject}"),
        ),
        (
            None,
            None,
            "",
            format!("container has runAsNonRoot and image will run as root {subject}"),
        ),
        (
            None,
            None,
            "www",
            format!(
                "container has runAsNonRoot and image has non-numeric user (www), cannot verify user is non-root {subject}"
            ),
        ),
        (
            None,
            Some(1 << 32),
            "",
            format!(
                "container has runAsNonRoot and image has an invalid user id (4294967296). (Must be 1-(2147483647)): must be between 0 and 2147483647, inclusive {subject}"
            ),
        ),
        (Some(1), Some(0), "", String::new()),
        (Some(1), None, "www", String::new()),
        (None, Some(7), "", String::new()),
    ] {
        assert_eq!(check(run_as_user, uid, name), expected);
    }
}

#[test]
fn seccomp_profiles_are_the_containers_the_pods_or_the_nodes() {
    let local = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "a/b.json"}});
    let unconfined = json!({"seccompProfile": {"type": "Unconfined"}});
    let none = json!({});
    for (pod, container, default, expected, file) in [
        (&none, &none, false, ProfileType::Unconfined, ""),
        (&none, &none, true, ProfileType::RuntimeDefault, ""),
        (&unconfined, &none, true, ProfileType::Unconfined, ""),
        (
            &unconfined,
            &local,
            true,
            ProfileType::Localhost,
            "/s/a/b.json",
        ),
        (&local, &unconfined, false, ProfileType::Unconfined, ""),
    ] {
        let user = ImageUser::default();
        let context = context_of(pod.clone(), container.clone(), &user, default).unwrap();
        let seccomp = context.seccomp.unwrap();
        assert_eq!(
            seccomp.profile_type(),
            expected,
            "{pod} {container} {default}"
        );
        assert_eq!(seccomp.localhost_ref, file);
    }
    let nameless = json!({"seccompProfile": {"type": "Localhost"}});
    let error = context_of(none, nameless, &ImageUser::default(), false).unwrap_err();
    assert_eq!(error, SecurityContextError::NoSeccompProfile);
}

#[test]
fn apparmor_profiles_are_given_in_both_forms() {
    let profile = |type_: &str| json!({"appArmorProfile": {"type": type_}});
    for (pod, container, expected, deprecated) in [
        (json!({}), json!({}), None, ""),
        (
            profile("RuntimeDefault"),
            json!({}),
            Some(ProfileType::RuntimeDefault),
            "runtime/default",
        ),
        (
            profile("RuntimeDefault"),
            profile("Unconfined"),
            Some(ProfileType::Unconfined),
            "unconfined",
        ),
        (
            json!({}),
            json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "p"}}),
            Some(ProfileType::Localhost),
            "localhost/p",
        ),
    ] {
        let context = context(pod, container);
        assert_eq!(context.apparmor.map(|p| p.profile_type()), expected);
        assert_eq!(context.apparmor_profile, deprecated);
    }
}

#[test]
fn an_old_annotation_still_names_a_profile() {
    for (value, expected) in [
        ("runtime/default", Some(("RuntimeDefault", None))),
        ("unconfined", Some(("Unconfined", None))),
        ("localhost/mine", Some(("Localhost", Some("mine")))),
        ("mine", None),
    ] {
        let profile = apparmor_by_annotation(value);
        let profile = profile
            .as_ref()
            .map(|p| (&*p.type_, p.localhost_profile.as_deref()));
        assert_eq!(profile, expected, "{value}");
    }
}
