//! Probes of containers: one task a probe runs it again and again, and what it
//! finds decides on restarts and readiness.

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
