//! The file source: pods from a manifest file or a directory of manifests.

use std::{collections::BTreeSet, ffi::OsString, path::PathBuf, sync::Arc, time::Duration};

use kubelet_host::repeatable::blocking;
use parking_lot::Mutex;
use tokio::time;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::{
    manifests::Manifests,
    watch::{Change, Watch},
};
use crate::sources::pod_config::SourceHandle;

/// A burst of changes ends after this time without a change ...
const QUIET: Duration = Duration::from_millis(10);
/// ... or after this time in total.
const MOST_QUIET: Duration = Duration::from_millis(250);
/// Between attempts to establish a watch.
const RETRY: Duration = Duration::from_secs(1);

/// Reads manifests when they change, and all of them periodically.
///
/// Level-triggered: every scan covers everything, and unchanged files are recognised by their
/// metadata.
#[derive(Debug)]
pub struct FileSource {
    /// A manifest, or a directory of manifests.
    pub path: PathBuf,
    /// Name of this node, which becomes part of the pods' names.
    pub node_name: String,
    /// Period of scans without a detected change.
    pub check_frequency: Duration,
}

impl FileSource {
    /// Sends the pods to `mux` until `cancel`, or until the receiver is gone.
    pub async fn run(self, mux: SourceHandle, cancel: CancellationToken) {
        info!(path = %self.path.display(), "reading static pods from a path");
        // Survives a failed scan, so that good manifests are kept.
        let manifests = Arc::new(Mutex::new(Manifests::new(
            self.path.clone(),
            self.node_name.clone(),
        )));
        let mut watch = None;
        let mut gone = BTreeSet::new();
        loop {
            // Watch before reading, so that no change in between is missed.
            if !watch
                .as_ref()
                .is_some_and(|watch: &Watch| watch.is_current(&self.path))
            {
                watch = Watch::new(&self.path).ok();
            }
            let scanned = manifests.clone();
            let names = std::mem::take(&mut gone);
            match blocking(move || scanned.lock().scan(&names)).await {
                Ok(sets) => {
                    for set in sets {
                        tokio::select! {
                            biased;
                            () = cancel.cancelled() => return,
                            told = mux.set(set) => if told.is_err() {
                                return;
                            }
                        }
                    }
                }
                Err(error) => {
                    error!(
                        %error, path = %self.path.display(),
                        "the manifest scan failed; retrying at the next change or check"
                    );
                }
            }
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                () = self.reason_to_look(&mut watch, &mut gone) => {}
            }
        }
    }

    /// Waits for a change, or for the next periodic scan. Collects the names of files that
    /// disappeared meanwhile.
    async fn reason_to_look(&self, watch: &mut Option<Watch>, gone: &mut BTreeSet<OsString>) {
        let Some(watching) = watch else {
            return time::sleep(self.check_frequency.min(RETRY)).await;
        };
        let Ok(first) = time::timeout(self.check_frequency, watching.changed()).await else {
            return;
        };
        let mut note = |change| match change {
            Change::Something => true,
            Change::Gone(name) => {
                gone.insert(name);
                true
            }
            Change::End => false,
        };
        let mut goes_on = note(first);
        let burst = async {
            while goes_on && let Ok(more) = time::timeout(QUIET, watching.changed()).await {
                goes_on = note(more);
            }
        };
        // Stop at the limit: the rest of the burst triggers the next scan.
        let _ = time::timeout(MOST_QUIET, burst).await;
        if !goes_on {
            *watch = None;
            // Replacing a directory takes a moment.
            time::sleep(QUIET).await;
        }
    }
}
