//! The live model of the engine's containers, as immutable records.
//!
//! A reader takes a [`Snapshot`] and is never blocked by a writer or by the engine. Writers are
//! [`resync`](crate::resync), which follows the engine's events, and the CRI verbs, which update the record of what
//! they changed before they return. Both store the result of an inspect under a [`Ticket`] drawn
//! before the inspect began. A record is never replaced by one with an older ticket, so a slow
//! inspect can neither undo a later change nor restore a removed container.

mod comparison;
pub mod convert;
mod event_feed;
mod record;
mod snapshot;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, OnceLock},
};

use arc_swap::ArcSwap;
use cri_proto::runtime::v1::PodSandboxState;
use parking_lot::Mutex;
use tokio::sync::watch;

pub(crate) use comparison::differences;
pub use comparison::{Difference, Differences};
pub use event_feed::{ContainerEvent, EventFeed};
pub use record::{Container, Record, Sandbox};
pub use snapshot::{Id, Snapshot};

/// The reason of a container that the engine failed to start.
pub(crate) const CANNOT_RUN: &str = "ContainerCannotRun";
/// The reason of a container that lost a process to the kernel's OOM killer.
pub(crate) const OOM_KILLED: &str = "OOMKilled";

/// The live model of the engine's sandboxes and containers.
#[derive(Debug)]
pub struct Model {
    current: ArcSwap<Snapshot>,
    writer: Mutex<Writer>,
    revision: watch::Sender<u64>,
    /// The events of sandboxes and containers.
    pub events: EventFeed,
    /// The differences found by comparisons with the engine's list.
    pub differences: Differences,
    synced: OnceLock<()>,
    /// Whether the engine's list has been read since the last connect.
    in_step: watch::Sender<bool>,
}

/// Orders the writes. `clock` is a logical clock, unrelated to time.
#[derive(Debug, Default)]
struct Writer {
    clock: u64,
    /// Tickets in use: their results may still arrive.
    open: BTreeSet<u64>,
    /// The ticket of the newest information on each id. Kept after a removal for as long as an
    /// older ticket is in use.
    as_of: HashMap<Id, u64>,
}

/// The time at which an inspect or list of the engine began.
#[derive(Debug)]
pub struct Ticket<'a> {
    model: &'a Model,
    began: u64,
}

// === impl Model ===

