//! Rules of security contexts.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Pod, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext,
};

use super::context::PodContext;
use crate::{
    field::{Faults, Path},
    names,
    sysctl::Namespace,
};

/// What the names of annotations with the AppArmor profiles of containers begin with.
pub const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const PROFILES: &[&str] = &["Localhost", "RuntimeDefault", "Unconfined"];
const MAX_ID: i64 = i32::MAX as i64;
/// They have no effect in a pod that does not name its system.
const WINDOWS_OPTIONS: &str = "windows options cannot be set for a linux pod";
/// Maximum length of an AppArmor profile name.
const MAX_PROFILE: usize = 4095;

/// Annotations are older than the field. A wrong one would leave the container unconfined.
pub(super) fn validate_annotations(pod: &Pod, spec: &PodSpec, faults: &mut Faults) {
    let path = Path::new("metadata").child("annotations");
    let containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    for (key, profile) in pod.metadata.annotations.iter().flatten() {
        let Some(name) = key.strip_prefix(APPARMOR_ANNOTATION) else {
            continue;
        };
        let is_known = matches!(profile.as_str(), "" | "runtime/default" | "unconfined")
            || profile.starts_with("localhost/");
        if !is_known {
            faults.invalid(&path.key(key), profile, "invalid AppArmor profile name");
        }
        if !containers.clone().any(|container| container.name == name) {
            faults.invalid(&path.key(key), name, "container not found");
        }
    }
}

pub(super) fn validate_pod(
    spec: &PodSpec,
    context: &PodSecurityContext,
    path: &Path,
    faults: &mut Faults,
) {
    id(context.run_as_user, &path.child("runAsUser"), faults);
    id(context.run_as_group, &path.child("runAsGroup"), faults);
    id(context.fs_group, &path.child("fsGroup"), faults);
    for (index, group) in context.supplemental_groups.iter().flatten().enumerate() {
        let path = path.child("supplementalGroups").index(index);
        id(Some(*group), &path, faults);
    }
    if let Some(policy) = &context.fs_group_change_policy {
        faults.one_of(
            &path.child("fsGroupChangePolicy"),
            policy,
            &["Always", "OnRootMismatch"],
        );
    }
    if let Some(policy) = &context.supplemental_groups_policy {
        faults.one_of(
            &path.child("supplementalGroupsPolicy"),
            policy,
            &["Merge", "Strict"],
        );
    }
    if let Some(policy) = &context.se_linux_change_policy {
        faults.one_of(
            &path.child("seLinuxChangePolicy"),
            policy,
            &["MountOption", "Recursive"],
        );
    }
    let mut sysctls = HashSet::new();
    for (index, sysctl) in context.sysctls.iter().flatten().enumerate() {
        let path = path.child("sysctls").index(index).child("name");
        faults.required_text(&path, &sysctl.name, names::sysctl_name);
        if !sysctls.insert(&sysctl.name) {
            faults.duplicate(&path, &sysctl.name);
        }
        let shared = match Namespace::of(&sysctl.name) {
            Some(Namespace::Net) if spec.host_network == Some(true) => "hostNetwork",
            Some(Namespace::Ipc) if spec.host_ipc == Some(true) => "hostIPC",
            _ => continue,
        };
        faults.invalid(
            &path,
            &sysctl.name,
            format_args!("may not be specified when '{shared}' is true"),
        );
    }
    seccomp(context.seccomp_profile.as_ref(), path, faults);
    app_armor(context.app_armor_profile.as_ref(), path, faults);
    if spec.os.is_some() && context.windows_options.is_some() {
        faults.forbidden(&path.child("windowsOptions"), WINDOWS_OPTIONS);
    }
}

pub(super) fn validate_container(
    context: &SecurityContext,
    pod: &PodContext<'_>,
    path: &Path,
    faults: &mut Faults,
) {
    id(context.run_as_user, &path.child("runAsUser"), faults);
    id(context.run_as_group, &path.child("runAsGroup"), faults);
    if let Some(mount) = &context.proc_mount {
        let path = path.child("procMount");
        faults.one_of(&path, mount, &["Default", "Unmasked"]);
        if mount == "Unmasked" && !pod.user_namespace {
            faults.invalid(&path, mount, "`hostUsers` must be false to use `Unmasked`");
        }
    }
    if context.allow_privilege_escalation == Some(false) {
        if context.privileged == Some(true) {
            faults.invalid(
                path,
                "",
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            );
        }
        let adds_admin = context
            .capabilities
            .iter()
            .flat_map(|capabilities| capabilities.add.iter().flatten())
            .any(|capability| capability == "CAP_SYS_ADMIN");
        if adds_admin {
            faults.invalid(
                path,
                "",
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            );
        }
    }
    seccomp(context.seccomp_profile.as_ref(), path, faults);
    app_armor(context.app_armor_profile.as_ref(), path, faults);
    if pod.names_os && context.windows_options.is_some() {
        faults.forbidden(&path.child("windowsOptions"), WINDOWS_OPTIONS);
    }
}

fn id(id: Option<i64>, path: &Path, faults: &mut Faults) {
    if let Some(id) = id {
        faults.range(path, id, 0, MAX_ID);
    }
}

fn seccomp(profile: Option<&SeccompProfile>, path: &Path, faults: &mut Faults) {
    let Some(profile) = profile else {
        return;
    };
    let path = path.child("seccompProfile");
    if profile.type_.is_empty() {
        faults.required(
            &path.child("type"),
            "type is required when seccompProfile is set",
        );
    } else {
        faults.one_of(&path.child("type"), &profile.type_, PROFILES);
    }
    let name_path = path.child("localhostProfile");
    match (profile.type_.as_str(), profile.localhost_profile.as_deref()) {
        ("Localhost", None | Some("")) => {
            faults.required(&name_path, "must be set when seccomp type is Localhost");
        }
        ("Localhost", Some(file)) => faults.text(&name_path, file, names::descending_path),
        (_, None) => {}
        (_, Some(name)) => faults.invalid(
            &name_path,
            name,
            "can only be set when seccomp type is Localhost",
        ),
    }
}

fn app_armor(profile: Option<&AppArmorProfile>, path: &Path, faults: &mut Faults) {
    let Some(profile) = profile else {
        return;
    };
    let path = path.child("appArmorProfile");
    if profile.type_.is_empty() {
        faults.required(
            &path.child("type"),
            "type is required when appArmorProfile is set",
        );
    } else {
        faults.one_of(&path.child("type"), &profile.type_, PROFILES);
    }
    let name_path = path.child("localhostProfile");
    match (profile.type_.as_str(), profile.localhost_profile.as_deref()) {
        ("Localhost", Some(name)) if !name.is_empty() => {
            if name.trim() != name {
                faults.invalid(&name_path, name, "must not be padded with whitespace");
            }
            faults.at_most(&name_path, name, MAX_PROFILE);
        }
        ("Localhost", _) => {
            faults.required(&name_path, "must be set when AppArmor type is Localhost");
        }
        (_, Some(name)) if PROFILES.contains(&profile.type_.as_str()) => faults.invalid(
            &name_path,
            name,
            "can only be set when AppArmor type is Localhost",
        ),
        _ => {}
    }
}
