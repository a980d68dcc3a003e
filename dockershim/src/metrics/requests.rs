//! Metrics of CRI requests, by verb and code.

use prometheus_client::metrics::{
    counter::Counter, family::Family, gauge::Gauge, histogram::Histogram,
};
use tokio::time::Instant;
use tonic::Code;

use super::{Metrics, durations};

type Verb = [(&'static str, &'static str); 1];
type VerbAndCode = [(&'static str, &'static str); 2];

/// The metrics of requests. Clones share the same counters.
#[derive(Clone, Debug)]
pub struct RequestMetrics {
    ended: Family<VerbAndCode, Counter>,
    durations: Family<Verb, Histogram>,
    in_flight: Gauge,
}

/// A request in progress. Dropping it records its end, with the last code noted, or as cancelled by
/// the client if there was none.
#[derive(Debug)]
pub struct InFlight {
    metrics: RequestMetrics,
    verb: &'static str,
    began: Instant,
    code: Code,
}

// === impl RequestMetrics ===

impl Default for RequestMetrics {
    fn default() -> Self {
        Self {
            ended: Family::default(),
            durations: Family::new_with_constructor(durations),
            in_flight: Gauge::default(),
        }
    }
}

impl RequestMetrics {
    pub(super) fn register(&self, metrics: &Metrics) {
        metrics.register(
            "requests",
            "Finished CRI requests, by verb and gRPC code",
            self.ended.clone(),
        );
        metrics.register_seconds(
            "request_duration",
            "Duration of CRI requests, to the end of the response",
            self.durations.clone(),
        );
        metrics.register(
            "requests_in_flight",
            "CRI requests being served",
            self.in_flight.clone(),
        );
    }

    /// Records the start of a request for `verb`.
    pub fn begin(&self, verb: &'static str) -> InFlight {
        self.in_flight.inc();
        InFlight {
            metrics: self.clone(),
            verb,
            began: Instant::now(),
            code: Code::Cancelled,
        }
    }
}

// === impl InFlight ===

impl InFlight {
    /// Records the response's code.
    pub fn note(&mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let metrics = &self.metrics;
        metrics.in_flight.dec();
        let verb = ("verb", self.verb);
        metrics
            .ended
            .get_or_create(&[verb, ("code", name(self.code))])
            .inc();
        metrics
            .durations
            .get_or_create(&[verb])
            .observe(self.began.elapsed().as_secs_f64());
    }
}

/// A code's name in the metrics of Kubernetes components.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_once_when_it_ends() {
        let metrics = Metrics::new();
        let mut answered = metrics.requests.begin("Status");
        let abandoned = metrics.requests.begin("ExecSync");
        let text = metrics.encode().unwrap();
        assert!(text.contains("dockershim_requests_in_flight 2"), "{text}");
        answered.note(Code::NotFound);
        drop(answered);
        drop(abandoned);
        let text = metrics.encode().unwrap();
        for line in [
            "dockershim_requests_in_flight 0",
            "dockershim_requests_total{verb=\"Status\",code=\"NotFound\"} 1",
            "dockershim_requests_total{verb=\"ExecSync\",code=\"Canceled\"} 1",
            "dockershim_request_duration_seconds_count{verb=\"Status\"} 1",
        ] {
            assert!(text.contains(line), "no {line} in {text}");
        }
    }
}
