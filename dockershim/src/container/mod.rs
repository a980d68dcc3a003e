//! Containers: one file per CRI verb.

pub mod attach;
pub mod convert;
pub mod create;
pub mod exec;
mod exec_process;
pub mod exec_sync;
pub mod list;
pub mod list_stats;
mod mounts;
pub mod remove;
mod resources;
mod session;
pub mod start;
pub mod stats;
pub mod status;
pub mod stop;
mod stop_signal;
mod unified;
