//! User namespaces of pods: the mapping of a pod's IDs to IDs of the node.
//!
//! Each pod with `hostUsers: false` has its own ID range, stored in its directory. The directories
//! are the only state: a restarted kubelet has nothing to restore, and a range is free again once
//! the directory of its pod is removed.

mod subordinate_ids;

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use atomic_file::Durability;
use cri_proto::runtime::v1::{IdMapping, NamespaceMode, UserNamespace};
use kubelet_host::repeatable::blocking;
use serde::{Deserialize, Serialize};

use self::subordinate_ids::{IdRange, RangeError};

/// Name of the file in the pod's directory.
const FILE: &str = "userns";

/// Why a pod has no user namespace.
#[derive(Debug, thiserror::Error)]
pub enum UserNamespaceError {
    /// The runtime, or the given handler, does not support user namespaces.
    #[error("can't set `spec.hostUsers: false`, {} not support user namespaces", subject(.0))]
    Unsupported(String),
    /// The runtime does not report the features of the handler.
    #[error(
        "can't set `spec.hostUsers: false`, {subject} not support user namespaces: the handler \
         {handler:?} is not known",
        subject = subject(.0), handler = .0
    )]
    UnknownHandler(String),
    /// The node's subordinate IDs cannot be used.
    #[error("user namespace: {0}")]
    Range(#[from] RangeError),
    /// All ranges are in use.
    #[error("create user namespace: could not find an empty slot to allocate a user namespace")]
    Full,
    /// The file of a pod is invalid.
    #[error("user namespace: invalid user namespace mappings file {path:?}: {fault}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: String,
    },
    /// File system error.
    #[error("user namespace: cannot {action} {path:?}: {source}")]
    Io {
        /// The operation.
        action: &'static str,
        /// Its path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The task that accessed the files failed.
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
}

/// The subject of the message that user namespaces are not supported, as upstream words it.
fn subject(handler: &str) -> String {
    if handler.is_empty() {
        return "runtime does".to_owned();
    }
    format!("RuntimeClass handler {handler:?} does")
}

/// The contents of the file, in upstream's format.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mappings {
    uid_mappings: Vec<Mapping>,
    gid_mappings: Vec<Mapping>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

/// The ID ranges of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserNamespaceOptions {
    /// IDs per pod (`userNamespaces.idsPerPod`).
    pub ids_per_pod: u32,
    /// Number of pods that must have a range (`maxPods`).
    pub max_pods: u32,
}

impl Default for UserNamespaceOptions {
    /// Upstream's defaults.
    fn default() -> Self {
        Self {
            ids_per_pod: 65_536,
            max_pods: 110,
        }
    }
}

/// Allocates the ID ranges of pods.
#[derive(Debug, Default)]
pub struct UserNamespaces {
    /// Held while a free range is chosen and stored.
    choosing: Arc<tokio::sync::Mutex<()>>,
}

impl UserNamespaces {
    /// The user namespace of the pod with the directory `pod_dir`. Allocates a range if the pod has
    /// none yet.
    ///
    /// # Errors
    /// See [`UserNamespaceError`].
    pub async fn get_or_create(
        &self,
        pod_dir: &Path,
        options: UserNamespaceOptions,
    ) -> Result<UserNamespace, UserNamespaceError> {
        let choosing = Arc::clone(&self.choosing).lock_owned().await;
        let pod_dir = pod_dir.to_owned();
        let length = options.ids_per_pod;
        let max_pods = options.max_pods;
        let mapping = blocking(move || {
            // Moved in here, because the work continues after the caller is cancelled.
            let _choosing = choosing;
            let range = IdRange::of_kubelet(length, max_pods)?;
            match read(&pod_dir)? {
                Some(mapping) => check(&pod_dir, mapping, range),
                None => create(&pod_dir, range),
            }
        })
        .await??;
        let ids = vec![IdMapping {
            host_id: mapping.host_id,
            container_id: mapping.container_id,
            length: mapping.length,
        }];
        Ok(UserNamespace {
            mode: NamespaceMode::Pod.into(),
            uids: ids.clone(),
            gids: ids,
        })
    }
}

/// The user namespace of a pod that uses the node's.
pub fn of_node() -> UserNamespace {
    UserNamespace {
        mode: NamespaceMode::Node.into(),
        ..UserNamespace::default()
    }
}

fn read(pod_dir: &Path) -> Result<Option<Mapping>, UserNamespaceError> {
    let path = pod_dir.join(FILE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(failed("read", &path)(source)),
    };
    let invalid = |fault: &str| UserNamespaceError::Invalid {
        path: path.clone(),
        fault: fault.to_owned(),
    };
    let mappings: Mappings =
        serde_json::from_str(&text).map_err(|error| invalid(&error.to_string()))?;
    match (&*mappings.uid_mappings, &*mappings.gid_mappings) {
        ([uids], [gids]) if uids == gids && uids.container_id == 0 => Ok(Some(*uids)),
        ([uids], [gids]) if uids == gids => Err(invalid("id 0 must be mapped")),
        ([_], [_]) => Err(invalid("GID and UID mapping should be identical")),
        _ => Err(invalid("there must be exactly one mapping")),
    }
}