impl Model {
    /// Creates an empty model that has not been synced.
    #[expect(
        clippy::new_without_default,
        reason = "an unsynced model is no default value"
    )]
    pub fn new() -> Self {
        Self {
            current: ArcSwap::default(),
            writer: Mutex::default(),
            revision: watch::Sender::new(0),
            events: EventFeed::new(),
            differences: Differences::default(),
            synced: OnceLock::new(),
            in_step: watch::Sender::new(false),
        }
    }

    /// The current state.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Whether the engine's containers have been read at least once since the start.
    pub fn synced(&self) -> bool {
        self.synced.get().is_some()
    }

    pub(crate) fn set_synced(&self) {
        // Only the first sync counts; later ones change nothing.
        let _ = self.synced.set(());
    }

    /// Whether the engine's list has been read since the last connect. Until then, the model may
    /// show the engine's state from before the disconnect.
    pub fn in_step(&self) -> bool {
        *self.in_step.borrow()
    }

    /// Waits until [`Model::in_step`].
    pub async fn wait_in_step(&self) {
        // `self` owns the sender, so it cannot be dropped.
        let _ = self.in_step.subscribe().wait_for(|in_step| *in_step).await;
    }

    pub(crate) fn set_in_step(&self, in_step: bool) {
        self.in_step.send_replace(in_step);
    }

    /// Checks that the model has nothing about `id` that is newer than `ticket`.
    pub(crate) fn nothing_newer(&self, ticket: &Ticket<'_>, id: &str) -> bool {
        let writer = self.writer.lock();
        writer
            .as_of
            .get(id)
            .is_none_or(|newest| *newest < ticket.began)
    }

    /// Draws a ticket; must be called before the request to the engine.
    pub fn ticket(&self) -> Ticket<'_> {
        let mut writer = self.writer.lock();
        writer.clock += 1;
        let began = writer.clock;
        writer.open.insert(began);
        Ticket { model: self, began }
    }

    /// Stores the result of an inspect of `id` under `ticket`; `None` if the container does not
    /// exist. Returns whether the result was accepted: one with a ticket older than the record's is
    /// ignored.
    pub fn put(&self, ticket: &Ticket<'_>, id: &str, record: Option<Record>) -> bool {
        let mut writer = self.writer.lock();
        if writer
            .as_of
            .get(id)
            .is_some_and(|newest| *newest > ticket.began)
        {
            return false;
        }
        let id: Id = id.into();
        writer.as_of.insert(Arc::clone(&id), ticket.began);
        self.write(&id, record);
        true
    }

    /// Like [`Model::put`], but only if nothing is known about `id` yet.
    pub fn put_if_absent(&self, ticket: &Ticket<'_>, id: &str, record: Record) -> bool {
        let known = self.writer.lock().as_of.contains_key(id);
        !known && self.put(ticket, id, Some(record))
    }

    /// Records that `id` was removed, as of now.
    pub fn remove(&self, id: &str) {
        self.put(&self.ticket(), id, None);
    }

    /// Changes a container's record, as of now; for changes whose result could not be inspected.
    pub fn amend_container(&self, id: &str, change: impl FnOnce(&mut Container)) {
        let ticket = self.ticket();
        if let Ok(container) = self.snapshot().container(id) {
            let mut changed = Container::clone(&container);
            change(&mut changed);
            self.put(&ticket, id, Some(Record::Container(Arc::new(changed))));
        }
    }

    /// Waits until the model satisfies `condition`.
    pub async fn wait_for(&self, mut condition: impl FnMut(&Snapshot) -> bool) {
        let mut revision = self.revision.subscribe();
        while !condition(&self.snapshot()) {
            // `self` owns the sender, so it cannot be dropped.
            if revision.changed().await.is_err() {
                return;
            }
        }
    }

    /// Read-copy-update; the caller must hold the writer's lock.
    fn write(&self, id: &Id, record: Option<Record>) {
        let current = self.current.load();
        if current.holds(id, record.as_ref()) {
            return;
        }
        let mut next = Snapshot::clone(&current);
        log_change(&current, id, record.as_ref());
        next.set(id, record);
        let next = Arc::new(next);
        // Stored before listeners are notified, so that they see the change in the snapshot.
        self.current.store(Arc::clone(&next));
        // Containers found by the first sync are not new, so they cause no events.
        if self.synced() {
            self.events.publish(id, &current, &next);
        }
        self.revision.send_modify(|revision| *revision += 1);
    }
}

fn log_change(current: &Snapshot, id: &Id, record: Option<&Record>) {
    match record {
        Some(Record::Sandbox(new)) => {
            let before = current.sandbox(id).ok().map(|old| old.status.state());
            if before != Some(new.status.state()) {
                let state = new.status.state().as_str_name();
                tracing::info!(
                    pod = new.pod(),
                    pod_uid = new.uid(),
                    sandbox_id = &**id,
                    state,
                    "sandbox"
                );
                if new.pid != 0 && new.status.state() == PodSandboxState::SandboxNotready {
                    tracing::warn!(
                        pod = new.pod(),
                        sandbox_id = &**id,
                        "the sandbox was restarted outside the shim: it has lost its network and \
                         is not ready"
                    );
                }
            }
        }
        Some(Record::Container(new)) => {
            let before = current.container(id).ok().map(|old| old.status.state());
            if before != Some(new.status.state()) {
                let state = new.status.state().as_str_name();
                let exit_code = new.status.exit_code;
                tracing::info!(
                    container = new.name(),
                    container_id = &**id,
                    sandbox_id = new.sandbox_id,
                    state,
                    exit_code,
                    "container"
                );
            }
        }
        None if current.sandbox(id).is_ok() => {
            tracing::info!(sandbox_id = &**id, "sandbox removed");
        }
        None => tracing::info!(container_id = &**id, "container removed"),
    }
}

// === impl Ticket ===

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut writer = self.model.writer.lock();
        writer.open.remove(&self.began);
        let oldest = writer.open.first().copied().unwrap_or(u64::MAX);
        let live = self.model.current.load();
        writer
            .as_of
            .retain(|id, newest| live.contains(id) || *newest > oldest);
    }
}

#[cfg(test)]
mod tests;
