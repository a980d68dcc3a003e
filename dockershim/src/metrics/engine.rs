//! Metrics of calls to the engine, by action and outcome.

use std::time::Duration;

use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};

use super::{Metrics, durations};
use crate::engine::Observe;

type Action = [(&'static str, &'static str); 1];
type ActionAndOutcome = [(&'static str, &'static str); 2];

/// The metrics of calls to the engine. Clones share the same counters.
#[derive(Clone, Debug)]
pub struct EngineMetrics {
    calls: Family<ActionAndOutcome, Counter>,
    durations: Family<Action, Histogram>,
    reconnects: Counter,
}

impl Default for EngineMetrics {
    fn default() -> Self {
        Self {
            calls: Family::default(),
            durations: Family::new_with_constructor(durations),
            reconnects: Counter::default(),
        }
    }
}

impl EngineMetrics {
    pub(super) fn register(&self, metrics: &Metrics) {
        metrics.register(
            "engine_calls",
            "Finished calls to the Docker engine, by action and outcome",
            self.calls.clone(),
        );
        metrics.register_seconds(
            "engine_call_duration",
            "Duration of calls to the Docker engine",
            self.durations.clone(),
        );
        metrics.register(
            "engine_reconnects",
            "Reconnections to the Docker engine after it was unreachable",
            self.reconnects.clone(),
        );
    }
}

impl Observe for EngineMetrics {
    fn called(&self, action: &'static str, outcome: &'static str, took: Duration) {
        self.calls
            .get_or_create(&[("action", action), ("outcome", outcome)])
            .inc();
        self.durations
            .get_or_create(&[("action", action)])
            .observe(took.as_secs_f64());
    }

    fn reconnected(&self) {
        self.reconnects.inc();
    }
}
