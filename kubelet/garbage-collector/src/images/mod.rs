//! Removal of unused images.

mod collector;
mod error;
mod host;
mod in_use;
mod metrics;
mod options;
mod plan;
mod store;
mod tracker;
mod usage;

pub use self::{
    collector::{FreedImages, ImageCandidate, ImageCandidates, ImageCollector},
    error::ImageGcError,
    host::{DiskSpace, ImageHost, ImageVolumes},
    metrics::ImageReason,
    options::ImageGcOptions,
};
