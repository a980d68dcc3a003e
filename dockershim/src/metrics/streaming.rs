//! The bounds of the streaming server.

use std::{fmt, sync::Arc};

use cri_streaming::bound::Bound;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter},
};

/// How often each bound on its connections was reached.
#[derive(Debug)]
pub struct StreamingMetrics([Arc<Bound>; 3]);

impl StreamingMetrics {
    /// Of these bounds.
    pub const fn new(bounds: [Arc<Bound>; 3]) -> Self {
        Self(bounds)
    }
}

impl Collector for StreamingMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let name = "streaming_bounds_reached";
        let help = "Connections for which the streaming server had no room, by the bound.";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for bound in &self.0 {
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
        metrics.register_collector(StreamingMetrics::new(bounds.clone()));
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
