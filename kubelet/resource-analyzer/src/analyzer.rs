//! The analyzer, and the snapshot of its results.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use kubelet_api_client::events::EventRecorder;
use kubelet_metrics::{Collector, Exposition};
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use crate::{
    meter::Meter,
    metrics,
    progress::Progress,
    rounds::Rounds,
    source::PodSource,
    usage::{Usages, VolumeUsage},
    walks::Walks,
};

/// Measures pods until it is stopped. Other parts read the results at any time.
#[derive(Debug)]
pub struct ResourceAnalyzer {
    pods: Box<dyn PodSource>,
    period: Option<Duration>,
    events: EventRecorder,
    meter: Meter,
    latest: ArcSwap<Usages>,
    walks: Arc<Walks>,
    progress: watch::Sender<Progress>,
    wake: Notify,
}

impl ResourceAnalyzer {
    /// An analyzer that measures the pods of a source, with a pause of `period` after each round;
    /// never if it is `None`. `events` receives abnormal conditions of volumes.
    pub fn new(pods: Box<dyn PodSource>, period: Option<Duration>, events: EventRecorder) -> Self {
        Self {
            pods,
            period,
            events,
            meter: Meter::default(),
            latest: ArcSwap::default(),
            walks: Arc::default(),
            progress: watch::Sender::default(),
            wake: Notify::new(),
        }
    }

    /// The last results.
    pub fn usages(&self) -> Arc<Usages> {
        self.latest.load_full()
    }

    /// The last results, and what measurements in progress have found if it is more: a directory with
    /// very many files takes long.
    pub fn usages_so_far(&self) -> Arc<Usages> {
        let walks = self.walks.found();
        let mut usages = self.usages();
        for ((uid, name), found) in walks {
            let so_far = found.usage();
            let Some(usage) = Arc::make_mut(&mut usages).get_mut(&uid) else {
                continue;
            };
            let volumes = &mut Arc::make_mut(usage).volumes;
            let volume = volumes.entry(name);
            let volume = volume.or_insert_with_key(|name| VolumeUsage::of(&found.pod, name));
            volume.bytes.used = volume.bytes.used.max(so_far.bytes);
            volume.inodes.used = volume.inodes.used.max(so_far.inodes);
        }
        usages
    }

    /// Measures everything again, in `limit` at most, without rests. What takes longer has its last
    /// results.
    pub async fn measure(&self, limit: Duration) {
        if self.period.is_none() {
            return;
        }
        let mut progress = self.progress.subscribe();
        // The first round that begins after this.
        let wanted = progress.borrow().begun + 1;
        let _waiting = self.walks.wait();
        self.wake.notify_one();
        let ended = progress.wait_for(|progress| progress.ended >= wanted);
        if timeout(limit, ended).await.is_err() {
            debug!(?limit, "what pods use was not measured in time");
        }
    }

    /// Measures until cancelled.
    pub async fn run(&self, cancel: CancellationToken) {
        let Some(period) = self.period else {
            info!("volume stats collection is disabled");
            return;
        };
        let rounds = Rounds::new(
            &*self.pods,
            &self.meter,
            &self.events,
            &self.latest,
            &self.walks,
        );
        let run = rounds.run(period, &self.progress, &self.wake);
        cancel.run_until_cancelled(run).await;
    }
}

impl Collector for ResourceAnalyzer {
    /// Usage of claims and container logs, and durations of measurements.
    fn collect(&self, page: &mut Exposition) {
        let usages = self.usages();
        metrics::collect_claims(&usages, page);
        metrics::collect_logs(&usages, page);
        self.meter.durations.collect(page);
    }
}

#[cfg(test)]
mod tests;
