//! The event feed: events of sandboxes and containers, in order, for any number of listeners. A
//! listener that falls behind receives an error and does not block the others.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use cri_proto::runtime::v1::{
    ContainerEventType as Kind, ContainerState, ContainerStatus, PodSandboxState,
};
use tokio::sync::broadcast;

use super::{Container, Id, Sandbox, Snapshot};

/// The number of events that a listener may fall behind.
const BACKLOG: usize = 1024;

/// An event of a sandbox or container.
#[derive(Debug, Clone)]
pub struct ContainerEvent {
    /// The kind of event.
    pub kind: Kind,
    /// The sandbox's or container's id.
    pub id: Id,
    /// When the change was seen, as Unix time in nanoseconds.
    pub seen_at: i64,
    /// The sandbox itself, or the container's sandbox; its last state if it was removed.
    pub sandbox: Option<Arc<Sandbox>>,
    /// The sandbox's containers after the change.
    pub containers: Vec<Arc<Container>>,
}

/// The event feed's sender and its counters.
#[derive(Debug)]
pub struct EventFeed {
    sender: broadcast::Sender<Arc<ContainerEvent>>,
    missed: AtomicU64,
}

impl EventFeed {
    pub(super) fn new() -> Self {
        Self {
            sender: broadcast::Sender::new(BACKLOG),
            missed: AtomicU64::new(0),
        }
    }

    /// Subscribes to events from now on.
    pub fn listen(&self) -> broadcast::Receiver<Arc<ContainerEvent>> {
        self.sender.subscribe()
    }

    /// The number of listeners.
    pub fn listeners(&self) -> usize {
        self.sender.receiver_count()
    }

    /// Counts events that a listener missed because it fell behind.
    pub fn count_missed(&self, events: u64) {
        self.missed.fetch_add(events, Ordering::Relaxed);
    }

    /// The number of events that listeners missed because they fell behind.
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    /// Sends the events that lead from `before` to `after`.
    pub(super) fn publish(&self, id: &Id, before: &Snapshot, after: &Snapshot) {
        if self.listeners() == 0 {
            return;
        }
        let kinds = kinds(Stage::of(before, id), Stage::of(after, id));
        let found = |snapshot: &Snapshot| {
            let container = snapshot.container(id).ok();
            let sandbox = container.map_or_else(|| id.to_string(), |c| c.sandbox_id.clone());
            snapshot.sandbox(&sandbox).ok()
        };
        for kind in kinds {
            let sandbox = found(after).or_else(|| found(before));
            let containers = match &sandbox {
                Some(sandbox) => after.containers_of(sandbox.id()).cloned().collect(),
                None => Vec::new(),
            };
            // Fails only if there is no listener.
            let _ = self.sender.send(Arc::new(ContainerEvent {
                kind,
                id: Arc::clone(id),
                seen_at: crate::clock::now(),
                sandbox,
                containers,
            }));
        }
    }
}

/// A stage in a container's or sandbox's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Missing,
    Created,
    Running,
    /// Ended; true if it ever ran.
    Ended(bool),
}

impl Stage {
    fn of(snapshot: &Snapshot, id: &Id) -> Self {
        if let Ok(sandbox) = snapshot.sandbox(id) {
            return match sandbox.status.state() {
                PodSandboxState::SandboxReady => Self::Running,
                PodSandboxState::SandboxNotready if sandbox.started => Self::Ended(true),
                PodSandboxState::SandboxNotready => Self::Created,
            };
        }
        match snapshot.container(id) {
            Ok(container) => Self::of_container(&container.status),
            Err(_) => Self::Missing,
        }
    }

    fn of_container(status: &ContainerStatus) -> Self {
        match status.state() {
            ContainerState::ContainerCreated => Self::Created,
            ContainerState::ContainerExited => Self::Ended(status.reason != super::CANNOT_RUN),
            ContainerState::ContainerRunning | ContainerState::ContainerUnknown => Self::Running,
        }
    }
}

/// The events between two stages, including those of stages that were not observed.
fn kinds(before: Stage, after: Stage) -> Vec<Kind> {
    use Kind::{
        ContainerCreatedEvent as Created, ContainerDeletedEvent as Deleted,
        ContainerStartedEvent as Started, ContainerStoppedEvent as Stopped,
    };
    let mut kinds = Vec::new();
    if before == Stage::Missing && after != Stage::Missing {
        kinds.push(Created);
    }
    let ran = matches!(after, Stage::Running | Stage::Ended(true));
    if before < Stage::Running && ran {
        kinds.push(Started);
    }
    match after {
        Stage::Missing => {
            if before == Stage::Running {
                kinds.push(Stopped);
            }
            if before != Stage::Missing {
                kinds.push(Deleted);
            }
        }
        Stage::Ended(_) if before <= Stage::Running => kinds.push(Stopped),
        // A user restarted it directly with the engine.
        Stage::Running if before > Stage::Running => kinds.push(Started),
        _ => {}
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_seen_happened_all_the_same() {
        use Kind::*;
        use Stage::*;
        let cases: [(Stage, Stage, &[Kind]); 12] = [
            (Missing, Created, &[ContainerCreatedEvent]),
            (
                Missing,
                Running,
                &[ContainerCreatedEvent, ContainerStartedEvent],
            ),
            (
                Missing,
                Ended(true),
                &[
                    ContainerCreatedEvent,
                    ContainerStartedEvent,
                    ContainerStoppedEvent,
                ],
            ),
            (Created, Created, &[]),
            (Created, Running, &[ContainerStartedEvent]),
            (
                Created,
                Ended(true),
                &[ContainerStartedEvent, ContainerStoppedEvent],
            ),
            (Created, Ended(false), &[ContainerStoppedEvent]),
            (Created, Missing, &[ContainerDeletedEvent]),
            (Running, Ended(true), &[ContainerStoppedEvent]),
            (
                Running,
                Missing,
                &[ContainerStoppedEvent, ContainerDeletedEvent],
            ),
            (Ended(true), Missing, &[ContainerDeletedEvent]),
            (Ended(true), Running, &[ContainerStartedEvent]),
        ];
        for (before, after, expected) in cases {
            assert_eq!(kinds(before, after), expected, "{before:?} {after:?}");
        }
    }
}
