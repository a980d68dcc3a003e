//! What is remembered of the pod network as a whole: which ranges the kubelet has told, and
//! who this shim is among those that remember their attachments in one directory.

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};

use crate::checkpoint::Checkpoints;

/// The directory of the checkpoints, under the shim's root.
const DIRECTORY: &str = "network";
const OWNER: &str = "owner";
const POD_CIDRS: &str = "pod-cidr";
/// The kernel makes a new one for each reader.
const RANDOM_ID: &str = "/proc/sys/kernel/random/uuid";

/// The checkpoints of the pod network.
#[derive(Debug)]
pub(super) struct Remembered {
    owner: Option<String>,
    pod_cidrs: Checkpoints<PodCidrs>,
    /// The ranges that the flag gives.
    flag: Vec<String>,
}

/// The ranges of the node's pods.
#[derive(Debug, Serialize, Deserialize)]
struct PodCidrs {
    told: Vec<String>,
    /// What the flag gave then: when it has changed since, it is the newer word.
    flag: Vec<String>,
}

impl Remembered {
    /// What is remembered under `root`, where the flag gives the ranges `flag`. Blocks.
    pub(super) fn new(root: &Path, flag: Vec<String>) -> Self {
        let directory = root.join(DIRECTORY);
        let owners = Checkpoints::new(directory.clone());
        let owner = owner(&owners).inspect_err(|error| {
            tracing::warn!(
                error,
                "a restart will not know networks of sandboxes that were removed meanwhile"
            );
        });
        Self {
            owner: owner.ok(),
            pod_cidrs: Checkpoints::new(directory),
            flag,
        }
    }

    /// Who this shim is; `None` when that could not be remembered.
    pub(super) fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// The ranges that the kubelet told last, or those of the flag. Blocks.
    pub(super) fn pod_cidrs(&self) -> Vec<String> {
        let remembered = self.pod_cidrs.load(POD_CIDRS);
        match remembered.filter(|remembered| remembered.flag == self.flag) {
            Some(remembered) => remembered.told,
            None => self.flag.clone(),
        }
    }

    /// Remembers the ranges that the kubelet told. Blocks.
    pub(super) fn set_pod_cidrs(&self, told: Vec<String>) {
        let flag = self.flag.clone();
        if let Err(error) = self.pod_cidrs.save(POD_CIDRS, &PodCidrs { told, flag }) {
            tracing::warn!(%error, "a restart will not know the pod CIDR");
        }
    }
}

fn owner(owners: &Checkpoints<String>) -> Result<String, String> {
    if let Some(owner) = owners.load(OWNER) {
        return Ok(owner);
    }
    let read = |error: io::Error| format!("{RANDOM_ID}: {error}");
    let owner = fs::read_to_string(RANDOM_ID)
        .map_err(read)?
        .trim()
        .to_owned();
    owners
        .save(OWNER, &owner)
        .map_err(|error| error.to_string())?;
    Ok(owner)
}
