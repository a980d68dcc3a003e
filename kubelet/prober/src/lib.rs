//! Liveness, readiness and startup probes. Each probe has a task of its own; its results decide on
//! restarts and readiness.

#![forbid(unsafe_code)]

mod exec;
mod grpc;
pub mod http;
mod manager;
mod metrics;
mod outcome;
pub mod port;
mod probe;
pub mod results;
mod tcp;
mod tls;
mod worker;

pub use manager::ProbeManager;
