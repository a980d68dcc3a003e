//! Container logs: finds the log file of a container.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::PodStatus;
use kubelet_cri_client::pod_status::ContainerState;
use kubelet_logs::{LogError, LogOptions, LogParts};
use kubelet_pod_spec::identity::PodUid;

use super::{Kubelet, Shared};

impl Kubelet {
    /// The log of a container of a pod on this node.
    ///
    /// # Errors
    /// The pod, the container or its log does not exist, or the log cannot be read.
    pub async fn container_log(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        options: LogOptions,
    ) -> Result<LogParts, LogError> {
        let found = self
            .pod_manager()
            .get_by_full_name(&format!("{pod}_{namespace}"));
        let Some(found) = found else {
            return Err(LogError::NoPod(pod.to_owned()));
        };
        let status = self.statuses().get(&PodUid::of(&found));
        let status = match &status {
            Some(status) => Some(&**status),
            None => found.status.as_ref(),
        };
        let nothing = PodStatus::default();
        kubelet_logs::open(
            self.cri(),
            &found,
            container,
            status.unwrap_or(&nothing),
            options,
        )
        .await
    }
}

/// The IDs of running containers and their log paths, in upstream's layout.
pub(super) fn running_logs(parts: &Shared) -> impl Fn() -> Vec<(String, PathBuf)> + use<'_> {
    move || {
        let listing = parts.pleg.listing();
        let mut logs = Vec::new();
        for (uid, record) in &listing.records {
            let Ok(status) = parts.cache.get(uid) else {
                continue;
            };
            let dir = format!("{}_{}_{uid}", record.namespace, record.name);
            let running = status.containers.iter();
            for container in running.filter(|c| c.state == ContainerState::Running) {
                let path = parts
                    .local_node
                    .pod_logs_dir
                    .join(&dir)
                    .join(&container.name)
                    .join(format!("{}.log", container.restart_count));
                logs.push((container.id.clone(), path));
            }
        }
        logs
    }
}
