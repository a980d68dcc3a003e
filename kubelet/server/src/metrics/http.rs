//! Metrics of requests to the kubelet's API.

use std::sync::Arc;

use axum::http::{Method, Request};
use kubelet_metrics::{Collector, Counter, DEFAULT_BUCKETS, Exposition, Family, Gauge, Histogram};
use tokio::time::Instant;

/// Methods with a label value of their own.
const METHODS: [&str; 8] = [
    "OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT",
];

/// Paths with a label value of their own, by prefix.
const ROUTES: [&str; 17] = [
    "attach",
    "checkpoint",
    "configz",
    "containerLogs",
    "debug",
    "exec",
    "healthz",
    "logs",
    "metrics",
    "metrics/cadvisor",
    "metrics/probes",
    "metrics/resource",
    "pods",
    "portForward",
    "run",
    "runningpods",
    "stats",
];

/// Paths of long-running requests, spelled as in upstream: `portforward` does not match the path
/// `portForward`.
const LONG_RUNNING: [&str; 4] = ["attach", "debug", "exec", "portforward"];

/// The server type of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerType {
    /// The read-only API.
    ReadOnly,
    /// The secure port.
    ReadWrite,
}

/// Request metrics of the kubelet's API servers.
#[derive(Debug)]
pub(crate) struct HttpMetrics {
    requests: Family<Counter, 4>,
    durations: Family<Histogram, 4>,
    in_flight: Family<Gauge, 4>,
}

impl Default for HttpMetrics {
    fn default() -> Self {
        let labels = ["method", "path", "server_type", "long_running"];
        Self {
            requests: Family::counter(
                "kubelet_http_requests_total",
                "[ALPHA] Number of the http requests received since the server started",
                labels,
            ),
            durations: Family::histogram(
                "kubelet_http_requests_duration_seconds",
                "[ALPHA] Duration in seconds to serve http requests",
                labels,
                DEFAULT_BUCKETS,
            ),
            in_flight: Family::gauge(
                "kubelet_http_inflight_requests",
                "[ALPHA] Number of the inflight http requests",
                labels,
            ),
        }
    }
}

impl HttpMetrics {
    /// Counts a request. It is in flight until the returned value is dropped.
    pub(crate) fn begin<B>(&self, request: &Request<B>, server: ServerType) -> Serving {
        let path = route(request.uri().path());
        let long_running = LONG_RUNNING.contains(&path);
        let labels = [
            method(request.method()),
            path,
            match server {
                ServerType::ReadOnly => "readonly",
                ServerType::ReadWrite => "readwrite",
            },
            if long_running { "true" } else { "false" },
        ];
        self.requests.of(labels).increment();
        let in_flight = self.in_flight.of(labels);
        in_flight.increment();
        Serving {
            begun: Instant::now(),
            in_flight,
            durations: self.durations.of(labels),
        }
    }
}

impl Collector for HttpMetrics {
    fn collect(&self, page: &mut Exposition) {
        self.requests.collect(page);
        self.durations.collect(page);
        self.in_flight.collect(page);
    }
}

/// A request in flight.
#[derive(Debug)]
pub(crate) struct Serving {
    begun: Instant,
    in_flight: Arc<Gauge>,
    durations: Arc<Histogram>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.in_flight.decrement();
        self.durations.observe_duration(self.begun.elapsed());
    }
}

fn method(method: &Method) -> &'static str {
    let mut known = METHODS.into_iter();
    known
        .find(|known| *known == method.as_str())
        .unwrap_or("other")
}

/// The label value of a path: its first segment, or the first two below `/metrics`.
pub(crate) fn route(path: &str) -> &'static str {
    let path = path.strip_prefix('/').unwrap_or(path);
    let mut parts = path.splitn(3, '/');
    let first = parts.next().unwrap_or_default();
    let mut known = ROUTES.into_iter();
    let found = match parts.next() {
        Some(second) if first == "metrics" => {
            known.find(|known| known.strip_prefix("metrics/") == Some(second))
        }
        _ => known.find(|known| *known == first),
    };
    found.unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, response::Response};

    use super::*;
    use crate::body_guard::attach_to_body;

    #[test]
    fn routes_are_told_by_what_paths_begin_with() {
        for (path, expected) in [
            ("/metrics", "metrics"),
            ("/metrics/probes", "metrics/probes"),
            ("/metrics/probes/more", "metrics/probes"),
            ("/metrics/nothing", "other"),
            ("/exec/default/web/app", "exec"),
            ("/debug/pprof/profile", "debug"),
            ("/pods/", "pods"),
            ("/", "other"),
            ("/nothing", "other"),
        ] {
            assert_eq!(route(path), expected, "{path}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_in_flight_until_their_answers_are_read() {
        let metrics = HttpMetrics::default();
        let text = || {
            let mut page = Exposition::default();
            metrics.collect(&mut page);
            page.into_text()
        };
        let request = Request::builder()
            .method("PATCH")
            .uri("/exec/a/b/c")
            .body(())
            .unwrap();
        let serving = metrics.begin(&request, ServerType::ReadWrite);
        let answer = attach_to_body(Response::new(Body::from("text")), serving);
        let labels =
            "{method=\"other\",path=\"exec\",server_type=\"readwrite\",long_running=\"true\"}";
        let during = text();
        assert!(during.contains(&format!("kubelet_http_requests_total{labels} 1\n")));
        assert!(during.contains(&format!("kubelet_http_inflight_requests{labels} 1\n")));
        assert!(during.contains(&format!(
            "kubelet_http_requests_duration_seconds_count{labels} 0\n"
        )));
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        let body = axum::body::to_bytes(answer.into_body(), 100).await.unwrap();
        assert_eq!(body, "text");
        let after = text();
        assert!(after.contains(&format!("kubelet_http_inflight_requests{labels} 0\n")));
        for (bound, count) in [("2.5", 0), ("5", 1)] {
            let series = labels.replace('}', &format!(",le=\"{bound}\"}}"));
            let line = format!("kubelet_http_requests_duration_seconds_bucket{series} {count}\n");
            assert!(after.contains(&line), "{line} is not in {after}");
        }
    }
}
