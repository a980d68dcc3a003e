//! Sends events to the API server.

use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use kubelet_host::repeatable::random;
use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{EventQueue, correlator::Correlator};
use crate::request::{ApiError, ask};

/// Maximum number of attempts per event, as upstream.
const TRIES: u32 = 12;
/// Delay between attempts. The first delay is a random part of it.
const RETRY_PERIOD: Duration = Duration::from_secs(10);
/// How long a kubelet that stops goes on sending the events it has recorded.
const DRAIN: Duration = Duration::from_secs(1);

/// Sends recorded events to the API server. During an outage, events wait in the queue; each is
/// dropped after its last attempt.
pub struct EventSender {
    client: Client,
    queue: EventQueue,
    correlator: Correlator,
}

impl std::fmt::Debug for EventSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventSender").finish_non_exhaustive()
    }
}

impl EventSender {
    /// Sends the events in `queue` through `client`, which has a rate limit.
    pub fn new(client: Client, queue: EventQueue) -> Self {
        Self {
            client,
            queue,
            correlator: Correlator::default(),
        }
    }

    /// Sends events until all recorders are dropped, or until cancelled. Events that were recorded
    /// by then are still sent, for at most a second: they may say why the kubelet stops.
    pub async fn run(mut self, cancel: CancellationToken) {
        let drained = async {
            cancel.cancelled().await;
            sleep(DRAIN).await;
        };
        tokio::select! {
            () = self.send_all(&cancel) => {}
            () = drained => {}
        }
    }

    async fn send_all(&mut self, cancel: &CancellationToken) {
        loop {
            let event = tokio::select! {
                biased;
                event = self.queue.recv() => event,
                () = cancel.cancelled() => None,
            };
            let Some(event) = event else {
                return;
            };
            if let Some(event) = self.correlator.correlate(event) {
                self.send(event).await;
            }
        }
    }

    async fn send(&self, event: Event) {
        let object = event.involved_object.name.as_deref().unwrap_or_default();
        let reason = event.reason.as_deref().unwrap_or_default();
        for attempt in 1..=TRIES {
            let Err(error) = self.write(&event).await else {
                return;
            };
            if !error.is_away() {
                if error.is_already_exists() || is_namespace_ending(&error) {
                    debug!(object, reason, %error, "the API server rejected an event");
                } else {
                    warn!(object, reason, %error, "the API server rejected an event");
                }
                return;
            }
            if attempt == TRIES {
                // If the API server is unreachable, the log already says so.
                debug!(object, reason, %error, "cannot send an event; giving up");
                return;
            }
            // Spreads the kubelets that waited for the API server together.
            let share = u32::try_from(random() % 1024).unwrap_or_default();
            sleep(match attempt {
                1 => RETRY_PERIOD * share / 1024,
                _ => RETRY_PERIOD,
            })
            .await;
        }
    }

    /// Creates the event, or updates its count if it exists.
    async fn write(&self, event: &Event) -> Result<(), ApiError> {
        let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
        let api = Api::<Event>::namespaced(self.client.clone(), namespace);
        let name = event.metadata.name.as_deref().unwrap_or_default();
        if event.count > Some(1) {
            let patch = json!({
                "count": event.count,
                "lastTimestamp": event.last_timestamp,
                "message": event.message,
            });
            let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
            match ask(api.patch(name, &params, &patch)).await {
                Ok(_) => return Ok(()),
                // The API server deletes events after a while.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        ask(api.create(&PostParams::default(), event)).await?;
        Ok(())
    }
}

/// Whether the event's namespace is terminating.
fn is_namespace_ending(error: &ApiError) -> bool {
    let ApiError::Refused(status) = error else {
        return false;
    };
    let details = status.details.as_ref();
    let mut causes = details.into_iter().flat_map(|details| &details.causes);
    causes.any(|cause| cause.reason == "NamespaceTerminating")
}

#[cfg(test)]
mod tests;
