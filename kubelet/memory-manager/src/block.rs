//! Memory that a container has.

use serde::{Deserialize, Serialize};

/// Memory of one resource that a container has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Block {
    /// The nodes.
    pub numa_affinity: Vec<u32>,
    /// `memory`, or huge pages of a size.
    #[serde(rename = "type")]
    pub resource: String,
    /// In bytes.
    pub size: u64,
}
