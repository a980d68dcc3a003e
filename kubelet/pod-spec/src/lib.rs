//! Functions of pod specs: identity, manifests, defaults, validation, resources, and the rules that
//! follow from a spec alone. They do not access the runtime or the API server; apart from the
//! kernel version in `sysctl`, they do not depend on the node.

#![forbid(unsafe_code)]

pub mod amount_or_share;
pub mod config_hash;
pub mod cpu;
pub mod defaults;
pub mod directory;
pub mod ephemeral;
pub mod expansion;
pub mod field;
pub mod field_ref;
pub mod huge_pages;
pub mod identity;
pub mod json;
pub mod known_status;
pub mod manifest;
pub mod names;
pub mod node_affinity;
pub mod phase;
pub mod pod_ips;
pub mod priority;
pub mod qos;
pub mod quantity;
pub mod references;
pub mod resource_field_ref;
pub mod resources;
pub mod restart_rules;
pub mod shortage;
pub mod stop_signal;
pub mod sysctl;
pub mod taints;
pub mod validation;
pub mod yaml;
