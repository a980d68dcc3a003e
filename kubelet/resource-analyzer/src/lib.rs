//! The resource analyzer: measures in the background what the volumes, logs and files of pods use
//! on the node (upstream: `pkg/kubelet/server/stats/fs_resource_analyzer.go`).
//!
//! A [`ResourceAnalyzer`] measures everything once in each period, one directory at a time, and
//! publishes the results as an immutable snapshot. Reading the snapshot measures nothing: no request
//! waits for a file system.
//!
//! A measurement may hang. Then only its own file system or driver is not measured meanwhile: each
//! volume has at most one measurement in progress, each file system at most two threads, and all
//! together a limited number of threads (`kubelet_host::bounded_io`).

#![forbid(unsafe_code)]

mod analyzer;
mod directory;
mod error;
mod file_system;
mod files;
mod meter;
mod metrics;
mod progress;
mod rounds;
mod source;
mod threads;
mod usage;
mod walks;

pub use kubelet_volume::usage::Amounts;

pub use self::{
    analyzer::ResourceAnalyzer,
    source::{MeasuredPod, PodSource},
    usage::{Claim, FileUsage, PodFiles, PodUsage, Usages, VolumeUsage},
};
