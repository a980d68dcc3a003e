//! Security contexts of pod and container in CRI's terms.

use std::{path::Path, sync::LazyLock};

use cri_proto::runtime::v1::{
    Capability, Int64Value, LinuxContainerSecurityContext, NamespaceMode, NamespaceOption,
    SeLinuxOption, SecurityProfile, SupplementalGroupsPolicy, security_profile::ProfileType,
};
use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, PodSecurityContext, PodSpec, SELinuxOptions, SeccompProfile,
    SecurityContext,
};

/// Why a container may not run as its spec and image say.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SecurityContextError {
    /// `runAsNonRoot` with `runAsUser: 0`.
    #[error("container's runAsUser breaks non-root policy")]
    RootByRunAsUser,
    /// `runAsNonRoot`, and the image runs as root.
    #[error("container has runAsNonRoot and image will run as root")]
    RootByImage,
    /// `runAsNonRoot`, and the image names its user.
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({0}), cannot verify user is non-root"
    )]
    UserByName(String),
}

/// Files that a container does not see, where `procMount` does not say otherwise.
static MASKED_PATHS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let fixed = [
        "/proc/asound",
        "/proc/acpi",
        "/proc/interrupts",
        "/proc/kcore",
        "/proc/keys",
        "/proc/latency_stats",
        "/proc/timer_list",
        "/proc/timer_stats",
        "/proc/sched_debug",
        "/proc/scsi",
        "/sys/firmware",
        "/sys/devices/virtual/powercap",
    ];
    let throttle = std::fs::read_dir("/sys/devices/system/cpu")
        .into_iter()
        .flatten()
        .flatten()
        .map(|cpu| cpu.path().join("thermal_throttle"))
        .filter(|path| path.exists())
        .map(|path| path.to_string_lossy().into_owned());
    fixed
        .into_iter()
        .map(str::to_owned)
        .chain(throttle)
        .collect()
});

const READONLY_PATHS: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// Which namespaces the pod shares with the node, and its containers with each
/// other.
pub fn namespaces(spec: &PodSpec) -> NamespaceOption {
    let shared = |host: Option<bool>| match host {
        Some(true) => NamespaceMode::Node,
        _ => NamespaceMode::Pod,
    };
    let pid = match spec.host_pid {
        Some(true) => NamespaceMode::Node,
        _ if spec.share_process_namespace == Some(true) => NamespaceMode::Pod,
        _ => NamespaceMode::Container,
    };
    NamespaceOption {
        network: shared(spec.host_network).into(),
        ipc: shared(spec.host_ipc).into(),
        pid: pid.into(),
        ..NamespaceOption::default()
    }
}

/// The groups that every process of the pod has beside its own.
pub fn supplemental_groups(context: Option<&PodSecurityContext>) -> Vec<i64> {
    let Some(context) = context else {
        return Vec::new();
    };
    let more = context.supplemental_groups.iter().flatten();
    context.fs_group.iter().chain(more).copied().collect()
}

/// Whether groups of the image count.
pub fn supplemental_groups_policy(context: Option<&PodSecurityContext>) -> i32 {
    match context.and_then(|c| c.supplemental_groups_policy.as_deref()) {
        Some("Strict") => SupplementalGroupsPolicy::Strict.into(),
        _ => SupplementalGroupsPolicy::Merge.into(),
    }
}

/// SELinux labels in CRI's terms.
pub fn selinux(options: &SELinuxOptions) -> SeLinuxOption {
    SeLinuxOption {
        user: options.user.clone().unwrap_or_default(),
        role: options.role.clone().unwrap_or_default(),
        r#type: options.type_.clone().unwrap_or_default(),
        level: options.level.clone().unwrap_or_default(),
    }
}

/// An id that may be absent, in CRI's terms.
pub fn id(id: Option<i64>) -> Option<Int64Value> {
    id.map(|value| Int64Value { value })
}

/// The user that an image runs as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageUser {
    /// When it is a number.
    pub uid: Option<i64>,
    /// When it is a name; else empty.
    pub name: String,
}

/// The security context of a container: its own, and the pod's where it is
/// silent. `seccomp_root` holds the localhost profiles.
///
/// # Errors
/// `runAsNonRoot` forbids the user that the container would run as.
pub fn container_security_context(
    spec: &PodSpec,
    container: &Container,
    user: &ImageUser,
    seccomp_root: &Path,
) -> Result<LinuxContainerSecurityContext, SecurityContextError> {
    let pod = spec.security_context.as_ref();
    let default = SecurityContext::default();
    let own = container.security_context.as_ref().unwrap_or(&default);
    let run_as_user = own.run_as_user.or_else(|| pod?.run_as_user);
    if own.run_as_non_root.or_else(|| pod?.run_as_non_root) == Some(true) {
        verify_non_root(run_as_user, user)?;
    }
    let apparmor = own
        .app_armor_profile
        .as_ref()
        .or_else(|| pod?.app_armor_profile.as_ref());
    let seccomp = own
        .seccomp_profile
        .as_ref()
        .or_else(|| pod?.seccomp_profile.as_ref());
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked");
    let (masked_paths, readonly_paths) = if unmasked {
        (Vec::new(), Vec::new())
    } else {
        (
            MASKED_PATHS.clone(),
            READONLY_PATHS.map(str::to_owned).to_vec(),
        )
    };
    Ok(LinuxContainerSecurityContext {
        capabilities: own.capabilities.as_ref().map(|c| Capability {
            add_capabilities: c.add.clone().unwrap_or_default(),
            drop_capabilities: c.drop.clone().unwrap_or_default(),
            ..Capability::default()
        }),
        privileged: own.privileged.unwrap_or_default(),
        namespace_options: Some(namespaces(spec)),
        selinux_options: own
            .se_linux_options
            .as_ref()
            .or_else(|| pod?.se_linux_options.as_ref())
            .map(selinux),
        run_as_user: id(run_as_user.or(user.uid)),
        run_as_username: if run_as_user.is_none() {
            user.name.clone()
        } else {
            String::new()
        },
        run_as_group: id(own.run_as_group.or_else(|| pod?.run_as_group)),
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or_default(),
        supplemental_groups: supplemental_groups(pod),
        supplemental_groups_policy: supplemental_groups_policy(pod),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths,
        readonly_paths,
        seccomp: Some(seccomp_profile(seccomp, seccomp_root)),
        apparmor: apparmor.map(apparmor_profile),
        apparmor_profile: apparmor.map(deprecated_apparmor).unwrap_or_default(),
        ..LinuxContainerSecurityContext::default()
    })
}

