//! Nodes of both binaries on a real engine, and of the kubelet on containerd: one module per
//! subject.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod cgroups;
mod devices;
mod eviction;
mod exhaustion;
mod hostile;
mod kubectl;
mod kubectl_api;
mod metric_names;
mod pod_table;
mod quick_start;
mod real_api_server;
mod real_csi;
mod reboot;
mod static_pods;
mod stats;
mod traces;
