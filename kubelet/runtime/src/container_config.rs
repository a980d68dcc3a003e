//! The CRI config of a container.

use std::collections::{BTreeMap, HashMap};

use cri_proto::runtime::v1::{
    ContainerConfig, ContainerMetadata, Device, ImageSpec, KeyValue, LinuxContainerConfig, Mount,
    Signal,
};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kubelet_cri_client::labels;
use kubelet_image::ImageUser;
use kubelet_pod_spec::{
    expansion::{Expander, TooLong},
    stop_signal,
};

use super::{
    hash::container_hash,
    resources::{self, Rules},
    sandbox_config::identity_labels,
    security_context::{self, NodeSecurity, SecurityContextError},
};

/// The default path of the termination message.
pub(super) const TERMINATION_MESSAGE_PATH: &str = "/dev/termination-log";

/// Why a container's configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The security context does not allow it.
    #[error(transparent)]
    SecurityContext(#[from] SecurityContextError),
    /// The command and its arguments are too long.
    #[error("{field}: {source}")]
    TooLong {
        /// `command` or `args`.
        field: &'static str,
        /// The cause.
        source: TooLong,
    },
}

/// The parts of a container's config that are not in its spec.
#[derive(Debug)]
pub struct ContainerConfigInputs<'a> {
    /// Number of earlier restarts.
    pub restart_count: u32,
    /// The runtime's reference of the image.
    pub image_ref: String,
    /// The user of the image.
    pub image_user: ImageUser,
    /// Names and values of the environment variables.
    pub variables: Vec<(String, String)>,
    /// Mounts.
    pub mounts: Vec<Mount>,
    /// Devices.
    pub devices: Vec<Device>,
    /// The node's defaults for the security context.
    pub security: NodeSecurity<'a>,
    /// The options and machine properties that its resources depend on.
    pub rules: Rules<'a>,
}

/// The config of a container.
///
/// # Errors
/// See [`ConfigError`].
pub fn container_config(
    pod: &Pod,
    spec: &PodSpec,
    container: &Container,
    parts: ContainerConfigInputs<'_>,
) -> Result<ContainerConfig, ConfigError> {
    let variables = parts.variables.iter();
    let values: HashMap<&str, &str> = variables.map(|(name, value)| (&**name, &**value)).collect();
    let mut expander = Expander::default();
    let mut expanded = |list: &Option<Vec<String>>, field| -> Result<Vec<String>, ConfigError> {
        let items = list.iter().flatten();
        let expanded = items.map(|item| expander.expand(item, |name| values.get(name).copied()));
        let expanded: Result<_, TooLong> = expanded.collect();
        expanded.map_err(|source| ConfigError::TooLong { field, source })
    };
    let command = expanded(&container.command, "command")?;
    let args = expanded(&container.args, "args")?;
    let mut mounts = parts.mounts;
    let ids = &parts.security.user_namespace;
    for mount in &mut mounts {
        mount.uid_mappings.clone_from(&ids.uids);
        mount.gid_mappings.clone_from(&ids.gids);
    }
    let security_context = security_context::container_security_context(
        pod,
        spec,
        container,
        &parts.image_user,
        parts.security,
    )?;
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: container.name.clone(),
            attempt: parts.restart_count,
        }),
        image: Some(ImageSpec {
            image: parts.image_ref,
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..ImageSpec::default()
        }),
        command,
        args,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: parts
            .variables
            .into_iter()
            .map(|(key, value)| KeyValue {
                key,
                value: value.into_bytes(),
            })
            .collect(),
        mounts,
        devices: parts.devices,
        labels: container_labels(pod, container),
        annotations: container_annotations(pod, spec, container, parts.restart_count),
        log_path: format!("{}/{}.log", container.name, parts.restart_count),
        stdin: container.stdin.unwrap_or_default(),
        stdin_once: container.stdin_once.unwrap_or_default(),
        tty: container.tty.unwrap_or_default(),
        linux: Some(LinuxContainerConfig {
            resources: Some(resources::container_resources(pod, container, parts.rules)),
            security_context: Some(security_context),
        }),
        stop_signal: stop_signal(container).into(),
        ..ContainerConfig::default()
    })
}

/// The stop signal of the spec; the runtime's default if it is absent or unknown.
fn stop_signal(container: &Container) -> Signal {
    container
        .lifecycle
        .as_ref()
        .and_then(|lifecycle| lifecycle.stop_signal.as_deref())
        .and_then(stop_signal::parse)
        .unwrap_or(Signal::RuntimeDefault)
}

fn container_labels(pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    let name = (labels::CONTAINER_NAME.to_owned(), container.name.clone());
    identity_labels(pod).into_iter().chain([name]).collect()
}

