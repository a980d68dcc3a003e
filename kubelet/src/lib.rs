//! The Kubernetes node agent: runs pods from files, URLs and the API server on any CRI v1 runtime,
//! reports their status, and serves the kubelet's HTTP API.
//!
//! Data flows in one direction: [`sources`] -> mux -> sync loop -> [`pod_worker`] ->
//! [`kubelet_runtime`] (CRI) -> [`pleg`] -> pod cache -> pod worker -> [`status`]. Every stage is
//! level-triggered: a stage that missed an event still converges from state.

#![forbid(unsafe_code)]

mod active_pods;
mod allocation;
pub mod cli;
pub mod cluster;
pub mod config;
mod cpu_set_keeper;
mod garbage_collection;
pub mod gc_command;
mod graceful_shutdown;
mod host;
mod housekeeping;
pub mod kubelet;
pub mod lifecycle;
pub mod lock_file;
pub mod logging;
pub mod logs_command;
mod measured_pods;
pub mod node_pressure;
mod oom_watcher;
pub mod pleg;
pub mod pod;
pub mod pod_cgroups;
mod pod_syncer;
pub mod pod_worker;
mod resource_holders;
mod resource_managers;
mod resource_pods;
pub mod root_dir;
pub mod run;
pub mod run_once;
pub mod sources;
pub mod status;
pub mod status_command;
mod sync_loop;
pub mod watchdog;
