//! Metrics of this node's certificates: remaining lifetimes and renewals.

use std::sync::Arc;

use jiff::Timestamp;
use kubelet_host::clock;
use kubelet_metrics::{Collector, Counter, Exposition, Family, Histogram};

use super::pair::{Facts, PairReceiver};
use crate::identity::ClientIdentity;

const MINUTE: f64 = 60.0;
const HOUR: f64 = 60.0 * MINUTE;
const DAY: f64 = 24.0 * HOUR;
const MONTH: f64 = 30.0 * DAY;
/// Buckets for the ages of certificates, in seconds: from a minute to four years of 360 days.
const AGES: &[f64] = &[
    MINUTE,
    HOUR,
    4.0 * HOUR,
    DAY,
    7.0 * DAY,
    MONTH,
    3.0 * MONTH,
    6.0 * MONTH,
    12.0 * MONTH,
    48.0 * MONTH,
];

/// The remaining lifetime of the client certificate.
#[derive(Debug)]
pub struct ClientCertificateMetrics(Arc<ClientIdentity>);

impl ClientCertificateMetrics {
    /// Reports on the certificate of `identity`.
    pub const fn new(identity: Arc<ClientIdentity>) -> Self {
        Self(identity)
    }
}

impl Collector for ClientCertificateMetrics {
    fn collect(&self, page: &mut Exposition) {
        let facts = self.0.current().and_then(|key| Facts::of(&key).ok());
        page.gauge(
            "kubelet_certificate_manager_client_ttl_seconds",
            "[ALPHA] Gauge of the TTL (time-to-live) of the Kubelet's client certificate. The value is in seconds until certificate expiry (negative if already expired). If client certificate is invalid or unused, the value will be +INF.",
            left(facts.map(|facts| facts.not_after)),
        );
    }
}

/// The remaining lifetime of the serving certificate that the API server signed.
#[derive(Debug)]
pub struct ServingCertificateMetrics(PairReceiver);

impl ServingCertificateMetrics {
    /// Reports on the current certificate in `pairs`.
    pub const fn new(pairs: PairReceiver) -> Self {
        Self(pairs)
    }
}

impl Collector for ServingCertificateMetrics {
    fn collect(&self, page: &mut Exposition) {
        let ends = self.0.borrow().as_ref().map(|pair| pair.facts.not_after);
        page.gauge(
            "kubelet_certificate_manager_server_ttl_seconds",
            "[ALPHA] Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The value is in seconds until certificate expiry (negative if already expired). If serving certificate is invalid or unused, the value will be +INF.",
            left(ends),
        );
    }
}

/// The renewals of a certificate.
#[derive(Debug)]
pub struct RenewalMetrics {
    errors: Family<Counter, 0>,
    /// How old certificates were when they were renewed, in seconds.
    ages: Option<Family<Histogram, 0>>,
}

impl RenewalMetrics {
    /// Renewals of the client certificate.
    pub fn client() -> Self {
        Self {
            errors: errors("kubelet_certificate_manager_client_expiration_renew_errors"),
            ages: None,
        }
    }

    /// Renewals of the serving certificate.
    pub fn serving() -> Self {
        Self {
            errors: errors("kubelet_server_expiration_renew_errors"),
            ages: Some(Family::histogram(
                "kubelet_certificate_manager_server_rotation_seconds",
                "[ALPHA] Histogram of the number of seconds the previous certificate lived before being rotated.",
                [],
                AGES,
            )),
        }
    }

    pub(super) fn failed(&self) {
        self.errors.of([]).increment();
    }

    /// Records that a certificate that was valid from this time on was replaced.
    pub(super) fn replaced(&self, not_before: Timestamp) {
        if let Some(ages) = &self.ages {
            let age = clock::now().duration_since(not_before);
            ages.of([]).observe(age.as_secs_f64());
        }
    }
}

fn errors(name: &'static str) -> Family<Counter, 0> {
    let help = "[ALPHA] Counter of certificate renewal errors.";
    Family::counter(name, help, [])
}

impl Collector for RenewalMetrics {
    fn collect(&self, page: &mut Exposition) {
        self.errors.collect(page);
        if let Some(ages) = &self.ages {
            ages.collect(page);
        }
    }
}

/// Seconds until `ends`, in the Prometheus format; infinite without a certificate.
fn left(ends: Option<Timestamp>) -> String {
    match ends {
        Some(ends) => {
            let left = ends.duration_since(clock::now());
            left.as_secs().to_string()
        }
        None => "+Inf".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use tokio::sync::watch;

    use super::*;

    #[test]
    fn certificates_that_are_not_there_never_end() {
        let (_pairs, receiver) = watch::channel(None);
        let mut page = Exposition::default();
        ServingCertificateMetrics::new(receiver).collect(&mut page);
        ClientCertificateMetrics::new(Arc::new(ClientIdentity::new(None))).collect(&mut page);
        let text = page.into_text();
        assert!(text.contains("kubelet_certificate_manager_server_ttl_seconds +Inf\n"));
        assert!(text.contains("kubelet_certificate_manager_client_ttl_seconds +Inf\n"));
    }

    #[test]
    fn renewals_are_counted() {
        let (client, serving) = (RenewalMetrics::client(), RenewalMetrics::serving());
        client.failed();
        client.failed();
        serving.replaced(clock::now() - SignedDuration::from_hours(2));
        let mut page = Exposition::default();
        client.collect(&mut page);
        serving.collect(&mut page);
        let text = page.into_text();
        assert!(text.contains("kubelet_certificate_manager_client_expiration_renew_errors 2\n"));
        assert!(text.contains("kubelet_server_expiration_renew_errors 0\n"));
        let name = "kubelet_certificate_manager_server_rotation_seconds_bucket";
        for (bound, count) in [("3600", 0), ("14400", 1)] {
            let line = format!("{name}{{le=\"{bound}\"}} {count}\n");
            assert!(text.contains(&line), "{line} is not in {text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn certificates_that_have_ended_have_less_than_nothing_left() {
        let ago = |seconds| clock::now() - SignedDuration::from_secs(seconds);
        // Only tokio's clock is paused; the system clock still advances.
        let seconds: i64 = left(Some(ago(3600))).parse().unwrap();
        assert!((-3600..=-3599).contains(&seconds), "{seconds}");
        let seconds: i64 = left(Some(ago(-3600))).parse().unwrap();
        assert!((3599..=3600).contains(&seconds), "{seconds}");
    }
}
