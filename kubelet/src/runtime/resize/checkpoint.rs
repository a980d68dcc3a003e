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

use crate::repeatable::blocking;

const FILE: &str = "resources.json";

/// What a pod was granted, and what its containers were given of it.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Checkpoint {
    /// By the container's name.
    pub(super) granted: BTreeMap<String, ResourceRequirements>,
    /// By the container's id.
    pub(super) actuated: BTreeMap<String, ResourceRequirements>,
}

/// The checkpoint in a pod's directory; an empty one where there is none.
pub(super) async fn read(pod_dir: PathBuf) -> Checkpoint {
    let read = blocking(move || match std::fs::read(pod_dir.join(FILE)) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Checkpoint::default()),
        Err(error) => Err(error),
    });
    let read = read
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)));
    read.unwrap_or_else(|error| {
        warn!(
            %error,
            "cannot read what the pod was granted; taking what its spec asks for"
        );
        Checkpoint::default()
    })
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
