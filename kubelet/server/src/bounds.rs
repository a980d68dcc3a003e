//! Limits on requests that last as long as the client wants. Each kind has a limit of its own, so
//! that they never use up the capacity for short requests.

use std::sync::Arc;

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use cri_streaming::{bound::Bound, connections::ConnectionLimits};
use kubelet_metrics::{Collector, Exposition};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::response::error;

/// Seconds until a refused client may try again.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("10");

/// Limits the concurrent requests of one kind.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    what: &'static str,
    places: Arc<Semaphore>,
    bound: Arc<Bound>,
}

/// Permits one request, until it is dropped.
pub(super) type GatePermit = OwnedSemaphorePermit;

/// The gates of a server.
#[derive(Clone, Debug)]
pub(super) struct Gates {
    /// Followed container logs.
    pub(super) followed_logs: Gate,
    /// `/exec`.
    pub(super) commands: Gate,
    /// `/attach`.
    pub(super) attached: Gate,
    /// `/portForward`.
    pub(super) port_forwards: Gate,
    /// `/run`. The output of a command is in memory until the command ends.
    pub(super) runs: Gate,
}

impl Gate {
    fn new(server: &'static str, name: &'static str, what: &'static str, most: usize) -> Self {
        let most = most.max(1);
        Self {
            what,
            places: Arc::new(Semaphore::new(most)),
            bound: Arc::new(Bound::new(server, name, most)),
        }
    }

    /// Admits a request.
    ///
    /// # Errors
    /// The response to the client if the limit is reached.
    pub(super) fn enter(&self) -> Result<GatePermit, Box<Response>> {
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            self.bound.reach();
            let (most, what) = (self.bound.most(), self.what);
            let reason = format!("this kubelet serves at most {most} {what} at the same time");
            let mut refusal = error(StatusCode::TOO_MANY_REQUESTS, reason);
            let headers = refusal.headers_mut();
            headers.insert(header::RETRY_AFTER, RETRY_AFTER);
            Box::new(refusal)
        })
    }
}

impl Gates {
    /// The gates of a server. The limits are relative to its limit on connections: half of it for
    /// followed logs, a quarter for each kind of stream, since upgraded connections no longer count
    /// as connections, and 1/128 for `/run`.
    pub(super) fn new(server: &'static str, room: ConnectionLimits) -> Self {
        let gate = |name, what, part| Gate::new(server, name, what, room.connections / part);
        Self {
            followed_logs: gate("followed_logs", "followed logs", 2),
            commands: gate("commands", "commands", 4),
            attached: gate("attached", "attached clients", 4),
            port_forwards: gate("port_forwards", "port-forwards", 4),
            runs: gate("runs", "/run commands", 128),
        }
    }

    pub(super) fn bounds(&self) -> Vec<Arc<Bound>> {
        let gates = [
            &self.followed_logs,
            &self.commands,
            &self.attached,
            &self.port_forwards,
            &self.runs,
        ];
        gates.map(|gate| Arc::clone(&gate.bound)).into()
    }
}

/// Counts how often each bound was reached.
#[derive(Debug, Default)]
pub(super) struct BoundMetrics(Vec<Arc<Bound>>);

impl BoundMetrics {
    /// Adds bounds to the metrics.
    pub(super) fn add(&mut self, bounds: impl IntoIterator<Item = Arc<Bound>>) {
        self.0.extend(bounds);
    }
}

impl Collector for BoundMetrics {
    fn collect(&self, page: &mut Exposition) {
        let name = "kubelet_server_bounds_reached_total";
        let help =
            "Number of times a limit on connections or requests was reached, by server and bound.";
        page.family(name, "counter", help);
        for bound in &self.0 {
            let labels = [("server", bound.server()), ("bound", bound.name())];
            page.sample(name, &labels, bound.reached(), None);
        }
    }
}