/// Checks that a stored range could be allocated with the present options.
fn check(pod_dir: &Path, mapping: Mapping, range: IdRange) -> Result<Mapping, UserNamespaceError> {
    let fault = if mapping.length != range.per_pod {
        format!("wrong user namespace length {}", mapping.length)
    } else if !range.contains(mapping.host_id) {
        format!("id {} is out of range", mapping.host_id)
    } else {
        return Ok(mapping);
    };
    Err(UserNamespaceError::Invalid {
        path: pod_dir.join(FILE),
        fault,
    })
}

fn create(pod_dir: &Path, range: IdRange) -> Result<Mapping, UserNamespaceError> {
    let taken = taken(pod_dir.parent().unwrap_or(pod_dir))?;
    let host_id = range
        .firsts()
        .find(|first| !taken.contains(first))
        .ok_or(UserNamespaceError::Full)?;
    let mapping = Mapping {
        host_id,
        container_id: 0,
        length: range.per_pod,
    };
    write(pod_dir, mapping)?;
    Ok(mapping)
}

/// The first IDs of the allocated ranges. A file that cannot be read counts as no range: its pod
/// does not run.
fn taken(pods_dir: &Path) -> Result<BTreeSet<u32>, UserNamespaceError> {
    let pods = fs::read_dir(pods_dir).map_err(failed("list", pods_dir))?;
    let mut taken = BTreeSet::new();
    for pod in pods {
        let pod = pod.map_err(failed("list", pods_dir))?;
        if let Ok(Some(mapping)) = read(&pod.path()) {
            taken.insert(mapping.host_id);
        }
    }
    Ok(taken)
}

/// Writes the file atomically. It is on disk before the pod uses the range.
fn write(pod_dir: &Path, mapping: Mapping) -> Result<(), UserNamespaceError> {
    let path = pod_dir.join(FILE);
    let mappings = Mappings {
        uid_mappings: vec![mapping],
        gid_mappings: vec![mapping],
    };
    let text = serde_json::to_string(&mappings).map_err(io::Error::from);
    text.and_then(|text| atomic_file::replace(&path, text.as_bytes(), 0o644, Durability::Synced))
        .map_err(failed("write", &path))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> UserNamespaceError {
    let path = path.to_owned();
    move |source| UserNamespaceError::Io {
        action,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: IdRange = IdRange {
        first: 131_072,
        count: 3,
        per_pod: 65_536,
    };

    #[test]
    fn each_pod_keeps_a_range_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let pod_dir = dir.path().join(name);
            fs::create_dir_all(&pod_dir).unwrap();
            create(&pod_dir, RANGE).map(|mapping| mapping.host_id)
        };
        assert_eq!(make("a").unwrap(), 131_072);
        assert_eq!(make("b").unwrap(), 196_608);
        assert_eq!(make("c").unwrap(), 262_144);
        assert!(matches!(make("d"), Err(UserNamespaceError::Full)));
        // A restarted kubelet finds the stored ranges.
        let b = read(&dir.path().join("b")).unwrap().unwrap();
        assert_eq!(check(dir.path(), b, RANGE).unwrap().host_id, 196_608);
        fs::remove_dir_all(dir.path().join("b")).unwrap();
        assert_eq!(make("d").unwrap(), 196_608);
    }

    #[test]
    fn a_file_that_was_changed_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let one = r#"{"hostId": 131072, "containerId": 0, "length": 65536}"#;
        let other = r#"{"hostId": 65536, "containerId": 0, "length": 65536}"#;
        let shifted = r#"{"hostId": 131072, "containerId": 1, "length": 65536}"#;
        for (uids, gids, fault) in [
            (one, other, "should be identical"),
            (shifted, shifted, "id 0 must be mapped"),
            ("", "", "exactly one"),
            ("1", "1", "invalid type"),
        ] {
            let text = format!(r#"{{"uidMappings": [{uids}], "gidMappings": [{gids}]}}"#);
            fs::write(dir.path().join(FILE), text).unwrap();
            let error = read(dir.path()).unwrap_err().to_string();
            assert!(error.contains(fault), "{error}");
        }
        let mapping = Mapping {
            host_id: 0,
            container_id: 0,
            length: 65_536,
        };
        let error = check(dir.path(), mapping, RANGE).unwrap_err().to_string();
        assert!(error.contains("id 0 is out of range"), "{error}");
    }
}
