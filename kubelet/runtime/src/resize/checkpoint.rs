//! The granted resources of a pod in a file in its directory. It is read when the kubelet starts,
//! written for a new pod and for each resize, and removed with the pod.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use atomic_file::Durability;
use k8s_openapi::api::core::v1::ResourceRequirements;
use kubelet_host::repeatable::blocking;
use kubelet_pod_spec::{identity::PodUid, json};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::ByContainer;

const FILE: &str = "resources.json";

/// The granted resources of a pod, and those that were applied.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Checkpoint {
    /// Granted pod-level resources, if known.
    pub(super) whole: Option<ResourceRequirements>,
    /// Granted resources by container name.
    pub(super) granted: ByContainer,
    /// Applied pod-level resources, if known.
    pub(super) actuated_whole: Option<ResourceRequirements>,
    /// Applied resources by container ID.
    pub(super) actuated: BTreeMap<String, ResourceRequirements>,
}

/// The checkpoint in a pod's directory, if there is a valid one.
fn read_in(pod_dir: &Path) -> Option<Checkpoint> {
    let read = match fs::read(pod_dir.join(FILE)) {
        Ok(bytes) => json::from_slice(&bytes).map_err(io::Error::from),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => Err(error),
    };
    read.inspect_err(|error| {
        warn!(
            pod_dir = %pod_dir.display(), %error,
            "cannot read the pod's allocated resources; using the resources in its spec"
        );
    })
    .ok()
}

/// The checkpoints of all pods with a directory in `pods_dir`.
pub(super) async fn read_all(pods_dir: PathBuf) -> BTreeMap<PodUid, Checkpoint> {
    let read = blocking(move || {
        let dirs = fs::read_dir(pods_dir).into_iter().flatten().flatten();
        dirs.filter_map(|dir| {
            let checkpoint = read_in(&dir.path())?;
            let name = dir.file_name();
            Some((PodUid::from(&*name.to_string_lossy()), checkpoint))
        })
        .collect()
    });
    read.await.unwrap_or_default()
}

/// Writes the checkpoint to a new file, which then replaces the previous one.
pub(super) async fn write(
    pod_dir: PathBuf,
    checkpoint: Checkpoint,
    durability: Durability,
) -> io::Result<()> {
    blocking(move || write_in(&pod_dir, &checkpoint, durability))
        .await
        .map_err(io::Error::other)?
}

fn write_in(pod_dir: &Path, checkpoint: &Checkpoint, durability: Durability) -> io::Result<()> {
    // Other users of the node must not access a pod's directory.
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o750).create(pod_dir)?;
    let (path, json) = (pod_dir.join(FILE), serde_json::to_vec(checkpoint)?);
    atomic_file::replace(&path, &json, 0o644, durability)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reads_what_was_written_and_survives_what_is_broken() {
        let pods = tempfile::tempdir().unwrap();
        let all = || read_all(pods.path().to_path_buf());
        let dir = pods.path().join("uid");
        assert!(all().await.is_empty());
        let mut checkpoint = Checkpoint::default();
        let resources = ResourceRequirements::default();
        checkpoint.granted.insert("c".to_owned(), resources);
        write_in(&dir, &checkpoint, Durability::Synced).unwrap();
        assert_eq!(all().await[&PodUid::from("uid")], checkpoint);
        fs::write(dir.join(FILE), "{").unwrap();
        assert!(all().await.is_empty());
    }
}
