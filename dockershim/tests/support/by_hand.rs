//! Changes to the engine's containers by hand, without the shim.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::{ENDED, FakeEngine};

/// When a container was started again by hand, after its first exit.
const STARTED_AGAIN: &str = "2026-01-01T00:00:03Z";

impl FakeEngine {
    /// Makes `pid` the first process of every container that is started from now on.
    pub(crate) fn start_as(&self, pid: u32) {
        self.state.pid.store(pid, Ordering::Relaxed);
    }

    /// `docker restart`.
    pub(crate) fn restart_container(&self, id: &str) {
        self.state.set_running(id, false);
        self.state.emit("die", id);
        self.state.set_running(id, true);
        self.amend(id, |container| {
            container["State"]["StartedAt"] = json!(STARTED_AGAIN);
            container["State"]["FinishedAt"] = json!(ENDED);
        });
        self.state.emit("start", id);
        self.state.emit("restart", id);
    }

    /// `docker start` without an event.
    pub(crate) fn start_unseen(&self, id: &str) {
        self.state.set_running(id, true);
    }

    /// `docker rename`.
    pub(crate) fn rename(&self, id: &str, name: &str) {
        self.amend(id, |container| {
            container["Name"] = json!(format!("/{name}"))
        });
        self.state.emit("rename", id);
    }

    /// `docker image prune` that the shim has not noticed yet.
    pub(crate) fn prune_images(&self) {
        self.state.images.lock().clear();
    }

    /// Whether a container runs.
    pub(crate) fn runs(&self, id: &str) -> bool {
        let container = self.state.find(id);
        container.is_some_and(|container| container["State"]["Running"] == json!(true))
    }

    fn amend(&self, id: &str, change: impl FnOnce(&mut Value)) {
        if let Some(container) = self.state.containers.lock().get_mut(id) {
            change(container);
        }
    }
}
