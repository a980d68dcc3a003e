//! The collector of images.

#[cfg(test)]
mod tests;

use std::{fmt, path::Path, sync::Arc, time::Duration};

use cri_proto::runtime::v1;
use kubelet_api_client::events::{EventRecorder, Subject, reason};
use kubelet_cri_client::{CriClient, CriError};
use kubelet_metrics::{Collector, Exposition};
use kubelet_traces::{garbage_collection, traced};
use tokio::{
    sync::Mutex,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::{
    error::ImageGcError,
    host::{DiskSpace, ImageHost},
    in_use::Names,
    metrics::{ImageGcMetrics, ImageReason},
    options::ImageGcOptions,
    plan,
    tracker::{Detection, Tracker},
    usage::TrackedImage,
};

/// Between detections, and between collections, as upstream.
const PERIOD: Duration = Duration::from_secs(300);
/// The longest measurement of the file system.
const MEASUREMENT_TIMEOUT: Duration = Duration::from_secs(60);

/// Removes unused images.
pub struct ImageCollector {
    cri: CriClient,
    options: ImageGcOptions,
    tracker: Tracker,
    host: Arc<dyn ImageHost>,
    events: EventRecorder,
    metrics: ImageGcMetrics,
    /// Held during a collection.
    turn: Mutex<()>,
}

/// What a collection has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreedImages {
    /// The number of images.
    pub count: usize,
    /// Their size in bytes. Layers that images share count for each.
    pub bytes: u64,
}

/// What a collection would remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageCandidates {
    /// The images, in the order of their removal.
    pub images: Vec<ImageCandidate>,
    /// The image file system; `None` if images are removed only by age.
    pub space: Option<DiskSpace>,
    /// The bytes to free on it, besides old images. All candidates together may be smaller.
    pub bytes_to_free: u64,
}

/// An image that would be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageCandidate {
    /// Its ID.
    pub id: String,
    /// Its tags and digests.
    pub names: Vec<String>,
    /// Its size in bytes.
    pub size: u64,
    /// Why it would be removed.
    pub reason: ImageReason,
    /// How long it was not used, as far as kubelets watched.
    pub unused_for: Duration,
}

/// One collection in progress.
struct Round {
    names: Names,
    freed: FreedImages,
    failed: Vec<CriError>,
}

