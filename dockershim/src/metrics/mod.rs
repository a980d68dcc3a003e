//! Prometheus metrics of the shim. Without `--metrics-bind-addr`, there is no [`Metrics`] and
//! nothing is recorded.
//!
//! [`RequestMetrics`] and [`EngineMetrics`] are updated as requests and calls happen; state that
//! the shim has anyway, such as the model's size, is read at every scrape. Other parts of the shim
//! add their own metrics with [`Metrics::register`].

mod bounds;
mod engine;
mod model;
mod requests;

use std::fmt;

use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::text,
    metrics::{family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Metric, Registry, Unit},
};

pub use bounds::BoundMetrics;
pub use engine::EngineMetrics;
pub use model::ModelMetrics;
pub use requests::{InFlight, RequestMetrics};

/// The content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The prefix of all names.
const PREFIX: &str = "dockershim";
/// The upper bounds of duration buckets, in seconds: from an answer from memory to a stop with a
/// long grace period.
const BUCKETS: [f64; 10] = [0.0005, 0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0];

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    /// The requests of CRI clients.
    pub requests: RequestMetrics,
    /// The calls to the engine.
    pub engine: EngineMetrics,
}

impl Metrics {
    /// Creates empty metrics.
    #[expect(
        clippy::new_without_default,
        reason = "a registry that is served is not a default value"
    )]
    pub fn new() -> Self {
        let metrics = Self {
            registry: Mutex::new(Registry::with_prefix(PREFIX)),
            requests: RequestMetrics::default(),
            engine: EngineMetrics::default(),
        };
        metrics.requests.register(&metrics);
        metrics.engine.register(&metrics);
        let build = Family::<[(&str, &str); 2], Gauge>::default();
        build
            .get_or_create(&[
                ("version", env!("CARGO_PKG_VERSION")),
                ("arch", std::env::consts::ARCH),
            ])
            .set(1);
        metrics.register("build_info", "Build information of this binary", build);
        metrics
    }

    /// Adds a metric or family as `name`, without the prefix and, for a counter, without `_total`.
    /// The caller keeps a clone to update.
    pub fn register(&self, name: &str, help: &str, metric: impl Metric) {
        self.registry.lock().register(name, help, metric);
    }

    /// Like [`Metrics::register`], for a duration in seconds; its name gets the suffix `_seconds`.
    pub fn register_seconds(&self, name: &str, help: &str, metric: impl Metric) {
        let mut registry = self.registry.lock();
        registry.register_with_unit(name, help, Unit::Seconds, metric);
    }

    /// Adds a collector that is read at every scrape.
    pub fn register_collector(&self, collector: impl Collector) {
        self.registry.lock().register_collector(Box::new(collector));
    }

    /// Encodes everything in the format of [`CONTENT_TYPE`].
    ///
    /// # Errors
    /// A collector failed.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry.lock())?;
        Ok(text)
    }
}

/// A histogram of durations.
fn durations() -> Histogram {
    Histogram::new(BUCKETS)
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[test]
    fn a_family_that_is_added_later_is_in_the_text() {
        let metrics = Metrics::new();
        let bytes = Counter::<u64>::default();
        metrics.register("log_bytes", "Bytes of logs written", bytes.clone());
        bytes.inc_by(42);
        let text = metrics.encode().unwrap();
        assert!(text.contains("\ndockershim_log_bytes_total 42\n"), "{text}");
        assert!(text.contains("dockershim_build_info{version=\""), "{text}");
    }
}
