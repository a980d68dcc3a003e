//! Node shutdown: [`NodeShutdown`] tracks whether one is under way, [`order`] sorts pods into
//! groups, and [`Logind`] implements [`login_manager`] with systemd-logind. The kubelet's
//! `graceful_shutdown` uses them.

pub mod login_manager;
mod logind;
pub mod order;
mod record;

use std::path::Path;

use tokio::sync::watch;

pub use self::{logind::Logind, record::ShutdownRecord};

/// Whether the node is shutting down, shared by all parts of the kubelet.
#[derive(Debug)]
pub struct NodeShutdown {
    is_under_way: watch::Sender<bool>,
    record: ShutdownRecord,
}

impl NodeShutdown {
    /// State without a shutdown. `root_dir` is the kubelet's root directory.
    pub fn new(root_dir: &Path) -> Self {
        Self {
            is_under_way: watch::Sender::default(),
            record: ShutdownRecord::new(root_dir),
        }
    }

    /// The times of the last graceful shutdown.
    pub const fn record(&self) -> &ShutdownRecord {
        &self.record
    }

    /// Follows whether the node is shutting down.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.is_under_way.subscribe()
    }

    /// Whether the node is shutting down now.
    pub fn is_under_way(&self) -> bool {
        *self.is_under_way.borrow()
    }

    /// Sets whether the node is shutting down; returns whether that is a change.
    pub fn set(&self, is_under_way: bool) -> bool {
        self.is_under_way.send_if_modified(|known| {
            let is_new = *known != is_under_way;
            *known = is_under_way;
            is_new
        })
    }

    /// Why the node is not ready, in upstream's words.
    pub fn problem(&self) -> Option<String> {
        self.is_under_way()
            .then(|| "node is shutting down".to_owned())
    }
}
