//! Removal of dead containers and sandboxes.

use std::{collections::HashSet, io, path::Path};

use k8s_openapi::api::core::v1::Pod;
use kubelet_cri_client::{
    CriError,
    pod_status::{ContainerState, ContainerStatus, PodStatus, SandboxStatus},
};
use kubelet_host::repeatable;
use kubelet_pod_spec::directory;
use tracing::{debug, info, warn};

use super::RuntimeManager;

/// The dead containers to remove: all but the newest dead one of each name.
fn superfluous_containers(status: &PodStatus) -> Vec<&ContainerStatus> {
    let mut kept = HashSet::new();
    status
        .containers
        .iter()
        .filter(|c| matches!(c.state, ContainerState::Exited | ContainerState::Created))
        .filter(|c| !kept.insert(c.name.as_str()))
        .collect()
}

/// The dead sandboxes to remove: all without containers except the newest.
fn superfluous_sandboxes<'a>(
    status: &'a PodStatus,
    removed: &[&ContainerStatus],
) -> impl Iterator<Item = &'a SandboxStatus> {
    let used: HashSet<&str> = status
        .containers
        .iter()
        .filter(|c| !removed.iter().any(|removed| removed.id == c.id))
        .map(|c| c.sandbox_id.as_str())
        .collect();
    status
        .sandboxes
        .iter()
        .skip(1)
        .filter(move |s| !s.ready && !used.contains(s.id.as_str()))
}

impl RuntimeManager {
    /// Removes dead containers and sandboxes of a running pod. The last dead container of each name
    /// is kept, because the status reports it. Errors are ignored until the next call. Returns
    /// whether anything was removed.
    pub(super) async fn prune(&self, pod: &Pod, status: &PodStatus) -> bool {
        let containers = superfluous_containers(status);
        let log_dir = directory::log_dir(&self.node.pod_logs_dir, pod);
        let mut pruned = false;
        for container in &containers {
            match self.remove_container(container, &log_dir).await {
                Ok(()) => pruned = true,
                Err(error) => warn!(
                    container = %container.name, %error,
                    "cannot remove a dead container"
                ),
            }
        }
        for sandbox in superfluous_sandboxes(status, &containers) {
            match self.cri.remove_pod_sandbox(&sandbox.id).await {
                Ok(()) => pruned = true,
                Err(error) => warn!(
                    sandbox_id = %sandbox.id, %error,
                    "cannot remove a dead sandbox"
                ),
            }
        }
        pruned
    }

    /// Removes all containers selected by `names`, which are dead, so that they run again in a new
    /// sandbox.
    ///
    /// # Errors
    /// A container could not be removed.
    pub(super) async fn purge(
        &self,
        pod: &Pod,
        status: &PodStatus,
        names: impl Fn(&str) -> bool,
    ) -> Result<(), CriError> {
        let log_dir = directory::log_dir(&self.node.pod_logs_dir, pod);
        for container in status.containers.iter().filter(|c| names(&c.name)) {
            self.remove_container(container, &log_dir).await?;
        }
        Ok(())
    }

    /// Removes all containers and sandboxes of a killed pod.
    ///
    /// # Errors
    /// A container or sandbox could not be removed.
    pub async fn remove_pod(&self, status: &PodStatus) -> Result<(), CriError> {
        for container in &status.containers {
            self.cri.remove_container(&container.id).await?;
        }
        for sandbox in &status.sandboxes {
            self.cri.remove_pod_sandbox(&sandbox.id).await?;
            info!(sandbox_id = %sandbox.id, "removed sandbox");
        }
        Ok(())
    }

    async fn remove_container(
        &self,
        container: &ContainerStatus,
        log_dir: &Path,
    ) -> Result<(), CriError> {
        self.cri.remove_container(&container.id).await?;
        let log = log_dir
            .join(&container.name)
            .join(format!("{}.log", container.restart_count));
        let path = log.clone();
        let removed = repeatable::blocking(move || kubelet_logs::remove_logs(&path)).await;
        if let Err(error) = removed.map_err(io::Error::other).flatten() {
            debug!(path = %log.display(), %error, "cannot remove the log of a removed container");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kubelet_cri_client::pod_status::Reported;

    use super::*;

    fn container(id: &str, name: &str, sandbox: &str, state: ContainerState) -> ContainerStatus {
        ContainerStatus {
            id: id.to_owned(),
            name: name.to_owned(),
            sandbox_id: sandbox.to_owned(),
            state,
            created_at: 0,
            started_at: 0,
            finished_at: 0,
            exit_code: 0,
            image: String::new(),
            image_ref: String::new(),
            hash: None,
            restart_count: 0,
            reason: String::new(),
            message: String::new(),
            reported: Reported::default(),
        }
    }

    #[test]
    fn the_last_dead_container_and_what_it_needs_stay() {
        let sandbox = |id: &str, ready| SandboxStatus {
            id: id.to_owned(),
            attempt: 0,
            ready,
            created_at: 0,
            host_network: false,
            ips: Vec::new(),
        };
        let status = PodStatus {
            sandboxes: vec![
                sandbox("s3", true),
                sandbox("s2", false),
                sandbox("s1", false),
            ],
            containers: vec![
                container("a3", "a", "s3", ContainerState::Running),
                container("a2", "a", "s2", ContainerState::Exited),
                container("a1", "a", "s1", ContainerState::Exited),
            ],
        };
        let containers = superfluous_containers(&status);
        assert_eq!(containers.len(), 1);
        assert_eq!(containers[0].id, "a1");
        let sandboxes: Vec<_> = superfluous_sandboxes(&status, &containers).collect();
        assert_eq!(sandboxes.len(), 1);
        assert_eq!(sandboxes[0].id, "s1");
    }
}
