//! The history of each container, kept after its removal.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// The history of a container.
#[derive(Clone, Debug)]
pub struct ContainerHistory {
    /// Its id.
    pub id: String,
    /// The UID of its pod.
    pub pod_uid: String,
    /// The id of its sandbox.
    pub sandbox_id: String,
    /// Its name in the pod spec.
    pub name: String,
    /// Its attempt.
    pub attempt: u32,
    /// Its image as the pod spec names it.
    pub image: String,
    /// Its events, in order.
    pub events: Vec<(Instant, ContainerEvent)>,
}

/// An event of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerEvent {
    /// The container was created.
    Created,
    /// The `CreateContainer` call returned its id to the caller.
    CreateReturned,
    /// `StartContainer` was called; the call may have failed.
    StartCalled,
    /// The container started.
    Started,
    /// `StopContainer` was called with this timeout; the call may have failed.
    StopCalled(Duration),
    /// The container exited with this code.
    Ended(EndCause, i32),
    /// The container was removed.
    Removed,
    /// `ExecSync` was called with this command; the call may have failed.
    ExecCalled(Vec<String>),
    /// A command ran and exited with this code.
    ExecEnded(Vec<String>, i32),
}

/// What ended a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// The process itself, or the test acting as the machine.
    Itself,
    /// `StopContainer`: within the timeout, or by SIGKILL after it.
    Stop,
    /// The stop or removal of its sandbox, by SIGKILL and at once.
    SandboxStop,
    /// `RemoveContainer`, by SIGKILL and at once.
    Removal,
}

impl ContainerHistory {
    /// The time at which it started, if it did.
    pub fn started(&self) -> Option<Instant> {
        let mut starts = self.events.iter();
        starts.find_map(|(at, event)| (*event == ContainerEvent::Started).then_some(*at))
    }

    /// When, why and with which exit code it ended, if it did.
    pub fn ended(&self) -> Option<(Instant, EndCause, i32)> {
        self.events.iter().find_map(|(at, event)| match event {
            ContainerEvent::Ended(end, code) => Some((*at, *end, *code)),
            _ => None,
        })
    }

    /// Whether it was running at `at`, including the instants of its start and end.
    pub fn ran_at(&self, at: Instant) -> bool {
        self.started().is_some_and(|started| started <= at)
            && self.ended().is_none_or(|(ended, ..)| ended >= at)
    }

    /// When `StopContainer` was called, and with which timeout.
    pub fn stops(&self) -> impl Iterator<Item = (Instant, Duration)> {
        self.events.iter().filter_map(|(at, event)| match event {
            ContainerEvent::StopCalled(timeout) => Some((*at, *timeout)),
            _ => None,
        })
    }

    /// Whether this event happened.
    pub fn has(&self, event: &ContainerEvent) -> bool {
        self.events.iter().any(|(_, happened)| happened == event)
    }
}

/// The histories of all containers, oldest first.
#[derive(Debug, Default)]
pub(super) struct Histories {
    all: Vec<ContainerHistory>,
    by_id: BTreeMap<String, usize>,
}

impl Histories {
    pub(super) fn begin(&mut self, history: ContainerHistory) {
        let id = history.id.clone();
        self.by_id.insert(id.clone(), self.all.len());
        self.all.push(history);
        self.note(&id, ContainerEvent::Created);
    }

    /// Records an event of a container.
    pub(super) fn note(&mut self, id: &str, event: ContainerEvent) {
        if let Some(index) = self.by_id.get(id) {
            self.all[*index].events.push((Instant::now(), event));
        }
    }

    pub(super) fn all(&self) -> &[ContainerHistory] {
        &self.all
    }
}
