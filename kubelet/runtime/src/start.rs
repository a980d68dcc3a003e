//! Starts a container.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cri_proto::runtime::v1::{
    self, ContainerConfig, ImageSpec, NamespaceMode, PodSandboxConfig, UserNamespace,
};
use go_duration::GoDuration;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kubelet_api_client::events::{Subject, reason};
use kubelet_cri_client::pod_status::{ContainerStatus, PodStatus};
use kubelet_host::{file_work::FileWork, repeatable};
use kubelet_image::{ImageError, PresentImage};
use kubelet_logs::links;
use kubelet_pod_spec::{directory, field_ref::Placement, identity};
use kubelet_volume::{MountedVolumes, plugin::Mounted};
use tracing::{info, warn};

use super::{
    RuntimeManager,
    container_config::{ContainerConfigInputs, container_config},
    env::{self, EnvSources},
    hooks,
    kill::KillOptions,
    mounts::{self, MountParts},
    pod_files,
    pod_state::PodState,
    runtime_class::HandlerFeatures,
    security_context::NodeSecurity,
    start_error::StartError,
};

/// Time limit of `postStart` commands and requests: none.
const POST_START_LIMIT: Duration = Duration::ZERO;

/// What the container starts of one sync have in common.
pub(super) struct PodStartContext<'a> {
    pub(super) pod: &'a Pod,
    pub(super) spec: &'a PodSpec,
    pub(super) status: &'a PodStatus,
    pub(super) state: &'a PodState,
    pub(super) sandbox_id: &'a str,
    pub(super) sandbox_config: &'a PodSandboxConfig,
    /// IP addresses of the pod.
    pub(super) ips: &'a [String],
    pub(super) host_ips: &'a [String],
    pub(super) volumes: &'a MountedVolumes,
    pub(super) pod_dir: &'a Path,
    pub(super) user_namespace: UserNamespace,
    /// The runtime handler of the pod; empty for the runtime's default.
    pub(super) handler: &'a str,
}

impl RuntimeManager {
    /// Starts a container that is not running, unless it is in back-off. `target` is the container
    /// whose PID namespace it joins.
    ///
    /// # Errors
    /// See [`StartError`].
    pub(super) async fn start_container(
        &self,
        pod_context: &PodStartContext<'_>,
        container: &Container,
        target: Option<&str>,
    ) -> Result<(), StartError> {
        let PodStartContext {
            pod, status, state, ..
        } = *pod_context;
        self.attempt_start(pod_context, container).await?;
        let image = self
            .images
            .ensure(
                pod,
                Some(&container.name),
                container.image.as_deref().unwrap_or_default(),
                container.image_pull_policy.as_deref(),
                pod_context.sandbox_config,
                &state.pulls,
            )
            .await?;
        let log_dir = directory::log_dir(&self.node.pod_logs_dir, pod);
        let log_dir = pod_files::make_log_dir(&log_dir, &container.name).await?;
        let restart_count = match status.container(&container.name) {
            Some(last) => last.restart_count.saturating_add(1),
            None => pod_files::restart_count_from_logs(&log_dir).await,
        };
        let mut config = self
            .container_config(pod_context, container, image, restart_count)
            .await?;
        if let Some(target) = target {
            share_processes(&mut config, target, status)?;
        }
        let id = self
            .create_and_start(pod_context, container, config)
            .await?;
        info!(
            container = %container.name, container_id = %id, restart_count, "started container"
        );
        let log = log_dir.join(format!("{restart_count}.log"));
        self.link_log(pod, container, &id, log).await;
        self.post_start(pod_context, container, id).await
    }

