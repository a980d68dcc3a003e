//! Files of the kubelet for the containers of a pod.

use std::{
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kubelet_host::files;
use kubelet_pod_spec::directory;

use super::{
    container_config,
    hostname::{self, HostnameError},
};

/// Why a file could not be created.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// File system error.
    #[error("cannot {action} {path:?}: {source}")]
    Io {
        /// The operation.
        action: &'static str,
        /// Its path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The pod has no valid hostname for the hosts file.
    #[error(transparent)]
    Hostname(#[from] HostnameError),
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError::Io {
        action,
        path,
        source,
    }
}

/// Creates the log directory of a container, which the runtime expects to exist.
///
/// # Errors
/// File system error.
pub(crate) async fn make_log_dir(log_dir: &Path, container: &str) -> Result<PathBuf, FileError> {
    let path = log_dir.join(container);
    files::create_dir_all(&path)
        .await
        .map_err(failed("create the log directory", &path))?;
    Ok(path)
}

/// The restart count of a container whose runs the runtime has forgotten, from the names of its log
/// files.
pub(crate) async fn restart_count_from_logs(log_dir: &Path) -> u32 {
    let names = files::names(log_dir).await.unwrap_or_default();
    let mut next = 0;
    for name in names {
        // `<n>.log`, or `<n>.log.<time>` after rotation.
        if let Some(run) = name
            .split_once(".log")
            .and_then(|(run, _)| run.parse::<u32>().ok())
        {
            next = next.max(run.saturating_add(1));
        }
    }
    next
}

/// Creates an empty termination message file for one run. Returns `None` if the container mounts a
/// volume at its path, or the path is empty.
///
/// # Errors
/// File system error.
pub(crate) async fn make_termination_message(
    pod_dir: &Path,
    container: &Container,
    restart_count: u32,
) -> Result<Option<PathBuf>, FileError> {
    if let Some(path) = &container.termination_message_path
        && (path.is_empty() || container_config::mounts_path(container, path))
    {
        return Ok(None);
    }
    let dir = directory::container_dir(pod_dir, &container.name);
    files::create_dir_all(&dir)
        .await
        .map_err(failed("create the directory", &dir))?;
    // Only the message of the last run is still read.
    if let Some(old) = restart_count.checked_sub(2) {
        let _ = files::remove_file(&dir.join(old.to_string())).await;
    }
    let path = dir.join(restart_count.to_string());
    files::write(&path, b"")
        .await
        .map_err(failed("create the termination message", &path))?;
    // The container writes it as any user.
    let mode = std::fs::Permissions::from_mode(0o666);
    files::set_permissions(&path, mode)
        .await
        .map_err(failed("set the mode of", &path))?;
    Ok(Some(path))
}

/// Creates the pod's hosts file. Returns `None` if the container mounts a volume there, or the pod
/// has no IP address.
///
/// # Errors
/// File system error, or the pod has no valid hostname.
pub(crate) async fn make_hosts_file(
    pod: &Pod,
    spec: &PodSpec,
    container: &Container,
    ips: &[String],
    pod_dir: &Path,
    cluster_domain: &str,
) -> Result<Option<PathBuf>, FileError> {
    let host_network = spec.host_network == Some(true);
    if container_config::mounts_path(container, "/etc/hosts") || (ips.is_empty() && !host_network) {
        return Ok(None);
    }
    let aliases = spec.host_aliases.as_deref();
    let hosts = if host_network {
        let path = Path::new("/etc/hosts");
        let hosts = files::read_lossy(path).await;
        let hosts = hosts.map_err(failed("read", path))?;
        hostname::hosts_of_node(&hosts, aliases)
    } else {
        let (hostname, domain) = hostname::hostname_and_domain(pod, cluster_domain)?;
        hostname::hosts_of_pod(ips, &hostname, &domain, aliases)
    };
    let path = directory::etc_hosts(pod_dir);
    files::write(&path, hosts)
        .await
        .map_err(failed("write the hosts file", &path))?;
    // The container reads it as any user; the kubelet's umask must not matter.
    let mode = std::fs::Permissions::from_mode(0o644);
    files::set_permissions(&path, mode)
        .await
        .map_err(failed("set the mode of", &path))?;
    Ok(Some(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn restarts_are_counted_by_log_files() {
        let dir = tempfile::tempdir().unwrap();
        let logs = make_log_dir(dir.path(), "c").await.unwrap();
        assert_eq!(restart_count_from_logs(&logs).await, 0);
        for name in ["0.log", "4.log", "9.log.20260101-000000", "x.log"] {
            std::fs::write(logs.join(name), "").unwrap();
        }
        assert_eq!(restart_count_from_logs(&logs).await, 10);
    }

    #[tokio::test]
    async fn a_container_with_its_own_mount_gets_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut container = Container {
            name: "c".to_owned(),
            ..Container::default()
        };
        let path = make_termination_message(dir.path(), &container, 3)
            .await
            .unwrap();
        assert!(path.unwrap().exists());
        container.termination_message_path = Some("/m".to_owned());
        container.volume_mounts = Some(vec![k8s_openapi::api::core::v1::VolumeMount {
            mount_path: "/m/".to_owned(),
            ..Default::default()
        }]);
        let path = make_termination_message(dir.path(), &container, 4).await;
        assert_eq!(path.unwrap(), None);
    }
}
