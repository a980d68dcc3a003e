//! Saved state of the pod network: the pod CIDRs set by the kubelet, and this shim's id among those
//! that share a cache directory.

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};

use crate::checkpoint::Checkpoints;

/// The checkpoints' directory, below the shim's root directory.
const DIRECTORY: &str = "network";
const OWNER: &str = "owner";
const POD_CIDRS: &str = "pod-cidr";
/// The kernel generates a new UUID for each read.
const RANDOM_ID: &str = "/proc/sys/kernel/random/uuid";

/// The pod network's checkpoints.
#[derive(Debug)]
pub(super) struct SavedState {
    owner: Option<String>,
    pod_cidrs: Checkpoints<PodCidrs>,
    /// The pod CIDRs of the flag.
    flag: Vec<String>,
}

/// The node's pod CIDRs.
#[derive(Debug, Serialize, Deserialize)]
struct PodCidrs {
    told: Vec<String>,
    /// The flag's value at that time. If the flag has changed since, it takes precedence.
    flag: Vec<String>,
}

impl SavedState {
    /// Loads the state saved below `root`; `flag` has the flag's pod CIDRs. Blocks.
    pub(super) fn new(root: &Path, flag: Vec<String>) -> Self {
        let directory = root.join(DIRECTORY);
        let owners = Checkpoints::new(directory.clone());
        let owner = owner(&owners).inspect_err(|error| {
            tracing::warn!(
                error,
                "no owner ID; a restart will not recognize networks of sandboxes removed meanwhile"
            );
        });
        Self {
            owner: owner.ok(),
            pod_cidrs: Checkpoints::new(directory),
            flag,
        }
    }

    /// This shim's id; `None` if it could not be saved.
    pub(super) fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// The pod CIDRs last set by the kubelet, or the flag's. Blocks.
    pub(super) fn pod_cidrs(&self) -> Vec<String> {
        let saved = self.pod_cidrs.load(POD_CIDRS);
        match saved.filter(|saved| saved.flag == self.flag) {
            Some(saved) => saved.told,
            None => self.flag.clone(),
        }
    }

    /// Saves the pod CIDRs set by the kubelet. Blocks.
    pub(super) fn set_pod_cidrs(&self, told: Vec<String>) {
        let flag = self.flag.clone();
        if let Err(error) = self.pod_cidrs.save(POD_CIDRS, &PodCidrs { told, flag }) {
            tracing::warn!(%error, "cannot save the pod CIDR for a restart");
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
