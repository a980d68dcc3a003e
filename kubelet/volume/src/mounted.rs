//! The volumes of a pod that its containers can have.

use std::{collections::BTreeMap, path::Path};

use super::{
    plugin::{Attributes, Mounted},
    spec::VolumeSpec,
};

/// One volume that is ready.
#[derive(Clone, Debug)]
pub struct MountedVolume {
    /// What it is.
    pub mounted: Mounted,
    /// What is behind it.
    pub spec: VolumeSpec,
    /// What holds for every mount of it.
    pub attributes: Attributes,
}

/// The volumes of a pod that are ready to be mounted into containers, by the names that
/// its spec gives them.
#[derive(Clone, Debug, Default)]
pub struct MountedVolumes(BTreeMap<String, MountedVolume>);

impl MountedVolumes {
    /// A volume by its name in the pod's spec.
    pub fn get(&self, name: &str) -> Option<&MountedVolume> {
        self.0.get(name)
    }

    /// Where a volume of files is on the node.
    pub fn path(&self, name: &str) -> Option<&Path> {
        match &self.get(name)?.mounted {
            Mounted::Path(path) => Some(path),
            Mounted::Device(_) | Mounted::Image => None,
        }
    }

    /// Groups that the pod is to be in for the sake of its volumes, beside those that its
    /// spec names.
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
