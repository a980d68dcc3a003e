//! Follows what changes by itself: the configuration directory, the plugins' status, and
//! sandboxes that are removed by others.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::Cni;
use crate::model::Model;

/// How often the configuration directory is looked at.
const POLL: Duration = Duration::from_secs(2);
/// How often the plugins are asked for their status.
const STATUS: Duration = Duration::from_secs(10);
/// The time between attempts to detach sandboxes that are gone.
const SWEEP: Duration = Duration::from_secs(60);
/// How often it is looked whether the engine's sandboxes are known.
const AWAIT_SYNC: Duration = Duration::from_millis(200);

impl Cni {
    /// Follows what changes until `stop`.
    pub async fn run(self: Arc<Self>, model: Arc<Model>, stop: CancellationToken) {
        let work = async {
            tokio::join!(self.poll(), self.ask_status(), self.sweep_gone(&model));
        };
        stop.run_until_cancelled(work).await;
    }

    async fn poll(&self) {
        loop {
            tokio::time::sleep(POLL).await;
            self.source.refresh().await;
        }
    }

    async fn ask_status(&self) {
        loop {
            let answer = match &self.source.loaded().network {
                Ok(network) => self.chain(network).status().await,
                Err(_) => Ok(()),
            };
            let problem = answer.err().map(|error| error.to_string());
            self.source.set_problem(problem);
            // What it said of a configuration that is out of use says nothing of the next.
            let _ = tokio::time::timeout(STATUS, self.source.reloaded.notified()).await;
        }
    }

    async fn sweep_gone(&self, model: &Model) {
        while !model.synced() {
            tokio::time::sleep(AWAIT_SYNC).await;
        }
        let mut left: HashSet<String> = self.sweep(model).await;
        self.collect_garbage(model).await;
        loop {
            // What was not detached is not tried again at once.
            let gone = model.wait_for(|snapshot| {
                let attachments = &self.attachments;
                attachments.any(|id| !snapshot.contains(id) && !left.contains(id))
            });
            let _ = tokio::time::timeout(SWEEP, gone).await;
            left = self.sweep(model).await;
        }
    }
}
