//! Starts one container.

use std::{
    collections::BTreeMap,
    fmt::Display,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cri_proto::runtime::v1::{
    self, ContainerConfig, ImageSpec, NamespaceMode, PodSandboxConfig, UserNamespace,
};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kubelet_api_client::events::{EventRecorder, Subject, reason};
use kubelet_cri_client::{
    CriError,
    pod_status::{ContainerStatus, PodStatus},
};
use kubelet_host::{file_work::FileWork, repeatable};
use kubelet_image::ImageError;
use kubelet_logs::links;
use kubelet_pod_spec::{directory, duration::GoDuration, field_ref::Placement, identity};
use kubelet_volume::{MountedVolumes, plugin::Mounted};
use tracing::{info, warn};

use super::{
    RuntimeManager,
    container_config::{ConfigError, Parts, container_config},
    env::{self, EnvError, Sources},
    hooks::{self, HookError},
    kill::Killing,
    mounts::{self, MountError, MountParts},
    pod_files::{self, FileError},
    pod_state::PodState,
    runtime_class::HandlerFeatures,
    security_context::NodeSecurity,
};

/// For a `postStart` command: it may take as long as it takes.
const POST_START_LIMIT: Duration = Duration::ZERO;

/// Why a container was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It ended too recently.
    #[error("back-off {delay} restarting failed container={container} pod={pod}")]
    CrashLoopBackOff {
        /// Its name.
        container: String,
        /// Its pod, as [`identity::name_with_uid`] writes it.
        pod: String,
        /// From its end to its next start.
        delay: GoDuration,
        /// What is left of that.
        retry_after: Duration,
    },
    /// It was started before, and what is known of the pod is older than that.
    #[error("container {0} is not listed yet")]
    Unlisted(String),
    /// Its image cannot be had.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Its environment cannot be made.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// It cannot have what it mounts.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// It is not known whether the runtime can do what a mount asks for.
    #[error("cannot tell what the runtime can do: {0}")]
    Features(#[source] CriError),
    /// It cannot be configured.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file that it needs cannot be made.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is to share the processes of a container that is not there.
    #[error("unable to find target container {0}")]
    Target(String),
    /// The runtime does not create it.
    #[error("{0}")]
    Create(CriError),
    /// The runtime does not start it.
    #[error("{0}")]
    Run(CriError),
    /// Its `postStart` hook failed, and it was stopped.
    #[error("{kind} lifecycle hook for Container {container:?} in Pod {pod:?} failed - {source}")]
    PostStart {
        /// What the hook does.
        kind: &'static str,
        /// Its name.
        container: String,
        /// Its pod, as [`identity::name_with_uid`] writes it.
        pod: String,
        /// Why it failed.
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
            | Self::Target(_) => "CreateContainerConfigError",
            Self::Create(_) => "CreateContainerError",
            Self::Run(_) => "RunContainerError",
            Self::PostStart { .. } => "PostStartHookError",
        }
    }

    /// Records it as an event about the container, unless that was done where it
    /// happened.
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
            | Self::Target(_) => failed(self),
            Self::Create(error) => failed(&error.words()),
            Self::Unlisted(_) | Self::Run(_) | Self::PostStart { .. } => {}
        }
    }

    /// Whether the start went further than to its own back-off.
    pub(super) const fn was_begun(&self) -> bool {
        !matches!(self, Self::CrashLoopBackOff { .. } | Self::Unlisted(_))
    }

    /// When this is a back-off: how long it still is.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::CrashLoopBackOff { retry_after, .. }
            | Self::Image(ImageError::BackOff { retry_after, .. }) => Some(*retry_after),
            _ => None,
        }
    }
}

/// What the containers of one sync share.
pub(super) struct Running<'a> {
    pub(super) pod: &'a Pod,
    pub(super) spec: &'a PodSpec,
    pub(super) sandbox_id: &'a str,
    pub(super) sandbox_config: &'a PodSandboxConfig,
    /// Addresses of the pod.
    pub(super) ips: &'a [String],
    pub(super) host_ips: &'a [String],
    pub(super) volumes: &'a MountedVolumes,
    pub(super) pod_dir: &'a Path,
    pub(super) user_namespace: UserNamespace,
    /// What the runtime calls the handler that runs the pod; empty for its default.
    pub(super) handler: &'a str,
}

