//! Rules of security contexts.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, PodSecurityContext, SeccompProfile, SecurityContext,
};

use super::{
    field::{Faults, Path},
    names,
};

const PROFILES: &[&str] = &["Localhost", "RuntimeDefault", "Unconfined"];
const MAX_ID: i64 = i32::MAX as i64;

pub(super) fn validate_pod(context: &PodSecurityContext, path: &Path, faults: &mut Faults) {
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
    let mut sysctls = HashSet::new();
    for (index, sysctl) in context.sysctls.iter().flatten().enumerate() {
        let path = path.child("sysctls").index(index).child("name");
        faults.required_text(&path, &sysctl.name, names::sysctl_name);
        if !sysctls.insert(&sysctl.name) {
            faults.duplicate(&path, &sysctl.name);
        }
    }
    seccomp(context.seccomp_profile.as_ref(), path, faults);
    app_armor(context.app_armor_profile.as_ref(), path, faults);
    if context.windows_options.is_some() {
        faults.forbidden(&path.child("windowsOptions"), "this is a Linux node");
    }
}

pub(super) fn validate_container(
    context: &SecurityContext,
    user_namespace: bool,
    path: &Path,
    faults: &mut Faults,
) {
    id(context.run_as_user, &path.child("runAsUser"), faults);
    id(context.run_as_group, &path.child("runAsGroup"), faults);
    if let Some(mount) = &context.proc_mount {
        let path = path.child("procMount");
        faults.one_of(&path, mount, &["Default", "Unmasked"]);
        if mount == "Unmasked" && !user_namespace {
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
    if context.windows_options.is_some() {
        faults.forbidden(&path.child("windowsOptions"), "this is a Linux node");
    }
}

fn id(id: Option<i64>, path: &Path, faults: &mut Faults) {
    if let Some(id) = id {
        faults.range(path, id, 0, MAX_ID);
    }
}

fn seccomp(profile: Option<&SeccompProfile>, path: &Path, faults: &mut Faults) {
    if let Some(profile) = profile {
        local_profile(
            &profile.type_,
            profile.localhost_profile.as_deref(),
            &path.child("seccompProfile"),
            faults,
        );
        if let Some(file) = &profile.localhost_profile {
            let path = path.child("seccompProfile").child("localhostProfile");
            faults.text(&path, file, names::descending_path);
        }
    }
}

fn app_armor(profile: Option<&AppArmorProfile>, path: &Path, faults: &mut Faults) {
    if let Some(profile) = profile {
        local_profile(
            &profile.type_,
            profile.localhost_profile.as_deref(),
            &path.child("appArmorProfile"),
            faults,
        );
    }
}

/// A profile of the node is named, and only that is.
fn local_profile(type_: &str, name: Option<&str>, path: &Path, faults: &mut Faults) {
    if type_.is_empty() {
        faults.required(&path.child("type"), "type is required");
    } else {
        faults.one_of(&path.child("type"), type_, PROFILES);
    }
    let name_path = path.child("localhostProfile");
    match (type_, name) {
        ("Localhost", None | Some("")) => {
            faults.required(&name_path, "must be set when type is Localhost");
        }
        ("Localhost", Some(_)) | (_, None) => {}
        (_, Some(name)) => {
            faults.invalid(&name_path, name, "can only be set when type is Localhost")
        }
    }
}
