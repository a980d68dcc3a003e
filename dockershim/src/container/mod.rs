//! Container verbs, one file per CRI verb.

pub mod attach;
pub mod checkpoint;
pub mod create;
mod devices;
pub mod exec;
mod exec_process;
pub mod exec_sync;
pub mod image_mounts;
pub mod list;
pub mod list_stats;
mod mounts;
mod output;
pub mod remove;
pub mod reopen_log;
mod resources;
mod session;
pub mod start;
pub mod stats;
pub mod status;
pub mod stop;
pub mod update_resources;

pub use mounts::can_be_recursively_read_only;
