//! The Kubernetes node agent: runs pods from files, URLs and the API server on
//! any CRI v1 runtime, reports them, and serves the kubelet's HTTP API.
//!
//! Data flows one way round: sources -> [`config`] mux -> `sync_loop` ->
//! `pod_worker` -> `runtime` (CRI) -> `pleg` -> pod cache -> pod worker ->
//! `status`. Every stage is level-triggered: one that missed an event still
//! converges from state.

pub mod cli;
pub mod config;
pub mod logging;
pub mod pod;
pub mod root_dir;
pub mod server;
pub mod status_command;
pub mod version;