impl RuntimeManager {
    /// Starts a container that does not run, unless it is backing off. `target` is
    /// the container whose processes it shares.
    ///
    /// # Errors
    /// See [`StartError`].
    pub(super) async fn start_container(
        &self,
        running: &Running<'_>,
        container: &Container,
        target: Option<&str>,
        status: &PodStatus,
        state: &PodState,
    ) -> Result<(), StartError> {
        let Running { pod, spec, .. } = *running;
        if let Some(id) = state.untold(&container.name, status) {
            // Its logs would count as those of an earlier run.
            match self.cri.container_status(&id).await {
                Err(error) if error.is_not_found() => {}
                _ => return Err(StartError::Unlisted(id)),
            }
        }
        state
            .attempt_start(container, status)
            .map_err(|crash_loop| StartError::CrashLoopBackOff {
                container: container.name.clone(),
                pod: identity::name_with_uid(pod),
                delay: GoDuration::whole_millis(crash_loop.delay),
                retry_after: crash_loop.remaining,
            })?;
        let image = self
            .images
            .ensure(
                pod,
                Some(&container.name),
                container.image.as_deref().unwrap_or_default(),
                container.image_pull_policy.as_deref(),
                running.sandbox_config,
                &state.pulls,
            )
            .await?;
        let log_dir = directory::log_dir(&self.node.pod_logs_dir, pod);
        let log_dir = pod_files::make_log_dir(&log_dir, &container.name).await?;
        let restart_count = match status.container(&container.name) {
            Some(last) => last.restart_count.saturating_add(1),
            None => pod_files::restart_count_from_logs(&log_dir).await,
        };
        let placement = Placement {
            node_name: &self.node.name,
            host_ips: running.host_ips,
            pod_ips: running.ips,
        };
        let sources = Sources {
            objects: self.objects(),
            volumes: running.volumes,
            machine: &self.machine,
            root_dir: &self.node.root_dir,
        };
        let variables = env::environment(pod, container, &placement, sources).await?;
        let mounts = Arc::new(MountParts {
            container: container.clone(),
            pod_dir: running.pod_dir.to_owned(),
            volumes: running.volumes.clone(),
            variables: variables.clone(),
            images: self.image_volumes(running, container, state).await?,
            recursive_read_only: self.has_recursive_read_only(running, container).await?,
            hosts_file: pod_files::make_hosts_file(
                pod,
                spec,
                container,
                running.ips,
                running.pod_dir,
                &self.options.dns.cluster_domain,
            )
            .await?,
            termination_message: pod_files::make_termination_message(
                running.pod_dir,
                container,
                restart_count,
            )
            .await?,
            file_work: FileWork::current(),
            selinux: self.node.selinux.clone(),
        });
        let devices = mounts::devices(container, running.volumes)?;
        let parts = Parts {
            restart_count,
            image_ref: image.id,
            image_user: image.user,
            variables,
            mounts: mounts.mounts(&mounts.bind_sub_paths().await?)?,
            devices,
            security: NodeSecurity {
                seccomp_root: &self.seccomp_root,
                seccomp_default: self.options.seccomp_default,
                user_namespace: running.user_namespace.clone(),
            },
            rules: self.rules(),
        };
        let mut config = container_config(pod, spec, container, parts)?;
        if let Some(target) = target {
            share_processes(&mut config, target, status)?;
        }
        let log = log_dir.join(format!("{restart_count}.log"));
        let linux = config.linux.as_mut();
        if let Some(context) = linux.and_then(|linux| linux.security_context.as_mut()) {
            let mut groups = running.volumes.extra_groups();
            groups.retain(|group| !context.supplemental_groups.contains(group));
            context.supplemental_groups.extend(groups);
        }
        let subject = Subject::Container(pod, &container.name);
        let id = self
            .cri
            .create_container(running.sandbox_id, config, running.sandbox_config.clone())
            .await
            .map_err(StartError::Create)?;
        state.created(&container.name, &id);
        self.events
            .normal(subject, reason::CREATED, "Container created");
        let started = self.cri.start_container(&id).await;
        if let Err(error) = started
            && !self.runs(&id).await
        {
            // Events that tell of one container after the other are not counted.
            let words = error.words().replace(&id, &container.name);
            self.events
                .warning(subject, reason::FAILED, format_args!("Error: {words}"));
            return Err(StartError::Run(error));
        }
        self.events
            .normal(subject, reason::STARTED, "Container started");
        info!(
            pod = identity::full_name(pod), pod_uid = pod.metadata.uid,
            container = %container.name, container_id = %id, restart_count, "started container"
        );
        self.link_log(pod, container, &id, log).await;
        self.post_start(running, container, id).await
    }

