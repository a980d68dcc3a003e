//! Paths of the files that the kubelet keeps for pods.

use std::path::{Path, PathBuf};

use crate::identity::{self, PodUid};
use k8s_openapi::api::core::v1::Pod;

/// The directory with one directory per pod, named by UID. `root_dir` is the kubelet's
/// (`--root-dir`).
pub fn pods_dir(root_dir: &Path) -> PathBuf {
    root_dir.join("pods")
}

/// The directory of one pod.
pub fn pod_dir(root_dir: &Path, uid: &PodUid) -> PathBuf {
    pods_dir(root_dir).join(uid.as_str())
}

/// The directory of one container's files, such as its termination messages.
pub fn container_dir(pod_dir: &Path, container: &str) -> PathBuf {
    pod_dir.join("containers").join(container)
}

/// The hosts file that the kubelet makes for a pod.
pub fn etc_hosts(pod_dir: &Path) -> PathBuf {
    pod_dir.join("etc-hosts")
}

/// The directory of a pod's logs, `<namespace>_<name>_<uid>` in `podLogsDir`.
pub fn log_dir(pod_logs_dir: &Path, pod: &Pod) -> PathBuf {
    pod_logs_dir.join(format!(
        "{}_{}_{}",
        identity::namespace(pod),
        identity::name(pod),
        PodUid::of(pod)
    ))
}

/// The UID in the name of a log directory.
pub fn uid_of_log_dir(name: &str) -> Option<PodUid> {
    let mut parts = name.splitn(3, '_').skip(2);
    parts.next().filter(|uid| !uid.is_empty()).map(PodUid::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_directory_tells_its_pod() {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".to_owned());
        pod.metadata.namespace = Some("default".to_owned());
        pod.metadata.uid = Some("1-2".to_owned());
        let dir = log_dir(Path::new("/var/log/pods"), &pod);
        assert_eq!(dir, Path::new("/var/log/pods/default_web_1-2"));
        assert_eq!(uid_of_log_dir("default_web_1-2"), Some(PodUid::from("1-2")));
        assert_eq!(uid_of_log_dir("lost+found"), None);
    }
}
