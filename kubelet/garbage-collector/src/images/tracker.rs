//! The images of the node, their use now, and the records of their use before.

use std::{io, path::Path, sync::Arc, time::Duration};

use cri_proto::runtime::v1;
use kubelet_cri_client::{CriClient, CriError, pod_status};
use kubelet_host::{clock, repeatable::blocking};
use kubelet_pod_spec::identity::PodUid;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{error, warn};

use super::{
    host::ImageHost,
    in_use::{InUse, Names},
    store::{SinceWritten, Store},
    usage::{Moment, Records, TrackedImage},
};

/// The longest time between two writes of the records.
const SAVE_PERIOD: Duration = Duration::from_secs(3600);

/// Tracks the images of the node.
pub(super) struct Tracker {
    cri: CriClient,
    host: Arc<dyn ImageHost>,
    store: Arc<Store>,
    start: Instant,
    /// `None` until the records were read for the first detection.
    state: Mutex<Option<State>>,
}

#[derive(Debug, Default)]
struct State {
    records: Records,
    /// The first detection of this kubelet.
    detected: Option<Moment>,
    /// When the records were written; `None` if they have changed since.
    saved: Option<Moment>,
}

/// The images of the node at one moment.
pub(super) struct Detection {
    pub(super) names: Names,
    pub(super) images: Vec<TrackedImage>,
    pub(super) now: Moment,
    /// Since when this kubelet detects images.
    pub(super) watched_since: Moment,
}

/// The images of the runtime and their use.
struct Listing {
    images: Vec<v1::Image>,
    names: Names,
    in_use: InUse,
}

impl Tracker {
    pub(super) fn new(cri: CriClient, host: Arc<dyn ImageHost>, root_dir: &Path) -> Self {
        Self {
            cri,
            host,
            store: Arc::new(Store::new(root_dir)),
            start: Instant::now(),
            state: Mutex::default(),
        }
    }

    /// Detects images and updates the records. To be called by one task at a time.
    ///
    /// # Errors
    /// The runtime cannot be listed.
    pub(super) async fn detect(&self) -> Result<Detection, CriError> {
        if self.state.lock().is_none() {
            let records = self.load(Moment::START, SinceWritten::Ignored).await;
            *self.state.lock() = Some(State {
                records,
                ..State::default()
            });
        }
        let listing = self.list().await?;
        let now = Moment::now(self.start);
        let (images, watched_since) = {
            let mut state = self.state.lock();
            let state = state.get_or_insert_with(State::default);
            let detected = state.records.detect(&listing.images, &listing.in_use, now);
            let (images, has_changed) = detected;
            if has_changed {
                state.saved = None;
            }
            (images, *state.detected.get_or_insert(now))
        };
        self.save_if_due().await;
        Ok(Detection {
            names: listing.names,
            images,
            now,
            watched_since,
        })
    }

    /// What [`Self::detect`] would return, without a change of the records.
    ///
    /// Before the first detection, the kubelet that wrote the records is assumed to be running.
    ///
    /// # Errors
    /// The runtime cannot be listed.
    pub(super) async fn look(&self) -> Result<Detection, CriError> {
        let now = Moment::now(self.start);
        let known = {
            let state = self.state.lock();
            let state = state.as_ref();
            state.and_then(|state| Some((state.records.clone(), state.detected?)))
        };
        let (mut records, watched_since) = match known {
            Some(known) => known,
            None => {
                let since = SinceWritten::Counts(clock::now());
                (self.load(now, since).await, Moment::LONG_AGO)
            }
        };
        let listing = self.list().await?;
        let (images, _) = records.detect(&listing.images, &listing.in_use, now);
        Ok(Detection {
            names: listing.names,
            images,
            now,
            watched_since,
        })
    }

    /// Forgets a removed image. Returns whether no other image has its ID.
    pub(super) fn forget(&self, image: &TrackedImage) -> bool {
        let mut state = self.state.lock();
        state.as_mut().is_none_or(|state| {
            state.saved = None;
            state.records.remove(image)
        })
    }

    async fn list(&self) -> Result<Listing, CriError> {
        // Images first: an image that a newer container uses cannot be taken for unused then.
        let images = self.cri.list_images().await?;
        let names = Names::new(&images);
        let in_use = self.in_use(&names).await?;
        Ok(Listing {
            images,
            names,
            in_use,
        })
    }

    /// The images that containers and volumes use now.
    pub(super) async fn in_use(&self, names: &Names) -> Result<InUse, CriError> {
        let containers = self.cri.list_containers().await?;
        let mut in_use = InUse::by_containers(names, &containers);
        for volumes in self.host.image_volumes() {
            for reference in &volumes.references {
                in_use.add_reference(names, reference);
            }
            // What is mounted may have lost its name to a newer image.
            for id in may_run(&containers, &volumes.pod_uid) {
                let status = match self.cri.container_status(id).await {
                    Err(error) if error.is_not_found() => continue,
                    status => status?,
                };
                let images = status
                    .mounts
                    .iter()
                    .filter_map(|mount| mount.image.as_ref());
                for image in images {
                    in_use.add_reference(names, &image.image);
                }
            }
        }
        Ok(in_use)
    }

    async fn load(&self, now: Moment, since: SinceWritten) -> Records {
        let store = Arc::clone(&self.store);
        let loaded = blocking(move || store.load(now, since)).await;
        loaded.unwrap_or_else(|error| {
            error!(%error, "reading the records of images panicked");
            Records::default()
        })
    }

    /// Writes the records if they have changed, or if they are too old.
    pub(super) async fn save_if_due(&self) {
        let now = Moment::now(self.start);
        let is_old = |saved: Moment| saved.age(now) >= SAVE_PERIOD;
        self.save(|state| state.saved.is_none_or(is_old)).await;
    }

    /// Writes the records at the end of the kubelet.
    pub(super) async fn save_last(&self) {
        self.save(|_| true).await;
    }

    async fn save(&self, is_due: impl Fn(&State) -> bool) {
        let now = Moment::now(self.start);
        let records = {
            let mut state = self.state.lock();
            let Some(state) = state
                .as_mut()
                .filter(|it| it.detected.is_some() && is_due(it))
            else {
                return;
            };
            state.saved = Some(now);
            state.records.clone()
        };
        let (store, time) = (Arc::clone(&self.store), clock::now());
        let saved = blocking(move || store.save(&records, now, time)).await;
        let saved = saved.unwrap_or_else(|panicked| Err(io::Error::other(panicked)));
        if let Err(error) = saved {
            warn!(%error, "cannot write when images were used");
            if let Some(state) = self.state.lock().as_mut() {
                state.saved = None;
            }
        }
    }
}

/// The containers of a pod that have not exited.
fn may_run<'a>(
    containers: &'a [v1::Container],
    pod: &'a PodUid,
) -> impl Iterator<Item = &'a str> + 'a {
    let of_pod = containers.iter().filter(|container| {
        pod_status::uid_of(&container.labels).as_ref() == Some(pod)
            && container.state() != v1::ContainerState::ContainerExited
    });
    of_pod.map(|container| container.id.as_str())
}
