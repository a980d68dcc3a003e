//! `/metrics/slis`: the results of the health checks, as service level indicators.

use std::{collections::BTreeMap, sync::Arc};

use axum::{Router, http::StatusCode, response::Response, routing::get};
use kubelet_metrics::Exposition;
use parking_lot::Mutex;

use super::{page, this_process};
use crate::response::text;

/// The results of health checks since the start or the last reset. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct HealthResults(Arc<Mutex<BTreeMap<&'static str, Results>>>);

#[derive(Debug, Default)]
struct Results {
    /// Whether the check succeeded last.
    success: bool,
    successes: u64,
    errors: u64,
}

impl HealthResults {
    /// Records the result of a check of `/healthz`.
    pub(crate) fn record(&self, check: &'static str, success: bool) {
        let mut results = self.0.lock();
        let results = results.entry(check).or_default();
        results.success = success;
        match success {
            true => results.successes += 1,
            false => results.errors += 1,
        }
    }

    fn collect(&self, metrics: &mut Exposition) {
        let results = self.0.lock();
        if results.is_empty() {
            return;
        }
        let name = "kubernetes_healthcheck";
        let help = "[STABLE] This metric records the result of a single healthcheck.";
        metrics.family(name, "gauge", help);
        for (check, results) in &*results {
            let labels = [("name", *check), ("type", "healthz")];
            metrics.sample(name, &labels, u64::from(results.success), None);
        }
        let name = "kubernetes_healthchecks_total";
        let help = "[STABLE] This metric records the results of all healthcheck.";
        metrics.family(name, "counter", help);
        for (check, results) in &*results {
            for (status, count) in [("error", results.errors), ("success", results.successes)] {
                if count > 0 {
                    let labels = [("name", *check), ("status", status), ("type", "healthz")];
                    metrics.sample(name, &labels, count, None);
                }
            }
        }
    }
}

/// `/metrics/slis`; `DELETE` resets the results.
pub(super) fn routes(results: HealthResults) -> Router {
    let read = {
        let results = results.clone();
        move || async move {
            let mut metrics = Exposition::default();
            results.collect(&mut metrics);
            if let Some(process) = this_process().await {
                process.collect_start(&mut metrics);
            }
            page(metrics)
        }
    };
    let reset = move || async move { reset(&results) };
    Router::new().route("/metrics/slis", get(read).delete(reset))
}

fn reset(results: &HealthResults) -> Response {
    results.0.lock().clear();
    text(StatusCode::OK, "metrics reset\n".to_owned())
}
