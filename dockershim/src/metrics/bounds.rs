//! Metrics of the bounds on client resources.

use std::{fmt, sync::Arc};

use cri_streaming::bound::Bound;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter},
};

/// How often each bound was reached.
#[derive(Debug)]
pub struct BoundMetrics {
    name: &'static str,
    help: &'static str,
    bounds: Vec<Arc<Bound>>,
}

impl BoundMetrics {
    /// The metrics of the streaming server's bounds.
    pub fn streaming(bounds: impl Into<Vec<Arc<Bound>>>) -> Self {
        Self {
            name: "streaming_bounds_reached",
            help: "Connections and streams that exceeded a bound of the streaming server, by \
                   bound.",
            bounds: bounds.into(),
        }
    }

    /// The metrics of the bounds on CRI calls.
    pub fn cri(bounds: impl Into<Vec<Arc<Bound>>>) -> Self {
        Self {
            name: "cri_bounds_reached",
            help: "CRI responses that were truncated, by bound.",
            bounds: bounds.into(),
        }
    }
}

impl Collector for BoundMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (name, help) = (self.name, self.help);
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for bound in &self.bounds {
            let labels = [("bound", bound.name())];
            ConstCounter::new(bound.reached()).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn each_bound_is_shown() {
        let names = ["connections", "strangers", "strangers_of_address"];
        let bounds = names.map(|name| Arc::new(Bound::new("streaming", name, 1)));
        let metrics = Metrics::new();
        metrics.register_collector(BoundMetrics::streaming(bounds.clone()));
        bounds[1].reach();
        let text = metrics.encode().unwrap();
        for (name, reached) in names.into_iter().zip([0, 1, 0]) {
            let line = format!(
                "\ndockershim_streaming_bounds_reached_total{{bound=\"{name}\"}} {reached}\n"
            );
            assert!(text.contains(&line), "{line} is not in {text}");
        }
    }
}
