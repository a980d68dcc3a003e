//! The sandbox of a sync.

use std::{fmt::Display, path::Path};

use cri_proto::runtime::v1::{PodSandboxConfig, UserNamespace};
use k8s_openapi::api::core::v1::Pod;
use kubelet_api_client::events::{Subject, reason};
use kubelet_cri_client::pod_status::SandboxStatus;
use kubelet_host::files;
use kubelet_pod_spec::pod_ips;
use tracing::{info, warn};

use super::{PodSyncResult, SyncContext, SyncError};
use crate::{
    RuntimeManager,
    actions::PodActions,
    dns,
    runtime_class::HandlerFeatures,
    sandbox_config::{self, sandbox_config},
    user_namespace::{self, UserNamespaceError},
};

/// The sandbox that a sync starts containers in.
pub(super) struct Sandbox {
    pub(super) id: String,
    /// Its IP addresses, the node's first IP family first.
    pub(super) ips: Vec<String>,
    pub(super) config: PodSandboxConfig,
    /// The runtime handler; empty for the runtime's default.
    pub(super) handler: String,
}

impl Sandbox {
    /// The user namespace of its containers.
    pub(super) fn user_namespace(&self) -> UserNamespace {
        let linux = self.config.linux.as_ref();
        linux
            .and_then(|linux| linux.security_context.as_ref())
            .and_then(|context| context.namespace_options.as_ref())
            .and_then(|options| options.userns_options.clone())
            .unwrap_or_else(user_namespace::of_node)
    }
}

impl RuntimeManager {
    /// The pod's sandbox: the one that the actions keep, or else a new one.
    pub(super) async fn sandbox(
        &self,
        context: SyncContext<'_>,
        actions: &PodActions,
        attempt: u32,
        synced: &mut PodSyncResult,
    ) -> Result<Sandbox, SyncError> {
        let SyncContext {
            pod, spec, status, ..
        } = context;
        let is_new = actions.create_sandbox.is_some();
        let (config, handler) = self
            .sandbox_config(context, attempt, is_new)
            .await
            .inspect_err(|error| {
                context.wait_for_sandbox(error);
                if is_new {
                    self.sandbox_failed(pod, error);
                }
            })?;
        let created;
        let (id, ips) = match (&actions.create_sandbox, &actions.sandbox_id) {
            (None, Some(id)) => (id.as_str(), status.ips()),
            _ => {
                self.prepare_claims(pod)
                    .await
                    .inspect_err(|error| context.wait_for_sandbox(error))?;
                synced.changed = true;
                created = self
                    .create_sandbox(context, &config, &handler)
                    .await
                    .inspect_err(|error| context.wait_for_sandbox(error))?;
                self.made_sandbox(pod, spec);
                context.state.made_sandbox();
                context.clear_waiting();
                (created.id.as_str(), created.ips.as_slice())
            }
        };
        Ok(Sandbox {
            id: id.to_owned(),
            ips: pod_ips::by_family(ips, self.host_ips.given()),
            config,
            handler,
        })
    }

    /// Has the devices of the pod's claims prepared.
    async fn prepare_claims(&self, pod: &Pod) -> Result<(), SyncError> {
        let prepared = self.dra.prepare(pod).await.map_err(SyncError::Claims);
        prepared.inspect_err(|error| {
            self.events.warning(
                Subject::Pod(pod),
                reason::FAILED_PREPARE_DYNAMIC_RESOURCES,
                format_args!("Failed to prepare dynamic resources: {error}"),
            );
        })
    }

    /// The config of the pod's sandbox, and the runtime handler.
    async fn sandbox_config(
        &self,
        context: SyncContext<'_>,
        attempt: u32,
        is_new: bool,
    ) -> Result<(PodSandboxConfig, String), SyncError> {
        let SyncContext {
            pod, spec, pod_dir, ..
        } = context;
        let handler = self.runtime_handler(spec).await?;
        let user_namespace = if spec.host_users == Some(false) {
            self.check_user_namespaces(&handler).await?;
            self.user_namespaces
                .get_or_create(pod_dir, self.options.user_namespaces)
                .await?
        } else {
            user_namespace::of_node()
        };
        let parts = sandbox_config::SandboxConfigInputs {
            attempt,
            cgroup_parent: self.cgroups.parent_of_containers(pod)?,
            dns: dns::dns_config(
                pod,
                &self.options.dns,
                self.host_ips.given(),
                is_new.then_some(&self.events),
            )
            .await?,
            user_namespace,
            rules: self.rules(),
            cluster_domain: &self.options.dns.cluster_domain,
            pod_logs_dir: &self.node.pod_logs_dir,
        };
        Ok((sandbox_config(pod, spec, parts)?, handler))
    }

    /// Checks that the handler supports user namespaces.
    async fn check_user_namespaces(&self, handler: &str) -> Result<(), SyncError> {
        let features = self.handler_features(handler).await;
        let handler = handler.to_owned();
        match features.map_err(SyncError::Features)? {
            HandlerFeatures::Known(features) if features.user_namespaces => Ok(()),
            HandlerFeatures::UnknownHandler => {
                Err(UserNamespaceError::UnknownHandler(handler).into())
            }
            HandlerFeatures::Known(_) | HandlerFeatures::NotReported => {
                Err(UserNamespaceError::Unsupported(handler).into())
            }
        }
    }

    async fn create_sandbox(
        &self,
        context: SyncContext<'_>,
        config: &PodSandboxConfig,
        handler: &str,
    ) -> Result<SandboxStatus, SyncError> {
        let SyncContext {
            pod, spec, status, ..
        } = context;
        let is_init = |name: &str| {
            spec.init_containers
                .iter()
                .flatten()
                .any(|c| c.name == name)
        };
        self.purge(pod, status, is_init)
            .await
            .map_err(SyncError::Purge)?;
        // The runtime creates log files below it.
        if let Err(error) = files::create_dir_all(Path::new(&config.log_directory)).await {
            warn!(path = config.log_directory, %error, "cannot create the pod's log directory");
        }
        let id = self
            .cri
            .run_pod_sandbox(config.clone(), handler)
            .await
            .inspect_err(|error| self.sandbox_failed(pod, &error.go_text()))
            .map_err(SyncError::Sandbox)?;
        info!(sandbox_id = %id, "started sandbox");
        let status = self.cri.pod_sandbox_status(&id).await;
        let status = status.inspect_err(|error| {
            let error = error.go_text();
            self.events.warning(
                Subject::Pod(pod),
                reason::FAILED_POD_SANDBOX_STATUS,
                format_args!("Unable to get pod sandbox status: {error}"),
            );
        });
        status.map(SandboxStatus::from).map_err(SyncError::Sandbox)
    }

    fn sandbox_failed(&self, pod: &Pod, error: &dyn Display) {
        self.metrics.pod_failed(pod.spec.as_ref());
        self.events.warning(
            Subject::Pod(pod),
            reason::FAILED_CREATE_POD_SANDBOX,
            format_args!("Failed to create pod sandbox: {error}"),
        );
    }
}
