//! The kubelet's metrics: instruments, and the text format that Prometheus scrapes. Names,
//! labels and buckets are upstream's.
//!
//! Each module owns its instruments and is asked for them when `/metrics` is read. A metric that
//! follows from a module's state is computed at that moment and not stored, so that a kubelet
//! that is never scraped pays for a few atomic additions only.

#![forbid(unsafe_code)]

mod exposition;
mod instruments;

use std::fmt;

pub use self::{
    exposition::{Exposition, Labels},
    instruments::{Counter, Family, Gauge, Histogram, Instrument},
};

/// Default buckets for durations in seconds, those of Prometheus' client libraries.
pub const DEFAULT_BUCKETS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// A source of metrics.
pub trait Collector: fmt::Debug + Send + Sync {
    /// Writes the metrics.
    fn collect(&self, page: &mut Exposition);
}
