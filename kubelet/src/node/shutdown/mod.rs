//! What is known of shutdowns of the node: [`NodeShutdown`] says how far one is, [`order`] in which
//! order pods end, and [`logind`] is the system's login manager behind the seam of
//! [`login_manager`]. [`crate::graceful_shutdown`] acts on it.

pub mod login_manager;
mod logind;
pub mod order;
mod record;

use std::path::Path;

use tokio::sync::watch;

pub use self::logind::Logind;
use self::record::ShutdownRecord;

/// Whether the node is shutting down, for all who act on it.
#[derive(Debug)]
pub struct NodeShutdown {
    is_under_way: watch::Sender<bool>,
    record: ShutdownRecord,
}

impl NodeShutdown {
    /// There is none yet. The kubelet's own files are below `root_dir`.
    pub fn new(root_dir: &Path) -> Self {
        Self {
            is_under_way: watch::Sender::default(),
            record: ShutdownRecord::new(root_dir),
        }
    }

    /// When the last one was.
    pub(crate) const fn record(&self) -> &ShutdownRecord {
        &self.record
    }

    /// Whether it is, as it changes.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.is_under_way.subscribe()
    }

    /// Whether it is now.
    pub fn is_under_way(&self) -> bool {
        *self.is_under_way.borrow()
    }

    /// Notes whether it is; whether that is new.
    pub(crate) fn set(&self, is_under_way: bool) -> bool {
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
