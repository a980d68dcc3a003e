//! Traces (OpenTelemetry): spans of the syncs of pods, of requests and of collections of garbage, in
//! upstream's names, and their export to a collector (`tracing`).
//!
//! Without an export, the spans are disabled, and cost a comparison each. They have a [`TARGET`] of
//! their own, which the log leaves out.

#![forbid(unsafe_code)]

mod export;
mod requests;
mod spans;

pub use self::{
    export::{Export, ExportError, ExportOptions},
    requests::{TracedCalls, answered, client_request, server_request},
    spans::{garbage_collection, pod_operation, traced},
};

/// The target of all spans.
pub const TARGET: &str = "otel";

#[cfg(test)]
mod tests;
