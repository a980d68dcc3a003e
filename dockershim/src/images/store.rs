//! The cache of the engine's images. Images rarely change, so every change triggers a full list.
//! What a list does not include (the user that an image runs as) is inspected once per image id,
//! because the content of an id never changes.
//!
//! A list may take long, and an inspect of an image may fail; neither blocks other operations. A
//! verb that misses an image queries it directly ([`Images::get_or_inspect`]).

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
    time::Duration,
};

use arc_swap::ArcSwap;
use bollard::models::ImageSummary;
use futures::StreamExt as _;
use retry_delay::RetryDelay;
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

use super::{Reference, convert};
use crate::{
    Error, LookupError,
    engine::{Engine, EngineError},
};

/// CRI's image.
pub type Image = cri_proto::runtime::v1::Image;

const ID_PREFIX: &str = "sha256:";
/// The number of concurrent inspects.
const CONCURRENCY: usize = 4;
/// How often images are listed without an event, as events may be lost.
const PERIOD: Duration = Duration::from_secs(120);
/// The back-off of a failed list.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// A cached image.
#[derive(Debug)]
pub struct CachedImage {
    /// The CRI image, without its user if that is unknown.
    pub image: Image,
    /// The configured user: `user[:group]`, or empty; `None` if the engine has not reported it.
    pub user: Option<Box<str>>,
    /// The keys of its labels.
    pub label_keys: Box<[String]>,
}

/// All images at one point in time.
#[derive(Debug, Default, Clone)]
pub struct ImageSnapshot {
    by_id: BTreeMap<String, Arc<CachedImage>>,
    by_reference: HashMap<Reference, String>,
}

/// The engine's images.
#[derive(Debug)]
pub struct Images {
    current: ArcSwap<ImageSnapshot>,
    /// Never removed by the kubelet's garbage collection.
    pinned: Reference,
    listed: OnceLock<()>,
    refreshing: Mutex<()>,
    refresh_requested: Notify,
    inspected: parking_lot::Mutex<RecentInspects>,
}

/// Images that were inspected individually; a list that began before the inspect may not have them.
#[derive(Debug, Default)]
struct RecentInspects {
    clock: u64,
    images: Vec<(u64, Arc<CachedImage>)>,
}

// === impl ImageSnapshot ===

impl ImageSnapshot {
    fn insert(&mut self, known: Arc<CachedImage>) {
        let image = &known.image;
        for name in image.repo_tags.iter().chain(&image.repo_digests) {
            if let Ok(reference) = name.parse() {
                self.by_reference.insert(reference, image.id.clone());
            }
        }
        self.by_id.insert(image.id.clone(), known);
    }

    /// All images, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Image> {
        self.by_id.values().map(|known| &known.image)
    }

    /// The image with this full id.
    pub fn by_id(&self, id: &str) -> Option<&Arc<CachedImage>> {
        self.by_id.get(id)
    }

    /// Finds the image by `name`: an id with or without `sha256:`, complete or a unique prefix, or
    /// a reference by tag or digest.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub fn find(&self, name: &str) -> Result<&Arc<CachedImage>, LookupError> {
        let full = match name.strip_prefix(ID_PREFIX) {
            Some(_) => name.to_owned(),
            None => format!("{ID_PREFIX}{name}"),
        };
        if let Some(exact) = self.by_id.get(&full) {
            return Ok(exact);
        }
        let by_reference = name
            .parse()
            .ok()
            .and_then(|reference: Reference| self.by_reference.get(&reference))
            .and_then(|id| self.by_id.get(id));
        if let Some(found) = by_reference {
            return Ok(found);
        }
        if full.len() == ID_PREFIX.len() {
            return Err(LookupError::Missing);
        }
        let mut fitting = self
            .by_id
            .range(full.clone()..)
            .take_while(|(id, _)| id.starts_with(&full));
        match (fitting.next(), fitting.next()) {
            (Some((_, only)), None) => Ok(only),
            (Some(_), Some(_)) => Err(LookupError::Ambiguous),
            (None, _) => Err(LookupError::Missing),
        }
    }
}

// === impl Images ===

impl Images {
    /// Creates an empty cache; the image named `pinned` will be reported as pinned.
    pub fn new(pinned: Reference) -> Self {
        Self {
            current: ArcSwap::default(),
            pinned,
            listed: OnceLock::new(),
            refreshing: Mutex::default(),
            refresh_requested: Notify::new(),
            inspected: parking_lot::Mutex::default(),
        }
    }