impl fmt::Debug for ImageCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageCollector")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl ImageCollector {
    /// A collector that keeps its records below `root_dir`, and has detected no image yet.
    pub fn new(
        cri: CriClient,
        options: ImageGcOptions,
        root_dir: &Path,
        events: EventRecorder,
        host: Arc<dyn ImageHost>,
    ) -> Self {
        Self {
            tracker: Tracker::new(cri.clone(), Arc::clone(&host), root_dir),
            cri,
            options,
            host,
            events,
            metrics: ImageGcMetrics::default(),
            turn: Mutex::default(),
        }
    }

    /// Collects every five minutes until cancelled, at first at once. If neither thresholds nor a
    /// maximum age are set, only detects images, for [`Self::remove_unused`].
    pub async fn run(&self, cancel: CancellationToken) {
        let work = async {
            let mut has_failed = false;
            loop {
                has_failed = self.collect_or_report(has_failed).await;
                self.host.period_ended().await;
                sleep(PERIOD).await;
            }
        };
        cancel.run_until_cancelled(work).await;
        self.tracker.save_last().await;
    }

    /// One period of [`Self::run`]. Returns whether it failed.
    async fn collect_or_report(&self, has_failed: bool) -> bool {
        if !self.options.is_enabled() {
            let _turn = self.turn.lock().await;
            let detected = self.tracker.detect().await;
            return detected
                .inspect_err(|error| warn!(%error, "cannot detect the images of the node"))
                .is_err();
        }
        let collected = self.collect_garbage().await;
        match &collected {
            Ok(_) if has_failed => info!("the collection of images works again"),
            Ok(_) => {}
            // As upstream, the first failure is not reported: the node may just have started.
            Err(error) if !has_failed => error!(%error, "the collection of images failed once"),
            Err(error) => {
                error!(%error, "the collection of images failed repeatedly");
                let events = &self.events;
                events.warning(Subject::Node, reason::IMAGE_GC_FAILED, error);
            }
        }
        collected.is_err()
    }

    /// Removes images that were unused for too long, and others until the file system is used less
    /// than the low threshold, if it is used more than the high one.
    ///
    /// # Errors
    /// Not enough could be removed.
    pub async fn collect_garbage(&self) -> Result<FreedImages, ImageGcError> {
        let span = garbage_collection("Images/GarbageCollect");
        traced(span, self.collect_old_and_excess()).await
    }

    async fn collect_old_and_excess(&self) -> Result<FreedImages, ImageGcError> {
        let _turn = self.turn.lock().await;
        let detection = self.tracker.detect().await?;
        let now = detection.now;
        let (names, images) = self.removable(detection);
        let mut round = Round::new(names);
        let (old, rest) = plan::split_old(images, self.options.age_limit(), now);
        let mut collected = self
            .free(&mut round, &old, u64::MAX, ImageReason::Age)
            .await
            .map(drop);
        // An image that cannot be removed for its age does not keep the disk full.
        if collected.is_ok() && self.options.has_threshold() {
            collected = self.free_space(&mut round, &rest).await;
        }
        self.tracker.save_if_due().await;
        round.end(collected)
    }

    /// Removes all unused images, except pinned ones and those younger than the minimum age, as
    /// upstream.
    ///
    /// # Errors
    /// An image could not be removed; others may have been.
    pub async fn remove_unused(&self) -> Result<FreedImages, ImageGcError> {
        info!("removing all unused images");
        let _turn = self.turn.lock().await;
        let (names, images) = self.removable(self.tracker.detect().await?);
        let mut round = Round::new(names);
        let freed = self.free(&mut round, &images, u64::MAX, ImageReason::Space);
        let freed = freed.await.map(drop);
        self.tracker.save_if_due().await;
        round.end(freed)
    }

    /// What [`Self::collect`] would remove now. Changes nothing.
    ///
    /// A collector that has detected no image yet assumes that the kubelet that wrote the records is
    /// still running.
    ///
    /// # Errors
    /// The runtime cannot be listed, or the file system not be measured.
    pub async fn candidates(&self) -> Result<ImageCandidates, ImageGcError> {
        let detection = self.tracker.look().await?;
        let now = detection.now;
        let (_, images) = self.removable(detection);
        let (old, mut rest) = plan::split_old(images, self.options.age_limit(), now);
        let (mut space, mut bytes_to_free) = (None, 0);
        if self.options.has_threshold() {
            let mut measured = self.measure().await?;
            space = Some(measured);
            for image in &old {
                measured.available = measured.available.saturating_add(image.size);
            }
            bytes_to_free = plan::bytes_to_free(measured, &self.options);
        }
        rest.truncate(plan::count_for(&rest, bytes_to_free));
        let candidate = |image: TrackedImage, reason| ImageCandidate {
            unused_for: image.usage.unused_since().age(now),
            id: image.id,
            names: image.names,
            size: image.size,
            reason,
        };
        let old = old.into_iter().map(|it| candidate(it, ImageReason::Age));
        let rest = rest.into_iter().map(|it| candidate(it, ImageReason::Space));
        Ok(ImageCandidates {
            images: old.chain(rest).collect(),
            space,
            bytes_to_free,
        })
    }

    /// The names of images, and the images that may be removed, in order.
    fn removable(&self, detection: Detection) -> (Names, Vec<TrackedImage>) {
        let Detection {
            names,
            images,
            now,
            watched_since,
        } = detection;
        let minimum_age = self.options.minimum_age;
        let images = plan::removable(images, minimum_age, watched_since, now);
        (names, images)
    }

    /// Removes images until the file system is used less than the low threshold.
    async fn free_space(
        &self,
        round: &mut Round,
        images: &[TrackedImage],
    ) -> Result<(), ImageGcError> {
        let space = self.measure().await?;
        if space.capacity == 0 {
            let error = ImageGcError::NoCapacity;
            let events = &self.events;
            events.warning(Subject::Node, reason::INVALID_DISK_CAPACITY, &error);
            return Err(error);
        }
        let (used, wanted) = (
            plan::used_percent(space),
            plan::bytes_to_free(space, &self.options),
        );
        if wanted == 0 {
            return Ok(());
        }
        info!(
            used,
            wanted, "the image file system is too full; removing images"
        );
        let freed = self.free(round, images, wanted, ImageReason::Space).await?;
        if freed < wanted && round.failed.is_empty() {
            let error = ImageGcError::Insufficient {
                used,
                capacity: space.capacity,
                freed,
            };
            let events = &self.events;
            events.warning(Subject::Node, reason::FREE_DISK_SPACE_FAILED, &error);
            return Err(error);
        }
        Ok(())
    }

    /// Removes images in order until `wanted` bytes are freed. Returns how many were. Failed
    /// removals are added to the round.
    ///
    /// # Errors
    /// The runtime no longer answers.
    async fn free(
        &self,
        round: &mut Round,
        images: &[TrackedImage],
        wanted: u64,
        why: ImageReason,
    ) -> Result<u64, ImageGcError> {
        let mut freed = 0_u64;
        for image in images {
            if freed >= wanted {
                break;
            }
            // The removals before may have taken minutes.
            let in_use = self.tracker.in_use(&round.names).await?;
            if in_use.contains(&image.id, &image.handler) {
                debug!(
                    image_id = image.id,
                    "not removing an image that is now in use"
                );
                continue;
            }
            let spec = v1::ImageSpec {
                image: image.id.clone(),
                runtime_handler: image.handler.clone(),
                ..v1::ImageSpec::default()
            };
            if let Err(error) = self.cri.remove_image(spec).await {
                warn!(image_id = image.id, %error, "cannot remove an unused image");
                round.failed.push(error);
                continue;
            }
            let reason = why.as_str();
            let (image_id, size) = (&image.id, image.size);
            info!(image_id, names = ?image.names, size, reason, "removed an unused image");
            self.metrics.removed(why);
            freed = freed.saturating_add(size);
            round.freed.count += 1;
            round.freed.bytes = round.freed.bytes.saturating_add(size);
            if self.tracker.forget(image) {
                self.host.image_removed(&image.id).await;
            }
        }
        Ok(freed)
    }

    async fn measure(&self) -> Result<DiskSpace, ImageGcError> {
        match timeout(MEASUREMENT_TIMEOUT, self.host.image_fs()).await {
            Ok(measured) => measured.map_err(ImageGcError::FileSystem),
            Err(_) => Err(ImageGcError::FileSystemHangs(MEASUREMENT_TIMEOUT)),
        }
    }
}

impl Round {
    fn new(names: Names) -> Self {
        Self {
            names,
            freed: FreedImages::default(),
            failed: Vec::new(),
        }
    }

    /// The result of a round that ended like this.
    fn end(self, ended: Result<(), ImageGcError>) -> Result<FreedImages, ImageGcError> {
        ended?;
        if self.failed.is_empty() {
            return Ok(self.freed);
        }
        Err(ImageGcError::Removals {
            removed: self.freed.count,
            freed: self.freed.bytes,
            failed: self.failed,
        })
    }
}

impl Collector for ImageCollector {
    fn collect(&self, page: &mut Exposition) {
        self.metrics.collect(page);
    }
}
