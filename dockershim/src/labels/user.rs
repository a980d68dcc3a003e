//! The user and groups that a container runs as.

use cri_proto::runtime::v1::{ContainerUser, LinuxContainerUser};
use serde::{Deserialize, Serialize};

/// A uid, a gid and supplemental groups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub(crate) uid: i64,
    pub(crate) gid: i64,
    pub(crate) groups: Vec<i64>,
}

impl Identity {
    /// The user as CRI reports it.
    pub fn status(self) -> ContainerUser {
        ContainerUser {
            linux: Some(LinuxContainerUser {
                uid: self.uid,
                gid: self.gid,
                supplemental_groups: self.groups,
            }),
        }
    }
}
