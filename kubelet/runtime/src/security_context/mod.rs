//! Conversion of pod and container security contexts to CRI.

use std::{fmt, path::Path, sync::LazyLock};

use cri_proto::runtime::v1::{
    Capability, Int64Value, LinuxContainerSecurityContext, NamespaceMode, NamespaceOption,
    SeLinuxOption, SecurityProfile, SupplementalGroupsPolicy, UserNamespace,
    security_profile::ProfileType,
};
use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, Pod, PodSecurityContext, PodSpec, SELinuxOptions, SeccompProfile,
    SecurityContext,
};
use kubelet_image::ImageUser;
use kubelet_pod_spec::{
    identity::{self, PodUid},
    validation::APPARMOR_ANNOTATION,
};

/// Why a container's security context is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SecurityContextError {
    /// `runAsNonRoot` with `runAsUser: 0`.
    #[error("container's runAsUser breaks non-root policy {0}")]
    RootByRunAsUser(ContainerRef),
    /// `runAsNonRoot`, but the image runs as root.
    #[error("container has runAsNonRoot and image will run as root {0}")]
    RootByImage(ContainerRef),
    /// `runAsNonRoot`, but the user of the image is not numeric.
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root {subject}"
    )]
    UserByName {
        /// The user of the image.
        user: String,
        /// The container.
        subject: ContainerRef,
    },
    /// `runAsNonRoot`, but the user ID of the image is out of range.
    #[error(
        "container has runAsNonRoot and image has an invalid user id ({uid}). (Must be 1-({MAX_ID})): must be between 0 and {MAX_ID}, inclusive {subject}"
    )]
    InvalidUser {
        /// The user ID of the image.
        uid: i64,
        /// The container.
        subject: ContainerRef,
    },
    /// A `Localhost` seccomp profile without a name.
    #[error("localhostProfile must be set if seccompProfile type is Localhost.")]
    NoSeccompProfile,
    /// A `Localhost` AppArmor profile without a name.
    #[error("missing localhost apparmor profile name")]
    NoAppArmorProfile,
}

/// A container, as shown in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRef {
    pod: String,
    container: String,
}

impl ContainerRef {
    fn of(pod: &Pod, container: &Container) -> Self {
        Self {
            pod: format!("{}({})", identity::full_name(pod), PodUid::of(pod)),
            container: container.name.clone(),
        }
    }
}

impl fmt::Display for ContainerRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "(pod: {:?}, container: {})", self.pod, self.container)
    }
}

/// Largest user ID.
const MAX_ID: i64 = i32::MAX as i64;

/// Paths that are masked unless `procMount` is `Unmasked`.
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

/// The namespaces that the pod shares with the node, and its containers with each other. `users` is
/// the pod's user namespace.
pub fn namespaces(spec: &PodSpec, users: UserNamespace) -> NamespaceOption {
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
        userns_options: Some(users),
        ..NamespaceOption::default()
    }
}

/// The supplemental groups of the pod's processes: `fsGroup` and `supplementalGroups`.
pub fn supplemental_groups(context: Option<&PodSecurityContext>) -> Vec<i64> {
    let Some(context) = context else {
        return Vec::new();
    };
    let more = context.supplemental_groups.iter().flatten();
    context.fs_group.iter().chain(more).copied().collect()
}

/// Whether the groups in the image apply (`Merge`) or not (`Strict`).
pub fn supplemental_groups_policy(context: Option<&PodSecurityContext>) -> i32 {
    match context.and_then(|c| c.supplemental_groups_policy.as_deref()) {
        Some("Strict") => SupplementalGroupsPolicy::Strict.into(),
        _ => SupplementalGroupsPolicy::Merge.into(),
    }
}

/// SELinux options in CRI.
pub fn selinux(options: &SELinuxOptions) -> SeLinuxOption {
    SeLinuxOption {
        user: options.user.clone().unwrap_or_default(),
        role: options.role.clone().unwrap_or_default(),
        r#type: options.type_.clone().unwrap_or_default(),
        level: options.level.clone().unwrap_or_default(),
    }
}

/// An optional ID in CRI.
pub fn id(id: Option<i64>) -> Option<Int64Value> {
    id.map(|value| Int64Value { value })
}

/// Security settings of the node, and the pod's user namespace.
#[derive(Clone, Debug)]
pub struct NodeSecurity<'a> {
    /// Directory of `Localhost` seccomp profiles.
    pub seccomp_root: &'a Path,
    /// Whether `RuntimeDefault` is the seccomp profile of containers without one
    /// (`seccompDefault`).
    pub seccomp_default: bool,
    /// The pod's user namespace.
    pub user_namespace: UserNamespace,
}

