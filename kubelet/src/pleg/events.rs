//! The runtime's event stream, with reconnects.

use std::{pin::pin, sync::atomic::Ordering, time::Duration};

use cri_proto::runtime::v1::ContainerEventResponse;
use kubelet_cri_client::{CriError, pod_status};
use kubelet_host::clock;
use kubelet_pacing::backoff::jittered;
use kubelet_pod_spec::identity::PodUid;
use retry_delay::RetryDelay;
use tokio::{sync::mpsc, time::Instant};
use tracing::{info, warn};

use super::{EventHint, Pleg, reported_changes::ReportedChange};

/// A runtime without events refuses the call within this time. One with events may send nothing
/// before the first.
const ACCEPTANCE: Duration = Duration::from_secs(5);
/// A runtime whose events are switched off ends the stream within this time.
const PROBATION: Duration = Duration::from_secs(1);
/// First and longest delay before a stream is reopened. Upstream tries five times without a delay
/// and then gives up.
const RETRY_BASE: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(300);
/// A stream that lasted this long resets the delay.
const GOOD_STREAM: Duration = Duration::from_secs(300);

/// Keeps the event stream open, and forwards its events.
pub(super) struct EventWatch<'a> {
    pleg: &'a Pleg,
    hints: mpsc::Sender<EventHint>,
    retry: RetryDelay,
    /// Whether the lack of events was logged.
    said: bool,
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
enum EndOfStream {
    #[error(transparent)]
    Cri(#[from] CriError),
    #[error("the stream failed: {} ({:?})", _0.message(), _0.code())]
    Broken(Box<tonic::Status>),
    #[error("the runtime closed the stream")]
    Ended,
    #[error("a relist found changes without an event")]
    Deaf,
}

impl<'a> EventWatch<'a> {
    pub(super) const fn new(pleg: &'a Pleg, hints: mpsc::Sender<EventHint>) -> Self {
        Self {
            pleg,
            hints,
            retry: RetryDelay::new(RETRY_BASE, RETRY_MAX),
            said: false,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            let begun = Instant::now();
            let end = tokio::select! {
                biased;
                () = self.pleg.deaf.notified() => EndOfStream::Deaf,
                end = self.stream() => end,
            };
            if matches!(end, EndOfStream::Deaf) {
                // A new stream would be accepted and miss events again.
                self.retry.skip_to_longest();
            } else if begun.elapsed() >= GOOD_STREAM {
                self.retry.reset();
            }
            if self.pleg.evented.swap(false, Ordering::AcqRel) {
                warn!(
                    reason = %end,
                    "lost the runtime's event stream; relisting pods every second"
                );
                self.said = true;
                self.send_hint(EventHint::Something).await;
            } else if !self.said {
                info!(
                    reason = %end,
                    "the runtime provides no event stream; relisting pods every second"
                );
                self.said = true;
            }
            tokio::time::sleep(jittered(self.retry.after_failure())).await;
        }
    }

    /// Forwards the events of one stream until it ends.
    async fn stream(&mut self) -> EndOfStream {
        let mut call = pin!(self.pleg.cri.container_events());
        let mut accepted = match tokio::time::timeout(ACCEPTANCE, &mut call).await {
            Ok(Err(error)) => return self.refused(error),
            Ok(Ok(events)) => Some(events),
            Err(_) => None,
        };
        let mut first = None;
        if let Some(events) = &mut accepted {
            match tokio::time::timeout(PROBATION, events.message()).await {
                Ok(Ok(Some(event))) => first = Some(event),
                Ok(Ok(None)) => return EndOfStream::Ended,
                Ok(Err(status)) => return EndOfStream::Broken(Box::new(status)),
                Err(_) => {}
            }
        }
        info!("using the runtime's event stream");
        self.said = false;
        self.pleg.metrics.streams.of([]).increment();
        self.pleg.evented.store(true, Ordering::Release);
        // For changes before the stream was open.
        self.send_hint(EventHint::Something).await;
        let mut events = match accepted {
            Some(events) => events,
            None => match call.await {
                Ok(events) => events,
                Err(error) => return self.refused(error),
            },
        };
        loop {
            let next = match first.take() {
                Some(event) => Ok(Some(event)),
                None => events.message().await,
            };
            match next {
                Ok(Some(event)) => {
                    self.retry.reset();
                    self.note_latency(&event);
                    self.send_hint(hint(&event)).await;
                }
                Ok(None) => return EndOfStream::Ended,
                Err(status) => return EndOfStream::Broken(Box::new(status)),
            }
        }
    }

    fn refused(&self, error: CriError) -> EndOfStream {
        self.pleg.metrics.stream_errors.of([]).increment();
        error.into()
    }

    /// Records the time from the event to its arrival, assuming synchronous clocks.
    fn note_latency(&self, event: &ContainerEventResponse) {
        let now = i64::try_from(clock::now().as_nanosecond()).unwrap_or(i64::MAX);
        let nanos = u64::try_from(now.saturating_sub(event.created_at)).unwrap_or(0);
        let latencies = self.pleg.metrics.event_latencies.of([]);
        latencies.observe_duration(Duration::from_nanos(nanos));
    }

    async fn send_hint(&self, hint: EventHint) {
        // Fails only if the generator has ended, and this task with it.
        let _ = self.hints.send(hint).await;
    }
}

/// A sandbox that was gone before the event was written, or that no kubelet created, is only found
/// by a list.
fn hint(event: &ContainerEventResponse) -> EventHint {
    let sandbox = event.pod_sandbox_status.as_ref();
    let labelled = sandbox.and_then(|sandbox| pod_status::uid_of(&sandbox.labels));
    let named = sandbox.and_then(|sandbox| sandbox.metadata.as_ref());
    match (labelled, named) {
        (Some(uid), Some(named)) if PodUid::from(named.uid.as_str()) == uid => {
            let change = ReportedChange {
                id: event.container_id.clone(),
                kind: event.container_event_type(),
            };
            EventHint::Pod(uid, change)
        }
        _ => EventHint::Something,
    }
}
