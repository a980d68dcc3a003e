//! Watches for changes: of the configuration directory, of the plugins' status, and of sandboxes
//! removed by other clients.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::Cni;
use crate::model::Model;

/// The polling interval of the configuration directory.
const POLL: Duration = Duration::from_secs(2);
/// The interval of `STATUS` requests to the plugins.
const STATUS: Duration = Duration::from_secs(10);
/// The interval between attempts to detach removed sandboxes.
const SWEEP: Duration = Duration::from_secs(60);
/// How often to check whether the engine's sandboxes are known.
const AWAIT_SYNC: Duration = Duration::from_millis(200);

impl Cni {
    /// Watches for changes until `stop`.
    pub async fn run(self: Arc<Self>, model: Arc<Model>, stop: CancellationToken) {
        let work = async {
            tokio::join!(self.poll(), self.ask_status(), self.sweep_gone(&model));
        };
        stop.run_until_cancelled(work).await;
    }

    async fn poll(&self) {
        loop {
            tokio::time::sleep(POLL).await;
            self.config_loader.refresh().await;
        }
    }

    async fn ask_status(&self) {
        loop {
            let answer = match &self.config_loader.loaded().network {
                Ok(network) => self.chain(network).status().await,
                Err(_) => Ok(()),
            };
            let problem = answer.err().map(|error| error.to_string());
            self.config_loader.set_problem(problem);
            // Ask again at once when the configuration changes, as the old status does not apply to
            // it.
            let _ = tokio::time::timeout(STATUS, self.config_loader.reloaded.notified()).await;
        }
    }

    async fn sweep_gone(&self, model: &Model) {
        while !model.synced() {
            tokio::time::sleep(AWAIT_SYNC).await;
        }
        let mut left: HashSet<String> = self.sweep(model).await;
        self.collect_garbage(model).await;
        loop {
            // Do not immediately retry the sandboxes that could not be detached.
            let gone = model.wait_for(|snapshot| {
                let attachments = &self.attachments;
                attachments.any(|id| !snapshot.contains(id) && !left.contains(id))
            });
            let _ = tokio::time::timeout(SWEEP, gone).await;
            left = self.sweep(model).await;
        }
    }
}
