//! Sandbox verbs, one file per CRI verb.

pub mod list;
pub mod list_stats;
pub mod metrics;
pub mod port_forward;
pub mod remove;
pub mod run;
pub mod stats;
pub mod status;
pub mod stop;
pub mod update_resources;
