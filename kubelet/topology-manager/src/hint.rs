//! From which NUMA nodes a resource can be taken.

use crate::node_mask::NodeMask;

/// NUMA nodes that a resource can be taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopologyHint {
    /// The nodes; `None`: any.
    pub nodes: Option<NodeMask>,
    /// Whether the resource cannot be taken from fewer nodes, on this machine when it is empty.
    pub preferred: bool,
}

/// The hints for one resource of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResourceHints {
    /// The resource is the same from each node.
    Any,
    /// It can be taken from each of these; if there are none, it cannot be taken.
    Among(Vec<TopologyHint>),
}

impl ResourceHints {
    /// The hints to merge: at least one.
    pub(crate) fn to_merge(&self) -> Vec<TopologyHint> {
        let any = |preferred| TopologyHint {
            nodes: None,
            preferred,
        };
        match self {
            Self::Any => vec![any(true)],
            Self::Among(hints) if hints.is_empty() => vec![any(false)],
            Self::Among(hints) => hints.clone(),
        }
    }
}
