//! Why a container was not started, with the reason that the pod's status shows.

use std::{fmt::Display, io, time::Duration};

use go_duration::GoDuration;
use k8s_openapi::api::core::v1::Pod;
use kubelet_api_client::events::{EventRecorder, Subject, reason};
use kubelet_cri_client::CriError;
use kubelet_dra_manager::DraError;
use kubelet_image::ImageError;
use kubelet_resource_managers::AdmissionError;

use super::{
    container_config::ConfigError, env::EnvError, hooks::HookError, mounts::MountError,
    pod_files::FileError,
};

/// Why a container was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The container is in crash-loop back-off.
    #[error("back-off {delay} restarting failed container={container} pod={pod}")]
    CrashLoopBackOff {
        /// Name of the container.
        container: String,
        /// The pod, as [`name_with_uid`](kubelet_pod_spec::identity::name_with_uid) formats it.
        pod: String,
        /// The delay between its exit and its next start.
        delay: GoDuration,
        /// The rest of the delay.
        retry_after: Duration,
    },
    /// The container was created before, but the pod status is older than that.
    #[error("container {0} was created, but is not listed yet")]
    Unlisted(String),
    /// The image could not be provided.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The environment could not be determined.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// A mount or device could not be provided.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The runtime did not report whether it supports a feature that a mount needs.
    #[error("cannot get the features of the runtime: {0}")]
    Features(#[source] CriError),
    /// The container's configuration is not allowed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file of the kubelet for the container could not be created.
    #[error(transparent)]
    File(#[from] FileError),
    /// The container does not get its devices.
    #[error(transparent)]
    Devices(AdmissionError),
    /// The container does not get the devices of its claims.
    #[error(transparent)]
    Claims(DraError),
    /// What the container has for itself could not be saved.
    #[error("cannot save which CPUs, memory and devices containers have: {0}")]
    SaveResources(#[source] io::Error),
    /// The target container, whose PID namespace it joins, does not exist.
    #[error("unable to find target container {0}")]
    Target(String),
    /// The runtime failed to create the container.
    #[error("{0}")]
    Create(CriError),
    /// The runtime failed to start the container.
    #[error("{0}")]
    Run(CriError),
    /// The `postStart` hook failed, and the container was stopped.
    #[error("{kind} lifecycle hook for Container {container:?} in Pod {pod:?} failed - {source}")]
    PostStart {
        /// The type of the hook's action.
        kind: &'static str,
        /// Name of the container.
        container: String,
        /// The pod, as [`name_with_uid`](kubelet_pod_spec::identity::name_with_uid) formats it.
        pod: String,
        /// The error.
        source: Box<HookError>,
    },
}

impl StartError {
    /// The reason of the container's waiting state.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::CrashLoopBackOff { .. } => "CrashLoopBackOff",
            Self::Unlisted(_) => "ContainerCreating",
            Self::Image(error) => error.reason(),
            Self::Env(_)
            | Self::Mount(_)
            | Self::Features(_)
            | Self::Config(_)
            | Self::File(_)
            | Self::Devices(_)
            | Self::Claims(_)
            | Self::SaveResources(_)
            | Self::Target(_) => "CreateContainerConfigError",
            Self::Create(_) => "CreateContainerError",
            Self::Run(_) => "RunContainerError",
            Self::PostStart { .. } => "PostStartHookError",
        }
    }

    /// Records an event about the container. Errors whose event was recorded where they occurred
    /// are skipped, and so is [`Unlisted`](Self::Unlisted).
    pub(super) fn record(&self, events: &EventRecorder, pod: &Pod, container: &str) {
        let subject = Subject::Container(pod, container);
        let failed = |why: &dyn Display| {
            events.warning(subject, reason::FAILED, format_args!("Error: {why}"));
        };
        match self {
            Self::CrashLoopBackOff { pod, .. } => events.warning(
                subject,
                reason::BACK_OFF,
                format_args!("Back-off restarting failed container {container} in pod {pod}"),
            ),
            Self::Image(error) => failed(&error.summary()),
            Self::Env(_)
            | Self::Mount(_)
            | Self::Features(_)
            | Self::Config(_)
            | Self::File(_)
            | Self::Devices(_)
            | Self::Claims(_)
            | Self::SaveResources(_)
            | Self::Target(_) => failed(self),
            Self::Create(error) => failed(&error.words()),
            Self::Unlisted(_) | Self::Run(_) | Self::PostStart { .. } => {}
        }
    }

    /// Whether a start was attempted: the container was not in crash-loop back-off, and the pod
    /// status was current.
    pub(super) const fn was_begun(&self) -> bool {
        !matches!(self, Self::CrashLoopBackOff { .. } | Self::Unlisted(_))
    }

    /// The rest of the delay, if this is a back-off.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::CrashLoopBackOff { retry_after, .. }
            | Self::Image(ImageError::BackOff { retry_after, .. }) => Some(*retry_after),
            _ => None,
        }
    }
}