/// The security context of a container. The pod's settings apply where it has none of its own.
///
/// # Errors
/// `runAsNonRoot` does not allow the user of the container, or a `Localhost` profile has no name.
pub fn container_security_context(
    pod: &Pod,
    spec: &PodSpec,
    container: &Container,
    user: &ImageUser,
    node: NodeSecurity<'_>,
) -> Result<LinuxContainerSecurityContext, SecurityContextError> {
    let of_pod = spec.security_context.as_ref();
    let default = SecurityContext::default();
    let own = container.security_context.as_ref().unwrap_or(&default);
    let run_as_user = own.run_as_user.or_else(|| of_pod?.run_as_user);
    // An image without a user runs as root.
    let image_uid = user.uid.or_else(|| user.name.is_empty().then_some(0));
    if own.run_as_non_root.or_else(|| of_pod?.run_as_non_root) == Some(true) {
        let subject = || ContainerRef::of(pod, container);
        verify_non_root(run_as_user, image_uid, &user.name, subject)?;
    }
    let (apparmor, apparmor_profile) = match apparmor_of(pod, of_pod, container) {
        Some(profile) => {
            let (profile, deprecated) = apparmor_profile(&profile)?;
            (Some(profile), deprecated)
        }
        None => (None, String::new()),
    };
    let seccomp = own
        .seccomp_profile
        .as_ref()
        .or_else(|| of_pod?.seccomp_profile.as_ref());
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
        selinux_options: own
            .se_linux_options
            .as_ref()
            .or_else(|| of_pod?.se_linux_options.as_ref())
            .map(selinux),
        run_as_user: id(run_as_user.or(image_uid)),
        run_as_username: if run_as_user.or(user.uid).is_none() {
            user.name.clone()
        } else {
            String::new()
        },
        run_as_group: id(own.run_as_group.or_else(|| of_pod?.run_as_group)),
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or_default(),
        supplemental_groups: supplemental_groups(of_pod),
        supplemental_groups_policy: supplemental_groups_policy(of_pod),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths,
        readonly_paths,
        seccomp: Some(seccomp_profile(seccomp, &node)?),
        apparmor,
        apparmor_profile,
        namespace_options: Some(namespaces(spec, node.user_namespace)),
        ..LinuxContainerSecurityContext::default()
    })
}

fn verify_non_root(
    run_as_user: Option<i64>,
    image_uid: Option<i64>,
    image_user: &str,
    subject: impl FnOnce() -> ContainerRef,
) -> Result<(), SecurityContextError> {
    match (run_as_user, image_uid) {
        (Some(0), _) => Err(SecurityContextError::RootByRunAsUser(subject())),
        (Some(_), _) => Ok(()),
        (None, Some(0)) => Err(SecurityContextError::RootByImage(subject())),
        (None, Some(uid)) if !(0..=MAX_ID).contains(&uid) => {
            Err(SecurityContextError::InvalidUser {
                uid,
                subject: subject(),
            })
        }
        (None, Some(_)) => Ok(()),
        (None, None) => Err(SecurityContextError::UserByName {
            user: image_user.to_owned(),
            subject: subject(),
        }),
    }
}

fn seccomp_profile(
    profile: Option<&SeccompProfile>,
    node: &NodeSecurity<'_>,
) -> Result<SecurityProfile, SecurityContextError> {
    let default = if node.seccomp_default {
        "RuntimeDefault"
    } else {
        "Unconfined"
    };
    let (profile_type, localhost_ref) = match profile.map_or(default, |p| p.type_.as_str()) {
        "RuntimeDefault" => (ProfileType::RuntimeDefault, String::new()),
        "Localhost" => {
            let name = profile
                .and_then(|profile| profile.localhost_profile.as_deref())
                .filter(|name| !name.is_empty())
                .ok_or(SecurityContextError::NoSeccompProfile)?;
            let path = node.seccomp_root.join(name);
            (ProfileType::Localhost, path.to_string_lossy().into_owned())
        }
        _ => (ProfileType::Unconfined, String::new()),
    };
    Ok(SecurityProfile {
        profile_type: profile_type.into(),
        localhost_ref,
    })
}

/// The AppArmor profile of a container; `None` if neither the container nor the pod specifies one.
pub fn apparmor_of(
    pod: &Pod,
    of_pod: Option<&PodSecurityContext>,
    container: &Container,
) -> Option<AppArmorProfile> {
    let own = container.security_context.as_ref();
    own.and_then(|own| own.app_armor_profile.clone())
        .or_else(|| {
            let key = format!("{APPARMOR_ANNOTATION}{}", container.name);
            apparmor_by_annotation(identity::annotation(pod, &key)?)
        })
        .or_else(|| of_pod?.app_armor_profile.clone())
}

fn apparmor_by_annotation(value: &str) -> Option<AppArmorProfile> {
    let (type_, localhost_profile) = match value {
        "runtime/default" => ("RuntimeDefault", None),
        "unconfined" => ("Unconfined", None),
        other => ("Localhost", Some(other.strip_prefix("localhost/")?)),
    };
    Some(AppArmorProfile {
        type_: type_.to_owned(),
        localhost_profile: localhost_profile.map(str::to_owned),
    })
}

/// A profile in CRI, and in the deprecated format for older runtimes.
fn apparmor_profile(
    profile: &AppArmorProfile,
) -> Result<(SecurityProfile, String), SecurityContextError> {
    let (profile_type, localhost_ref, deprecated) = match profile.type_.as_str() {
        "Localhost" => {
            let name = profile
                .localhost_profile
                .as_deref()
                .ok_or(SecurityContextError::NoAppArmorProfile)?;
            (ProfileType::Localhost, name, format!("localhost/{name}"))
        }
        "Unconfined" => (ProfileType::Unconfined, "", "unconfined".to_owned()),
        _ => (
            ProfileType::RuntimeDefault,
            "",
            "runtime/default".to_owned(),
        ),
    };
    let profile = SecurityProfile {
        profile_type: profile_type.into(),
        localhost_ref: localhost_ref.to_owned(),
    };
    Ok((profile, deprecated))
}

#[cfg(test)]
mod tests;