    /// Whether a container runs, as one does whose start was not confirmed: its hook is to run
    /// too.
    async fn runs(&self, id: &str) -> bool {
        let status = self.cri.container_status(id).await;
        status.is_ok_and(|status| status.state() == v1::ContainerState::ContainerRunning)
    }

    /// Links to the log of a container that was started, for log agents.
    async fn link_log(&self, pod: &Pod, container: &Container, id: &str, log: PathBuf) {
        let Some(dir) = &self.node.container_logs_dir else {
            return;
        };
        let (name, namespace) = (identity::name(pod), identity::namespace(pod));
        let link = links::link_path(dir, name, namespace, &container.name, id);
        if let Err(error) = repeatable::blocking(move || links::make(&link, &log)).await {
            warn!(pod = identity::full_name(pod), %error, "linking to a log failed");
        }
    }

    /// The images that a container mounts, by the names of their volumes, pulled as their
    /// policies say.
    async fn image_volumes(
        &self,
        running: &Running<'_>,
        container: &Container,
        state: &PodState,
    ) -> Result<BTreeMap<String, ImageSpec>, ImageError> {
        let mut images = BTreeMap::new();
        for mount in container.volume_mounts.iter().flatten() {
            let volume = running.volumes.get(&mount.name);
            let volume = volume.filter(|volume| volume.mounted == Mounted::Image);
            let source = volume.and_then(|v| v.spec.inline()?.image.as_ref());
            let Some(source) = source else {
                continue;
            };
            let reference = source.reference.as_deref().unwrap_or_default();
            let image = self
                .images
                .ensure(
                    running.pod,
                    None,
                    reference,
                    source.pull_policy.as_deref(),
                    running.sandbox_config,
                    &state.pulls,
                )
                .await?;
            let image = ImageSpec {
                image: image.id,
                user_specified_image: reference.to_owned(),
                annotations: running.pod.metadata.annotations.clone().unwrap_or_default(),
                ..ImageSpec::default()
            };
            images.insert(mount.name.clone(), image);
        }
        Ok(images)
    }

    /// Whether the runtime makes mounts read-only with all below them. It is asked only when
    /// that matters.
    async fn has_recursive_read_only(
        &self,
        running: &Running<'_>,
        container: &Container,
    ) -> Result<bool, StartError> {
        let mut mounts = container.volume_mounts.iter().flatten();
        if mounts.all(|mount| mount.recursive_read_only.is_none()) {
            return Ok(false);
        }
        let features = self.handler_features(running.handler).await;
        Ok(match features.map_err(StartError::Features)? {
            HandlerFeatures::Known(features) => features.recursive_read_only_mounts,
            HandlerFeatures::Untold | HandlerFeatures::UnknownHandler => false,
        })
    }

    async fn post_start(
        &self,
        running: &Running<'_>,
        container: &Container,
        id: String,
    ) -> Result<(), StartError> {
        let lifecycle = container.lifecycle.as_ref();
        let Some(hook) = lifecycle.and_then(|lifecycle| lifecycle.post_start.as_ref()) else {
            return Ok(());
        };
        let ip = running.ips.first().map(String::as_str);
        let run = hooks::run(&self.cri, &id, Some(container), ip, hook, POST_START_LIMIT);
        let Err(source) = run.await else {
            return Ok(());
        };
        // What failed may be secret.
        self.events.warning(
            Subject::Container(running.pod, &container.name),
            reason::FAILED_POST_START_HOOK,
            "PostStartHook failed",
        );
        let status = ContainerStatus::started(id, container.name.clone());
        let killing = Killing::new(Some(running.pod), ip, "FailedPostStartHook");
        if let Err(error) = self.kill_container(&status, killing).await {
            warn!(
                pod = identity::full_name(running.pod), container = %container.name, %error,
                "a container whose postStart hook failed still runs"
            );
        }
        Err(StartError::PostStart {
            kind: hooks::kind(hook),
            container: container.name.clone(),
            pod: identity::name_with_uid(running.pod),
            source: Box::new(source),
        })
    }
}

/// Has a container share the processes of `target`, where it had its own alone.
fn share_processes(
    config: &mut ContainerConfig,
    target: &str,
    status: &PodStatus,
) -> Result<(), StartError> {
    let target = status
        .container(target)
        .ok_or_else(|| StartError::Target(target.to_owned()))?;
    let context = config
        .linux
        .as_mut()
        .and_then(|l| l.security_context.as_mut());
    if let Some(options) = context.and_then(|context| context.namespace_options.as_mut())
        && options.pid() == NamespaceMode::Container
    {
        options.set_pid(NamespaceMode::Target);
        options.target_id.clone_from(&target.id);
    }
    Ok(())
}
