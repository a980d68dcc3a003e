//! The log files of removed containers.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use kubelet_cri_client::labels;
use kubelet_host::repeatable;
use kubelet_pod_spec::names;
use tracing::debug;

/// The log file of a container, relative to the directory of pods' logs.
///
/// The path that the runtime reports is not used: it could be any file of the node. The path is
/// composed as at the creation of the container, from labels that can only be file names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LogFile(PathBuf);

impl LogFile {
    /// The log file of a container with these labels and annotations; `None` if they are not the
    /// kubelet's.
    pub(super) fn of(
        of_container: &BTreeMap<String, String>,
        annotations: &BTreeMap<String, String>,
    ) -> Option<Self> {
        let label = |key| {
            let text = of_container.get(key).map(String::as_str);
            text.filter(|text| !text.is_empty() && names::path_segment(text).is_ok())
        };
        let namespace = label(labels::POD_NAMESPACE)?;
        let (name, uid) = (label(labels::POD_NAME)?, label(labels::POD_UID)?);
        let container = label(labels::CONTAINER_NAME)?;
        let restarts = annotations.get(labels::CONTAINER_RESTART_COUNT)?;
        let restarts: u32 = restarts.parse().ok()?;
        let pod = format!("{namespace}_{name}_{uid}");
        let file = format!("{restarts}.log");
        Some(Self(Path::new(&pod).join(container).join(file)))
    }

    /// Removes the file and its rotated files. Links are not followed. Failures are logged.
    pub(super) async fn remove(&self, pod_logs_dir: &Path) {
        let log = pod_logs_dir.join(&self.0);
        let path = log.clone();
        let removed = repeatable::blocking(move || kubelet_logs::remove_logs(&path)).await;
        if let Err(error) = removed.map_err(io::Error::other).flatten() {
            debug!(path = %log.display(), %error, "cannot remove the log of a removed container");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn labelled(edit: (&str, &str)) -> Option<LogFile> {
        let mut all: BTreeMap<String, String> = [
            (labels::POD_NAMESPACE, "ns"),
            (labels::POD_NAME, "web"),
            (labels::POD_UID, "u1"),
            (labels::CONTAINER_NAME, "c"),
            (labels::CONTAINER_RESTART_COUNT, "2"),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
        all.insert(edit.0.to_owned(), edit.1.to_owned());
        LogFile::of(&all, &all)
    }

    #[test]
    fn the_path_is_the_one_of_the_containers_creation() {
        let log = labelled(("", "")).unwrap();
        assert_eq!(log.0, Path::new("ns_web_u1/c/2.log"));
    }

    #[test]
    fn no_label_leads_out_of_the_directory() {
        for (key, value) in [
            (labels::CONTAINER_NAME, ".."),
            (labels::CONTAINER_NAME, "."),
            (labels::CONTAINER_NAME, ""),
            (labels::CONTAINER_NAME, "a/b"),
            (labels::CONTAINER_NAME, "/etc"),
            (labels::POD_NAMESPACE, "../../etc/x"),
            (labels::POD_NAME, "a/../../.."),
            (labels::POD_UID, "/"),
            (labels::POD_UID, "a\0"),
            (labels::CONTAINER_RESTART_COUNT, "-1"),
            (labels::CONTAINER_RESTART_COUNT, "../0"),
            (labels::CONTAINER_RESTART_COUNT, ""),
        ] {
            assert_eq!(labelled((key, value)), None, "{key}={value:?}");
        }
        let none = BTreeMap::new();
        assert_eq!(LogFile::of(&none, &none), None);
    }

    #[tokio::test]
    async fn the_log_and_its_rotated_files_are_removed_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (logs, node) = (dir.path().join("pods"), dir.path().join("node"));
        let container = logs.join("ns_web_u1/c");
        fs::create_dir_all(&container).unwrap();
        fs::create_dir_all(node.join("c")).unwrap();
        for name in ["1.log", "2.log", "2.log.20260101-000000.gz", "20.log"] {
            fs::write(container.join(name), "").unwrap();
            fs::write(node.join("c").join(name), "").unwrap();
        }
        let log = labelled(("", "")).unwrap();
        log.remove(&logs).await;
        let names = |dir: &Path| {
            let entries = fs::read_dir(dir).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.collect();
            names.sort();
            names
        };
        assert_eq!(names(&container), ["1.log", "20.log"]);

        fs::remove_dir_all(logs.join("ns_web_u1")).unwrap();
        symlink(&node, logs.join("ns_web_u1")).unwrap();
        log.remove(&logs).await;
        assert_eq!(names(&node.join("c")).len(), 4);
        // A missing file is not an error.
        fs::remove_file(logs.join("ns_web_u1")).unwrap();
        log.remove(&logs).await;
    }
}
