//! What the kubelet counts and measures of itself: upstream's names, labels and buckets.
//!
//! Each part has the instruments for what it does, and is asked for them when somebody
//! reads `/metrics`. What a part's state tells is not kept beside it but read then, so
//! that a kubelet whose metrics nobody reads pays for a few atomic additions.

mod exposition;
mod instruments;

use std::fmt;

pub use self::{
    exposition::Exposition,
    instruments::{Counter, Family, Gauge, Histogram, Instrument},
};

/// Buckets of durations in seconds where nothing else is said, as Prometheus' clients.
pub const DEFAULT_BUCKETS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// What has metrics to show.
pub trait Collector: fmt::Debug + Send + Sync {
    /// Writes them.
    fn collect(&self, page: &mut Exposition);
}