    /// The current state.
    pub fn snapshot(&self) -> Arc<ImageSnapshot> {
        self.current.load_full()
    }

    /// Fails until the images have been listed once: an incorrect empty list would make the kubelet
    /// pull existing images again.
    ///
    /// # Errors
    /// [`Error::NotSynced`].
    pub fn require_list(&self) -> Result<(), Error> {
        match self.listed.get() {
            Some(()) => Ok(()),
            None => Err(Error::NotSynced(
                "the engine's images are being read".into(),
            )),
        }
    }

    /// Lists the images again. On return, all changes made before the call are visible.
    ///
    /// # Errors
    /// Any [`Cause`](crate::engine::Cause); the cache is unchanged.
    pub async fn refresh(&self, engine: &Engine) -> Result<(), EngineError> {
        let _one_at_a_time = self.refreshing.lock().await;
        let before = self.snapshot();
        let began = {
            let mut inspected = self.inspected.lock();
            inspected.clock += 1;
            inspected.clock
        };
        let listed = engine.list_images().await?;
        let known = futures::stream::iter(listed)
            .map(|summary| self.describe(engine, &before, summary))
            .buffer_unordered(CONCURRENCY)
            .filter_map(std::future::ready);
        let mut snapshot = ImageSnapshot::default();
        let mut known = std::pin::pin!(known);
        while let Some(known) = known.next().await {
            snapshot.insert(Arc::new(known));
        }
        let mut inspected = self.inspected.lock();
        inspected.images.retain(|(when, _)| *when > began);
        for (_, known) in &inspected.images {
            snapshot.insert(Arc::clone(known));
        }
        self.current.store(Arc::new(snapshot));
        // Only the first list counts; later ones change nothing.
        let _ = self.listed.set(());
        Ok(())
    }

    /// Completes an entry of the engine's list with an inspect; `None` if the image is gone. If the
    /// inspect fails, the user remains unknown until the next list.
    async fn describe(
        &self,
        engine: &Engine,
        before: &ImageSnapshot,
        mut summary: ImageSummary,
    ) -> Option<CachedImage> {
        let user_before = before
            .by_id(&summary.id)
            .and_then(|known| known.user.clone());
        let user = match user_before {
            Some(user) => Some(user),
            None => match engine.inspect_image(&summary.id).await {
                Ok(inspect) => Some(convert::configured_user(&inspect).into()),
                Err(error) if error.is_not_found() => return None,
                Err(error) => {
                    tracing::warn!(image = summary.id, %error, "cannot read the image's user");
                    None
                }
            },
        };
        let label_keys = std::mem::take(&mut summary.labels).into_keys().collect();
        let image =
            convert::from_summary(summary, convert::ImageUser::parse_known(user.as_deref()));
        Some(self.cached_image(image, user, label_keys))
    }

    fn cached_image(
        &self,
        mut image: Image,
        user: Option<Box<str>>,
        label_keys: Box<[String]>,
    ) -> CachedImage {
        let mut names = image.repo_tags.iter().chain(&image.repo_digests);
        image.pinned = names.any(|name| name.parse().is_ok_and(|r: Reference| r == self.pinned));
        CachedImage {
            image,
            user,
            label_keys,
        }
    }

    /// Finds the image by `name` in the cache, or queries the engine if it or its user is unknown.
    ///
    /// # Errors
    /// `NotFound` if there is no such image, `Ambiguous`, or the engine's error.
    pub async fn get_or_inspect(
        &self,
        engine: &Engine,
        name: &str,
    ) -> Result<Arc<CachedImage>, Error> {
        match self.snapshot().find(name) {
            Ok(known) if known.user.is_some() => return Ok(Arc::clone(known)),
            Err(error @ LookupError::Ambiguous) => return Err(error.of("image", name)),
            _ => {}
        }
        self.inspect(engine, name).await
    }

