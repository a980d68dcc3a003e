//! Volumes that are ready for a pod's containers.

use std::{collections::BTreeMap, path::Path};

use super::{
    plugin::{Attributes, Mounted},
    spec::VolumeSpec,
};

/// One volume that is ready.
#[derive(Clone, Debug)]
pub struct MountedVolume {
    /// Where it is on the node.
    pub mounted: Mounted,
    /// Its resolved spec.
    pub spec: VolumeSpec,
    /// Attributes of all its mounts.
    pub attributes: Attributes,
}

/// The volumes of a pod that are ready for containers, by their names in the pod's spec.
#[derive(Clone, Debug, Default)]
pub struct MountedVolumes(BTreeMap<String, MountedVolume>);

impl MountedVolumes {
    /// A volume by its name in the pod's spec.
    pub fn get(&self, name: &str) -> Option<&MountedVolume> {
        self.0.get(name)
    }

    /// Path of a volume on the node; `None` for devices and images.
    pub fn path(&self, name: &str) -> Option<&Path> {
        match &self.get(name)?.mounted {
            Mounted::Path(path) => Some(path),
            Mounted::Device(_) | Mounted::Image => None,
        }
    }

    /// Supplemental groups that the volumes require, in addition to those of the pod's spec.
    pub fn extra_groups(&self) -> Vec<i64> {
        let mut groups: Vec<i64> = self
            .0
            .values()
            .filter_map(|volume| volume.spec.extra_group())
            .collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }
}

impl FromIterator<(String, MountedVolume)> for MountedVolumes {
    fn from_iter<I: IntoIterator<Item = (String, MountedVolume)>>(volumes: I) -> Self {
        Self(volumes.into_iter().collect())
    }
}
