//! Sandboxes: one file per CRI verb.

mod cgroup_parent;
pub mod convert;
pub mod list;
pub mod port_forward;
pub mod remove;
pub mod run;
pub mod status;
pub mod stop;
pub mod update_resources;

pub use cgroup_parent::cgroup_parent;
