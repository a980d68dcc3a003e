//! Aligns the CPUs, memory and devices of a container to NUMA nodes: each manager of a resource
//! tells from which nodes it can be taken, and the policy chooses nodes for all of them.

#![forbid(unsafe_code)]

mod hint;
mod merger;
mod node_mask;
mod policy;

pub use hint::{ResourceHints, TopologyHint};
pub use node_mask::NodeMask;
pub use policy::{Policy, PolicyName};
