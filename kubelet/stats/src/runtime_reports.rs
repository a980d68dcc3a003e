//! What only the runtime knows. It may take minutes to respond, so no lock of others is held meanwhile.

use std::{collections::HashMap, sync::Arc, time::Duration};

use cri_proto::runtime::v1::ImageFsInfoResponse;
use kubelet_cri_client::CriClient;
use kubelet_host::repeatable::blocking;
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tracing::{debug, warn};

use crate::{
    file_systems::{ImageFileSystems, WritableLayer, writable_layers},
    runtime,
    usage::NodeStats,
};

/// After this time the runtime and the files of the kernel are considered hung.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
/// The runtime measures writable layers and images at most this often for the kubelet.
const AGE: Duration = Duration::from_secs(10);
/// The runtime is asked at most this often where its file systems are. They seldom move.
pub(crate) const MOUNT_POINT_AGE: Duration = Duration::from_secs(300);

/// The runtime's reports, shared between requests.
#[derive(Debug)]
pub(crate) struct RuntimeReports {
    cri: CriClient,
    last: Mutex<LastReports>,
    mount_points: Mutex<Option<MountPoints>>,
}

#[derive(Debug, Default)]
struct LastReports {
    /// The last report without an error.
    complete: Option<LayersAndImages>,
    /// The one that the runtime is making.
    running: Option<watch::Receiver<Option<LayersAndImages>>>,
}

impl LastReports {
    fn ended(&mut self, reported: &LayersAndImages) {
        self.running = None;
        if reported.error.is_none() {
            self.complete = Some(reported.clone());
        }
    }
}

/// Where the runtime's file systems are.
#[derive(Clone, Debug)]
struct MountPoints {
    asked_at: Instant,
    reported: Arc<ImageFsInfoResponse>,
}

/// The writable layers by container ID, and the file systems of images.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayersAndImages {
    /// When the runtime had made them; `None` without a report.
    at: Option<Instant>,
    pub(crate) layers: Arc<HashMap<String, WritableLayer>>,
    pub(crate) images: Option<ImageFileSystems>,
    /// Why there are none.
    pub(crate) error: Option<String>,
}

impl RuntimeReports {
    pub(crate) fn new(cri: CriClient) -> Self {
        Self {
            cri,
            last: Mutex::default(),
            mount_points: Mutex::default(),
        }
    }

    /// The writable layers and images, measured again if the last report is too old. After
    /// `patience`, if there is one, those of the last report; the runtime goes on measuring for the
    /// next caller.
    pub(crate) async fn layers_and_images(
        self: &Arc<Self>,
        patience: Option<Duration>,
    ) -> LayersAndImages {
        let report = self.report();
        let (reported, error) = match patience {
            None => (report.await, None),
            Some(patience) => match timeout(patience, report).await {
                Ok(reported) => (reported, None),
                Err(_) => (self.last.lock().complete.clone(), Some(late(patience))),
            },
        };
        let mut reported = reported.unwrap_or_default();
        reported.error = error.or(reported.error);
        reported
    }

    /// A young report, or the next one. All callers share it. `None` if it could not be made.
    async fn report(self: &Arc<Self>) -> Option<LayersAndImages> {
        let mut done = {
            let mut last = self.last.lock();
            let complete = last.complete.as_ref();
            let young = complete.filter(|known| known.at.is_some_and(|at| at.elapsed() < AGE));
            if let Some(known) = young {
                return Some(known.clone());
            }
            // A report that has panicked has no sender any more.
            let running = last.running.clone();
            let running = running.filter(|running| running.has_changed().is_ok());
            running.unwrap_or_else(|| {
                let (sender, receiver) = watch::channel(None);
                let asking = Arc::clone(self);
                tokio::spawn(async move {
                    let reported = asking.ask().await;
                    asking.last.lock().ended(&reported);
                    sender.send_replace(Some(reported));
                });
                last.running = Some(receiver.clone());
                receiver
            })
        };
        let reported = done.wait_for(Option::is_some).await;
        reported.ok().and_then(|reported| reported.clone())
    }

    async fn ask(&self) -> LayersAndImages {
        let (layers, images) = tokio::join!(self.cri.container_stats(), self.cri.image_fs_info());
        let mut error = None;
        let layers = layers.unwrap_or_else(|failed| {
            error = Some(failed.to_string());
            Vec::new()
        });
        let images = match images {
            Ok(reported) => {
                let read = blocking(move || ImageFileSystems::read(&reported));
                // A panic is logged already.
                timeout(LIMIT, read)
                    .await
                    .ok()
                    .and_then(Result::ok)
                    .flatten()
            }
            Err(failed) => {
                error.get_or_insert(failed.to_string());
                None
            }
        };
        if let Some(error) = &error {
            warn!(%error, "the runtime does not report writable layers or images");
        }
        LayersAndImages {
            at: Some(Instant::now()),
            layers: Arc::new(writable_layers(&layers)),
            images,
            error,
        }
    }

    /// Where the runtime's file systems are; the last report if there is no other in time.
    pub(crate) async fn mount_points(&self) -> Option<Arc<ImageFsInfoResponse>> {
        let known = self.mount_points.lock().clone();
        let asked_at = Instant::now();
        if let Some(known) = &known
            && asked_at - known.asked_at < MOUNT_POINT_AGE
        {
            return Some(Arc::clone(&known.reported));
        }
        let reported = match timeout(LIMIT, self.cri.image_fs_info()).await {
            Ok(Ok(reported)) => Some(Arc::new(reported)),
            Ok(Err(error)) => {
                debug!(%error, "the runtime does not report its file systems");
                None
            }
            Err(_) => {
                debug!("the runtime does not report its file systems in time");
                None
            }
        };
        let reported = reported.or(known.map(|known| known.reported))?;
        *self.mount_points.lock() = Some(MountPoints {
            asked_at,
            reported: Arc::clone(&reported),
        });
        Some(reported)
    }

    /// Asks again next time.
    pub(crate) fn forget_mount_points(&self) {
        *self.mount_points.lock() = None;
    }

    /// Takes the runtime's numbers of pods whose cgroups were not found.
    pub(crate) async fn complete(&self, stats: &mut NodeStats, patience: Duration) {
        let error = match timeout(patience, self.cri.pod_stats()).await {
            Ok(Ok(reported)) => return runtime::complete(&mut stats.pods, &reported),
            Ok(Err(error)) => error.to_string(),
            Err(_) => late(patience),
        };
        debug!(error, "the runtime does not report the usage of pods");
        stats.runtime_error.get_or_insert(error);
    }
}

fn late(patience: Duration) -> String {
    let seconds = patience.as_secs();
    format!("the runtime did not respond within {seconds} s")
}
