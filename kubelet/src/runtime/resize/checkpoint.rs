//! What a pod was granted, in a file of its directory: read once, written when
//! a resize changes it, gone with the pod.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::ResourceRequirements;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::ByContainer;
use crate::{pod::identity::PodUid, repeatable::blocking};

const FILE: &str = "resources.json";

/// What a pod was granted, and what its containers were given of it.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Checkpoint {
    /// By the container's name.
    pub(super) granted: ByContainer,
    /// By the container's id.
    pub(super) actuated: BTreeMap<String, ResourceRequirements>,
}

/// The checkpoint in a pod's directory; an empty one where there is none.
pub(super) async fn read(pod_dir: PathBuf) -> Checkpoint {
    let read = blocking(move || read_in(&pod_dir)).await;
    read.unwrap_or_default()
}

fn read_in(pod_dir: &Path) -> Checkpoint {
    let read = match std::fs::read(pod_dir.join(FILE)) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::from),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Checkpoint::default()),
        Err(error) => Err(error),
    };
    read.unwrap_or_else(|error| {
        warn!(
            pod_dir = %pod_dir.display(), %error,
            "cannot read what the pod was granted; taking what its spec asks for"
        );
        Checkpoint::default()
    })
}

/// What all pods with a directory in `pods_dir` were granted, where that is written down.
pub(super) async fn read_all(pods_dir: PathBuf) -> BTreeMap<PodUid, ByContainer> {
    let read = blocking(move || {
        let dirs = std::fs::read_dir(pods_dir).into_iter().flatten().flatten();
        dirs.filter_map(|dir| {
            let granted = read_in(&dir.path()).granted;
            let name = dir.file_name();
            (!granted.is_empty()).then(|| (PodUid::from(&*name.to_string_lossy()), granted))
        })
        .collect()
    });
    read.await.unwrap_or_default()
}

/// Writes the checkpoint whole or not at all.
pub(super) async fn write(pod_dir: PathBuf, checkpoint: Checkpoint) -> io::Result<()> {
    blocking(move || write_in(&pod_dir, &checkpoint))
        .await
        .map_err(io::Error::other)?
}

fn write_in(pod_dir: &Path, checkpoint: &Checkpoint) -> io::Result<()> {
    std::fs::create_dir_all(pod_dir)?;
    let new = pod_dir.join(format!("{FILE}.new"));
    let file = std::fs::File::create(&new)?;
    serde_json::to_writer(&file, checkpoint)?;
    file.sync_all()?;
    std::fs::rename(new, pod_dir.join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reads_what_was_written_and_survives_what_is_broken() {
        let dir = tempfile::tempdir().unwrap();
        let path = || dir.path().to_path_buf();
        assert_eq!(read(path()).await, Checkpoint::default());
        let mut checkpoint = Checkpoint::default();
        let resources = ResourceRequirements::default();
        checkpoint.granted.insert("c".to_owned(), resources);
        write_in(&path(), &checkpoint).unwrap();
        assert_eq!(read(path()).await, checkpoint);
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert_eq!(read(path()).await, Checkpoint::default());
    }
}
