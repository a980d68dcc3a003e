//! The inputs of the sync loop, in round-robin order.

use std::{
    future::poll_fn,
    task::{Context, Poll},
};

use kubelet_pod_spec::identity::PodUid;
use tokio::sync::mpsc;

use crate::{pleg::PodLifecycleEvent, sources::update::PodUpdate};

/// Number of kinds of input.
const KINDS: usize = 3;

/// One input.
#[derive(Debug)]
pub(crate) enum SyncLoopInput {
    /// Pods changed at their source.
    Update(PodUpdate),
    /// The result of a probe of the pod changed.
    Probe(PodUid),
    /// The pod changed in the runtime.
    Event(PodLifecycleEvent),
}

/// Receives the inputs. The kinds take turns, so that a flood of updates starves neither probes nor
/// events.
#[derive(Debug)]
pub(crate) struct SyncLoopInputs {
    updates: mpsc::Receiver<PodUpdate>,
    probes: mpsc::Receiver<PodUid>,
    events: mpsc::Receiver<PodLifecycleEvent>,
    /// The kind to poll first.
    turn: usize,
}

impl SyncLoopInputs {
    pub(crate) const fn new(
        updates: mpsc::Receiver<PodUpdate>,
        probes: mpsc::Receiver<PodUid>,
        events: mpsc::Receiver<PodLifecycleEvent>,
    ) -> Self {
        Self {
            updates,
            probes,
            events,
            turn: 0,
        }
    }

    /// The next input. Never returns once every channel is closed.
    pub(super) async fn next(&mut self) -> SyncLoopInput {
        poll_fn(|context| {
            for after in 0..KINDS {
                let kind = (self.turn + after) % KINDS;
                if let Poll::Ready(Some(input)) = self.poll_kind(kind, context) {
                    self.turn = (kind + 1) % KINDS;
                    return Poll::Ready(input);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next pod lifecycle event only. Never returns once its channel is closed.
    pub(super) async fn next_event(&mut self) -> PodLifecycleEvent {
        match self.events.recv().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }

    fn poll_kind(&mut self, kind: usize, context: &mut Context<'_>) -> Poll<Option<SyncLoopInput>> {
        match kind {
            0 => self
                .updates
                .poll_recv(context)
                .map(|update| update.map(SyncLoopInput::Update)),
            1 => self
                .probes
                .poll_recv(context)
                .map(|uid| uid.map(SyncLoopInput::Probe)),
            _ => self
                .events
                .poll_recv(context)
                .map(|event| event.map(SyncLoopInput::Event)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::update::{PodOperation, Source};

    #[tokio::test]
    async fn a_flood_of_one_kind_starves_no_other() {
        let (updates_in, updates) = mpsc::channel(100);
        let (probes_in, probes) = mpsc::channel(100);
        let (events_in, events) = mpsc::channel(100);
        let mut inputs = SyncLoopInputs::new(updates, probes, events);
        for _ in 0..100 {
            let update = PodUpdate {
                pods: Vec::new(),
                operation: PodOperation::Reconcile,
                source: Source::Api,
            };
            updates_in.try_send(update).unwrap();
            probes_in.try_send(PodUid::from("u")).unwrap();
        }
        let event = PodLifecycleEvent {
            uid: PodUid::from("u"),
            changes: Vec::new(),
        };
        events_in.try_send(event).unwrap();
        let mut kinds = Vec::new();
        for _ in 0..6 {
            kinds.push(match inputs.next().await {
                SyncLoopInput::Update(_) => "update",
                SyncLoopInput::Probe(_) => "probe",
                SyncLoopInput::Event(_) => "event",
            });
        }
        assert_eq!(
            kinds,
            ["update", "probe", "event", "update", "probe", "update"]
        );
        // A closed channel is skipped.
        drop(updates_in);
        drop(probes_in);
        let mut left = 0;
        while tokio::time::timeout(std::time::Duration::ZERO, inputs.next())
            .await
            .is_ok()
        {
            left += 1;
        }
        assert_eq!(left, 195);
    }
}