    /// Queries the engine for the image that `name` refers to now.
    ///
    /// # Errors
    /// As [`Images::get_or_inspect`].
    pub async fn inspect(&self, engine: &Engine, name: &str) -> Result<Arc<CachedImage>, Error> {
        let missing = || LookupError::Missing.of("image", name);
        // Anything else could address another call of the engine's API.
        if !is_name(name) {
            return Err(missing());
        }
        let inspect = match engine.inspect_image(name).await {
            Ok(inspect) => inspect,
            Err(error) if error.is_not_found() => return Err(missing()),
            Err(error) => return Err(error.into()),
        };
        let user: Box<str> = convert::configured_user(&inspect).into();
        let labels = inspect
            .config
            .as_ref()
            .and_then(|config| config.labels.clone());
        let label_keys = labels.unwrap_or_default().into_keys().collect();
        let image =
            convert::from_inspect(inspect, convert::ImageUser::parse(&user)).ok_or_else(missing)?;
        let known = Arc::new(self.cached_image(image, Some(user), label_keys));
        let mut inspected = self.inspected.lock();
        inspected.clock += 1;
        let now = inspected.clock;
        inspected.images.push((now, Arc::clone(&known)));
        let mut snapshot = ImageSnapshot::clone(&self.snapshot());
        snapshot.insert(Arc::clone(&known));
        self.current.store(Arc::new(snapshot));
        drop(inspected);
        self.request_refresh();
        Ok(known)
    }

    /// Requests a refresh; several pending requests cause one refresh.
    pub fn request_refresh(&self) {
        self.refresh_requested.notify_one();
    }

    /// Lists the images on request, and every two minutes, until `stop`.
    pub async fn run(self: Arc<Self>, engine: Arc<Engine>, stop: CancellationToken) {
        let work = async {
            let mut retry = RetryDelay::new(FIRST_RETRY, LAST_RETRY);
            loop {
                let wait = match self.refresh(&engine).await {
                    Ok(()) => {
                        retry.reset();
                        PERIOD
                    }
                    Err(error) => {
                        if engine.connection().is_ok() {
                            tracing::warn!(%error, "cannot refresh the list of images");
                        }
                        retry.after_failure()
                    }
                };
                let _ = tokio::time::timeout(wait, self.refresh_requested.notified()).await;
            }
        };
        stop.run_until_cancelled(work).await;
    }
}

/// Whether `name` is a reference or an id, complete or a prefix.
fn is_name(name: &str) -> bool {
    let hex = name.strip_prefix(ID_PREFIX).unwrap_or(name);
    let is_id = !hex.is_empty() && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id || name.parse::<Reference>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn snapshot() -> ImageSnapshot {
        let mut snapshot = ImageSnapshot::default();
        for (id, tags, digests) in [
            ("sha256:aa11", vec!["busybox:latest"], vec![]),
            (
                "sha256:aa22",
                vec!["127.0.0.1:5000/app:v1"],
                vec![format!("127.0.0.1:5000/app@{DIGEST}")],
            ),
        ] {
            snapshot.insert(Arc::new(CachedImage {
                image: Image {
                    id: id.into(),
                    repo_tags: tags.into_iter().map(str::to_owned).collect(),
                    repo_digests: digests,
                    ..Default::default()
                },
                user: None,
                label_keys: Box::default(),
            }));
        }
        snapshot
    }

    #[test]
    fn a_name_is_no_path_of_the_engines_api() {
        for name in ["busybox", "e2e.local/app:1", "sha256:aa11", "aa11", DIGEST] {
            assert!(is_name(name), "{name}");
        }
        for other in [
            "",
            "../containers/x",
            "a/../../info",
            "app?x=1",
            "a b",
            "sha256:",
        ] {
            assert!(!is_name(other), "{other}");
        }
    }

    #[test]
    fn an_image_is_found_by_any_of_its_names() {
        let snapshot = snapshot();
        let id = |name: &str| snapshot.find(name).map(|known| known.image.id.as_str());
        for name in [
            "busybox",
            "docker.io/library/busybox:latest",
            "sha256:aa11",
            "aa11",
            "aa1",
            "sha256:aa1",
        ] {
            assert_eq!(id(name), Ok("sha256:aa11"), "{name}");
        }
        let by_digest = format!("127.0.0.1:5000/app:other@{DIGEST}");
        for name in ["127.0.0.1:5000/app:v1", &by_digest] {
            assert_eq!(id(name), Ok("sha256:aa22"), "{name}");
        }
        assert_eq!(id("aa"), Err(LookupError::Ambiguous));
        for name in ["", "busybox:1", "127.0.0.1:5000/app", "sha256:", "bb"] {
            assert_eq!(id(name), Err(LookupError::Missing), "{name}");
        }
    }
}
