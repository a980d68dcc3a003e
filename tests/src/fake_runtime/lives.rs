//! What happened to each container, from its creation on, kept beyond its removal.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// All that happened to one container.
#[derive(Clone, Debug)]
pub struct Life {
    /// Its id.
    pub id: String,
    /// UID of its pod.
    pub pod_uid: String,
    /// The sandbox it lived in.
    pub sandbox_id: String,
    /// Its name in the pod spec.
    pub name: String,
    /// Its attempt.
    pub attempt: u32,
    /// Its image as the pod's spec names it.
    pub image: String,
    /// What happened, in order.
    pub events: Vec<(Instant, Event)>,
}

/// What can happen to a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It was created.
    Created,
    /// Who asked for its creation got the answer.
    Told,
    /// It is to start; the call may meet a fault.
    StartAsked,
    /// It runs.
    Started,
    /// It is to end within this time; the call may meet a fault.
    StopAsked(Duration),
    /// It ended, with this code.
    Ended(End, i32),
    /// It is gone.
    Removed,
    /// A command is to run in it; the call may meet a fault.
    CommandAsked(Vec<String>),
    /// A command was run in it, and came to this exit code.
    CommandEnded(Vec<String>, i32),
}

/// What ends a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The process itself, or the test that plays the machine.
    Itself,
    /// A stop of it: at its own time, or by force when that was over.
    Stop,
    /// A stop or removal of its sandbox, by force and at once.
    SandboxStop,
    /// Its removal, by force and at once.
    Removal,
}

impl Life {
    /// When it was started, if it was.
    pub fn started(&self) -> Option<Instant> {
        let mut starts = self.events.iter();
        starts.find_map(|(at, event)| (*event == Event::Started).then_some(*at))
    }

    /// When, by what and with which code it ended, if it ran and did.
    pub fn ended(&self) -> Option<(Instant, End, i32)> {
        self.events.iter().find_map(|(at, event)| match event {
            Event::Ended(end, code) => Some((*at, *end, *code)),
            _ => None,
        })
    }

    /// Whether it ran at `at`. In the moments of its start and of its end it did.
    pub fn ran_at(&self, at: Instant) -> bool {
        self.started().is_some_and(|started| started <= at)
            && self.ended().is_none_or(|(ended, ..)| ended >= at)
    }

    /// When it was to be stopped, and within which time.
    pub fn stops(&self) -> impl Iterator<Item = (Instant, Duration)> {
        self.events.iter().filter_map(|(at, event)| match event {
            Event::StopAsked(timeout) => Some((*at, *timeout)),
            _ => None,
        })
    }

    /// Whether something happened to it.
    pub fn has(&self, event: &Event) -> bool {
        self.events.iter().any(|(_, happened)| happened == event)
    }
}

/// The lives of all containers, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Lives {
    all: Vec<Life>,
    by_id: BTreeMap<String, usize>,
}

impl Lives {
    pub(super) fn begin(&mut self, life: Life) {
        let id = life.id.clone();
        self.by_id.insert(id.clone(), self.all.len());
        self.all.push(life);
        self.note(&id, Event::Created);
    }

    /// Something happened to a container just now.
    pub(super) fn note(&mut self, id: &str, event: Event) {
        if let Some(index) = self.by_id.get(id) {
            self.all[*index].events.push((Instant::now(), event));
        }
    }

    pub(super) fn all(&self) -> &[Life] {
        &self.all
    }
}
