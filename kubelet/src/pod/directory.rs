//! Where the files of pods are.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use kubelet_pod_spec::identity::{self, PodUid};

use crate::config::options::Options;

/// Directory of everything that the kubelet keeps for pods: one directory each,
/// named by UID.
pub fn pods_dir(options: &Options) -> PathBuf {
    options.root_dir.join("pods")
}

/// Directory of one pod.
pub fn pod_dir(options: &Options, uid: &PodUid) -> PathBuf {
    pods_dir(options).join(uid.as_str())
}

/// Directory of one container's own files, such as its termination messages.
pub fn container_dir(pod_dir: &Path, container: &str) -> PathBuf {
    pod_dir.join("containers").join(container)
}

/// Directory of a pod's logs: `<namespace>_<name>_<uid>`.
pub fn log_dir(options: &Options, pod: &Pod) -> PathBuf {
    options.pod_logs_dir.join(format!(
        "{}_{}_{}",
        identity::namespace(pod),
        identity::name(pod),
        PodUid::of(pod)
    ))
}

/// UID of the pod that a log directory's name names.
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
        let dir = log_dir(&Options::default(), &pod);
        assert!(dir.ends_with("default_web_1-2"));
        assert_eq!(uid_of_log_dir("default_web_1-2"), Some(PodUid::from("1-2")));
        assert_eq!(uid_of_log_dir("lost+found"), None);
    }
}
