//! `dockershim` with a real engine, through CRI and the shim's own ports: one module per subject.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod bandwidth;
mod checkpoint;
mod cni;
mod cni_by_others;
mod engine_by_hand;
mod events;
mod exec_ends;
mod grpc_clients;
mod hairpin;
mod images;
mod logs;
mod mounts;
mod oom_kills;
mod operations;
mod remote_engine;
mod shim;
mod stats;
mod streaming;