    /// Begins an attempt, unless the container is in back-off or was created since the pod status
    /// was read.
    async fn attempt_start(
        &self,
        pod_context: &PodStartContext<'_>,
        container: &Container,
    ) -> Result<(), StartError> {
        let PodStartContext {
            pod, status, state, ..
        } = *pod_context;
        if let Some(id) = state.unlisted_container(&container.name, status) {
            // The log files of the unlisted container would be counted as an earlier run.
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
            })
    }

    /// The container's config. Provides what it refers to: the environment, mounts and the
    /// kubelet's files for the container.
    async fn container_config(
        &self,
        pod_context: &PodStartContext<'_>,
        container: &Container,
        image: PresentImage,
        restart_count: u32,
    ) -> Result<ContainerConfig, StartError> {
        let PodStartContext { pod, spec, .. } = *pod_context;
        let placement = Placement {
            node_name: &self.node.name,
            host_ips: pod_context.host_ips,
            pod_ips: pod_context.ips,
        };
        let sources = EnvSources {
            objects: self.objects(),
            volumes: pod_context.volumes,
            allocatable: &self.allocatable,
        };
        let variables = env::environment(pod, container, &placement, sources).await?;
        let mounts = Arc::new(MountParts {
            container: container.clone(),
            pod_dir: pod_context.pod_dir.to_owned(),
            volumes: pod_context.volumes.clone(),
            variables: variables.clone(),
            images: self.image_volumes(pod_context, container).await?,
            recursive_read_only: self.has_recursive_read_only(pod_context, container).await?,
            hosts_file: pod_files::make_hosts_file(
                pod,
                spec,
                container,
                pod_context.ips,
                pod_context.pod_dir,
                &self.options.dns.cluster_domain,
            )
            .await?,
            termination_message: pod_files::make_termination_message(
                pod_context.pod_dir,
                container,
                restart_count,
            )
            .await?,
            file_work: FileWork::current(),
            selinux: self.node.selinux.clone(),
        });
        let devices = mounts::devices(container, pod_context.volumes)?;
        let parts = ContainerConfigInputs {
            restart_count,
            image_ref: image.id,
            image_user: image.user,
            variables,
            mounts: mounts.mounts(&mounts.bind_sub_paths().await?)?,
            devices,
            security: NodeSecurity {
                seccomp_root: &self.seccomp_root,
                seccomp_default: self.options.seccomp_default,
                user_namespace: pod_context.user_namespace.clone(),
            },
            rules: self.rules_of(pod, &container.name),
        };
        let mut config = container_config(pod, spec, container, parts)?;
        self.pin(pod, &container.name, &mut config);
        self.add_devices(pod, container, &mut config).await?;
        let linux = config.linux.as_mut();
        if let Some(context) = linux.and_then(|linux| linux.security_context.as_mut()) {
            let mut groups = pod_context.volumes.extra_groups();
            groups.retain(|group| !context.supplemental_groups.contains(group));
            context.supplemental_groups.extend(groups);
        }
        Ok(config)
    }

    /// Creates the container, starts it, and returns its ID.
    async fn create_and_start(
        &self,
        pod_context: &PodStartContext<'_>,
        container: &Container,
        config: ContainerConfig,
    ) -> Result<String, StartError> {
        let PodStartContext { pod, .. } = *pod_context;
        let subject = Subject::Container(pod, &container.name);
        // A restarted kubelet must not give them to another container.
        let saved = self.managers.save().await;
        saved.map_err(StartError::SaveResources)?;
        let linux = config.linux.as_ref().and_then(|it| it.resources.as_ref());
        let cpus = linux.map_or_else(String::new, |linux| linux.cpuset_cpus.clone());
        let id = self
            .cri
            .create_container(
                pod_context.sandbox_id,
                config,
                pod_context.sandbox_config.clone(),
            )
            .await
            .map_err(StartError::Create)?;
        pod_context.state.created(&container.name, &id);
        self.managers.container_starts(pod, &container.name);
        self.events
            .normal(subject, reason::CREATED, "Container created");
        let started = self.cri.start_container(&id).await;
        if let Err(error) = started
            && !self.runs(&id).await
        {
            // The name replaces the ID, because events with different IDs are not aggregated.
            let words = error.words().replace(&id, &container.name);
            self.events
                .warning(subject, reason::FAILED, format_args!("Error: {words}"));
            return Err(StartError::Run(error));
        }
        self.created_on(pod, &container.name, &id, cpus).await;
        self.events
            .normal(subject, reason::STARTED, "Container started");
        Ok(id)
    }

    /// Whether a container is running. It may be although the start call failed, and then its hook
    /// has to run.
    async fn runs(&self, id: &str) -> bool {
        let status = self.cri.container_status(id).await;
        status.is_ok_and(|status| status.state() == v1::ContainerState::ContainerRunning)
    }

    /// Creates the symlink to the log of a started container, for log agents.
    async fn link_log(&self, pod: &Pod, container: &Container, id: &str, log: PathBuf) {
        let Some(dir) = &self.node.container_logs_dir else {
            return;
        };
        let (name, namespace) = (identity::name(pod), identity::namespace(pod));
        let link = links::link_path(dir, name, namespace, &container.name, id);
        if let Err(error) = repeatable::blocking(move || links::make(&link, &log)).await {
            warn!(%error, "cannot create the symlink to a container log");
        }
    }

    /// Pulls the images of the image volumes that a container mounts, by their pull policies. Keyed
    /// by volume name.
    async fn image_volumes(
        &self,
        pod_context: &PodStartContext<'_>,
        container: &Container,
    ) -> Result<BTreeMap<String, ImageSpec>, ImageError> {
        let mut images = BTreeMap::new();
        for mount in container.volume_mounts.iter().flatten() {
            let volume = pod_context.volumes.get(&mount.name);
            let volume = volume.filter(|volume| volume.mounted == Mounted::Image);
            let source = volume.and_then(|v| v.spec.inline()?.image.as_ref());
            let Some(source) = source else {
                continue;
            };
            let reference = source.reference.as_deref().unwrap_or_default();
            let image = self
                .images
                .ensure(
                    pod_context.pod,
                    None,
                    reference,
                    source.pull_policy.as_deref(),
                    pod_context.sandbox_config,
                    &pod_context.state.pulls,
                )
                .await?;
            let image = ImageSpec {
                image: image.id,
                user_specified_image: reference.to_owned(),
                annotations: pod_context
                    .pod
                    .metadata
                    .annotations
                    .clone()
                    .unwrap_or_default(),
                ..ImageSpec::default()
            };
            images.insert(mount.name.clone(), image);
        }
        Ok(images)
    }

    /// Whether the runtime supports recursive read-only mounts. The runtime is queried only if a
    /// mount needs to know.
    async fn has_recursive_read_only(
        &self,
        pod_context: &PodStartContext<'_>,
        container: &Container,
    ) -> Result<bool, StartError> {
        let mut mounts = container.volume_mounts.iter().flatten();
        if mounts.all(|mount| mount.recursive_read_only.is_none()) {
            return Ok(false);
        }
        let features = self.handler_features(pod_context.handler).await;
        Ok(match features.map_err(StartError::Features)? {
            HandlerFeatures::Known(features) => features.recursive_read_only_mounts,
            HandlerFeatures::NotReported | HandlerFeatures::UnknownHandler => false,
        })
    }

    async fn post_start(
        &self,
        pod_context: &PodStartContext<'_>,
        container: &Container,
        id: String,
    ) -> Result<(), StartError> {
        let lifecycle = container.lifecycle.as_ref();
        let Some(hook) = lifecycle.and_then(|lifecycle| lifecycle.post_start.as_ref()) else {
            return Ok(());
        };
        let ip = pod_context.ips.first().map(String::as_str);
        let run = hooks::run(
            &self.cri,
            &id,
            Some(container),
            ip,
            hook,
            POST_START_LIMIT,
            &self.hooks,
        );
        let source = match run.await {
            Ok(success) => {
                success.record(&self.events, pod_context.pod);
                return Ok(());
            }
            Err(source) => source,
        };
        // The error may contain secrets.
        self.events.warning(
            Subject::Container(pod_context.pod, &container.name),
            reason::FAILED_POST_START_HOOK,
            "PostStartHook failed",
        );
        let status = ContainerStatus::started(id, container.name.clone());
        let killing = KillOptions::new(Some(pod_context.pod), ip, "FailedPostStartHook");
        if let Err(error) = self.kill_container(&status, killing).await {
            warn!(
                container = %container.name, %error,
                "cannot kill a container after its postStart hook failed"
            );
        }
        Err(StartError::PostStart {
            kind: hooks::kind(hook),
            container: container.name.clone(),
            pod: identity::name_with_uid(pod_context.pod),
            source: Box::new(source),
        })
    }
}

/// Makes a container join the PID namespace of `target`, unless it shares one already.
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