fn verify_non_root(
    run_as_user: Option<i64>,
    image: &ImageUser,
) -> Result<(), SecurityContextError> {
    match (run_as_user, image.uid) {
        (Some(0), _) => Err(SecurityContextError::RootByRunAsUser),
        (None, Some(0)) => Err(SecurityContextError::RootByImage),
        (None, None) if !image.name.is_empty() => {
            Err(SecurityContextError::UserByName(image.name.clone()))
        }
        _ => Ok(()),
    }
}

fn seccomp_profile(profile: Option<&SeccompProfile>, root: &Path) -> SecurityProfile {
    let kind = profile.map_or("Unconfined", |p| p.type_.as_str());
    let (profile_type, localhost_ref) = match kind {
        "RuntimeDefault" => (ProfileType::RuntimeDefault, String::new()),
        "Localhost" => {
            let name = profile.and_then(|p| p.localhost_profile.as_deref());
            let path = root.join(name.unwrap_or_default());
            (ProfileType::Localhost, path.to_string_lossy().into_owned())
        }
        _ => (ProfileType::Unconfined, String::new()),
    };
    SecurityProfile {
        profile_type: profile_type.into(),
        localhost_ref,
    }
}

fn apparmor_profile(profile: &AppArmorProfile) -> SecurityProfile {
    let profile_type = match profile.type_.as_str() {
        "Localhost" => ProfileType::Localhost,
        "Unconfined" => ProfileType::Unconfined,
        _ => ProfileType::RuntimeDefault,
    };
    SecurityProfile {
        profile_type: profile_type.into(),
        localhost_ref: profile.localhost_profile.clone().unwrap_or_default(),
    }
}

/// The same in the form that runtimes read before CRI had profiles.
fn deprecated_apparmor(profile: &AppArmorProfile) -> String {
    match (profile.type_.as_str(), &profile.localhost_profile) {
        ("Localhost", Some(name)) => format!("localhost/{name}"),
        ("Unconfined", _) => "unconfined".to_owned(),
        _ => "runtime/default".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(context: PodSecurityContext) -> PodSpec {
        PodSpec {
            security_context: Some(context),
            ..PodSpec::default()
        }
    }

    fn container(context: SecurityContext) -> Container {
        Container {
            security_context: Some(context),
            ..Container::default()
        }
    }

    #[test]
    fn the_container_overrides_the_pod() {
        let pod = spec(PodSecurityContext {
            run_as_user: Some(1),
            run_as_group: Some(2),
            fs_group: Some(3),
            supplemental_groups: Some(vec![4]),
            ..PodSecurityContext::default()
        });
        let own = container(SecurityContext {
            run_as_user: Some(10),
            allow_privilege_escalation: Some(false),
            ..SecurityContext::default()
        });
        let context =
            container_security_context(&pod, &own, &ImageUser::default(), Path::new("/s")).unwrap();
        assert_eq!(context.run_as_user, id(Some(10)));
        assert_eq!(context.run_as_group, id(Some(2)));
        assert_eq!(context.supplemental_groups, [3, 4]);
        assert!(context.no_new_privs);
        assert!(context.masked_paths.contains(&"/proc/kcore".to_owned()));
    }

    #[test]
    fn root_is_refused_where_it_must_not_be() {
        let pod = spec(PodSecurityContext {
            run_as_non_root: Some(true),
            ..PodSecurityContext::default()
        });
        let check = |run_as_user, uid, name: &str| {
            let own = container(SecurityContext {
                run_as_user,
                ..SecurityContext::default()
            });
            let user = ImageUser {
                uid,
                name: name.to_owned(),
            };
            container_security_context(&pod, &own, &user, Path::new("/s")).err()
        };
        assert_eq!(
            check(Some(0), None, ""),
            Some(SecurityContextError::RootByRunAsUser)
        );
        assert_eq!(
            check(None, Some(0), ""),
            Some(SecurityContextError::RootByImage)
        );
        assert!(matches!(
            check(None, None, "www"),
            Some(SecurityContextError::UserByName(_))
        ));
        assert_eq!(check(Some(1), Some(0), ""), None);
        assert_eq!(check(None, Some(7), ""), None);
    }

    #[test]
    fn localhost_profiles_are_found_under_the_root() {
        let profile = SeccompProfile {
            type_: "Localhost".to_owned(),
            localhost_profile: Some("a/b.json".to_owned()),
        };
        let profile = seccomp_profile(Some(&profile), Path::new("/var/lib/kubelet/seccomp"));
        assert_eq!(profile.localhost_ref, "/var/lib/kubelet/seccomp/a/b.json");
    }
}
