//! Metrics of requests to the API server.

use std::{borrow::Cow, time::Duration};

use hyper::{Method, StatusCode};
use kubelet_metrics::{Collector, Counter, Exposition, Family, Histogram};

/// Buckets of request durations in seconds, as upstream.
const BUCKETS: &[f64] = &[
    0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
];

/// Metrics shared by the clients of one API server.
#[derive(Debug)]
pub struct RestMetrics {
    /// Host and port of the server.
    host: String,
    requests: Family<Counter, 3>,
    durations: Family<Histogram, 2>,
}

impl RestMetrics {
    pub(super) fn new(host: String) -> Self {
        Self {
            host,
            requests: Family::counter(
                "rest_client_requests_total",
                "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.",
                ["code", "method", "host"],
            ),
            durations: Family::histogram(
                "rest_client_request_duration_seconds",
                "[ALPHA] Request latency in seconds. Broken down by verb, and host.",
                ["verb", "host"],
                BUCKETS,
            ),
        }
    }

    /// Counts a request; `status` is unset if it got no response.
    pub(super) fn answered(&self, method: &Method, status: Option<StatusCode>, took: Duration) {
        let method = || Cow::Owned(method.as_str().to_owned());
        let host = || Cow::Owned(self.host.clone());
        let code = match status {
            Some(status) => Cow::Owned(status.as_str().to_owned()),
            None => Cow::Borrowed("<error>"),
        };
        self.requests.with([code, method(), host()]).increment();
        let durations = self.durations.with([method(), host()]);
        durations.observe_duration(took);
    }
}

impl Collector for RestMetrics {
    fn collect(&self, page: &mut Exposition) {
        self.requests.collect(page);
        self.durations.collect(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_what_was_answered() {
        let metrics = RestMetrics::new("10.0.0.1:6443".to_owned());
        let took = Duration::from_millis(20);
        metrics.answered(&Method::GET, Some(StatusCode::NOT_FOUND), took);
        metrics.answered(&Method::PATCH, None, took);
        let mut page = Exposition::default();
        metrics.collect(&mut page);
        let text = page.into_text();
        for line in [
            "rest_client_requests_total{code=\"404\",method=\"GET\",host=\"10.0.0.1:6443\"} 1\n",
            "rest_client_requests_total{code=\"<error>\",method=\"PATCH\",host=\"10.0.0.1:6443\"} 1\n",
            "rest_client_request_duration_seconds_bucket{verb=\"GET\",host=\"10.0.0.1:6443\",le=\"0.005\"} 0\n",
            "rest_client_request_duration_seconds_bucket{verb=\"GET\",host=\"10.0.0.1:6443\",le=\"0.025\"} 1\n",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