fn container_annotations(
    pod: &Pod,
    spec: &PodSpec,
    container: &Container,
    restart_count: u32,
) -> BTreeMap<String, String> {
    let message_path = container.termination_message_path.as_deref();
    let message_policy = container.termination_message_policy.as_deref();
    let pre_stop = container
        .lifecycle
        .as_ref()
        .and_then(|lifecycle| lifecycle.pre_stop.as_ref())
        .and_then(|handler| serde_json::to_string(handler).ok());
    let ports = container
        .ports
        .as_ref()
        .filter(|ports| !ports.is_empty())
        .and_then(|ports| serde_json::to_string(ports).ok());
    let seconds = |seconds: Option<i64>| seconds.map(|seconds| seconds.to_string());
    [
        (
            labels::CONTAINER_HASH,
            Some(format!("{:x}", container_hash(container))),
        ),
        (
            labels::CONTAINER_RESTART_COUNT,
            Some(restart_count.to_string()),
        ),
        (
            labels::CONTAINER_RESOURCES,
            serde_json::to_string(&resources::effective(container.resources.as_ref(), spec)).ok(),
        ),
        (
            labels::CONTAINER_TERMINATION_MESSAGE_PATH,
            Some(message_path.unwrap_or(TERMINATION_MESSAGE_PATH).to_owned()),
        ),
        (
            labels::CONTAINER_TERMINATION_MESSAGE_POLICY,
            Some(message_policy.unwrap_or("File").to_owned()),
        ),
        (labels::CONTAINER_PRE_STOP_HANDLER, pre_stop),
        (labels::CONTAINER_PORTS, ports),
        (
            labels::POD_DELETION_GRACE_PERIOD,
            seconds(pod.metadata.deletion_grace_period_seconds),
        ),
        (
            labels::POD_TERMINATION_GRACE_PERIOD,
            seconds(spec.termination_grace_period_seconds),
        ),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key.to_owned(), value?)))
    .collect()
}

/// Whether the container's spec mounts a volume at `path`.
pub fn mounts_path(container: &Container, path: &str) -> bool {
    let mut mounts = container.volume_mounts.iter().flatten();
    mounts.any(|mount| mount.mount_path.trim_end_matches('/') == path)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use k8s_openapi::api::core::v1::{ExecAction, Lifecycle, LifecycleHandler};
    use kubelet_host::machine::Machine;

    use super::*;
    use crate::{resources::ResourceOptions, user_namespace};

    #[test]
    fn a_config_carries_what_a_later_kubelet_needs_to_know() {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".to_owned());
        pod.metadata.uid = Some("u".to_owned());
        let spec = PodSpec {
            termination_grace_period_seconds: Some(7),
            ..PodSpec::default()
        };
        let container = Container {
            name: "c".to_owned(),
            image: Some("image".to_owned()),
            command: Some(vec!["sh".to_owned(), "$(X)".to_owned()]),
            lifecycle: Some(Lifecycle {
                pre_stop: Some(LifecycleHandler {
                    exec: Some(ExecAction {
                        command: Some(vec!["stop".to_owned()]),
                    }),
                    ..LifecycleHandler::default()
                }),
                stop_signal: Some("SIGRTMIN+3".to_owned()),
                ..Lifecycle::default()
            }),
            ..Container::default()
        };
        let parts = ContainerConfigInputs {
            restart_count: 2,
            image_ref: "sha256:1".to_owned(),
            image_user: ImageUser::default(),
            variables: vec![("X".to_owned(), "y".to_owned())],
            mounts: vec![Mount::default()],
            devices: Vec::new(),
            security: NodeSecurity {
                seccomp_root: Path::new("/s"),
                seccomp_default: false,
                user_namespace: user_namespace::of_node(),
            },
            rules: Rules {
                options: ResourceOptions::default(),
                machine: &Machine::default(),
            },
        };
        let config = container_config(&pod, &spec, &container, parts).unwrap();
        assert_eq!(config.command, ["sh", "y"]);
        assert_eq!(config.log_path, "c/2.log");
        assert_eq!(config.annotations[labels::CONTAINER_RESTART_COUNT], "2");
        assert_eq!(
            config.annotations[labels::POD_TERMINATION_GRACE_PERIOD],
            "7"
        );
        assert_eq!(
            config.annotations[labels::CONTAINER_PRE_STOP_HANDLER],
            r#"{"exec":{"command":["stop"]}}"#
        );
        assert_eq!(config.mounts.len(), 1);
        assert_eq!(config.stop_signal(), Signal::Sigrtminplus3);
    }
}
