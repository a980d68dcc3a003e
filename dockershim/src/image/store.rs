//! The engine's images in memory. Images change seldom, so every change is answered
//! by one list; what a list does not tell (the user that an image runs as) is asked for
//! once per image id, because what an id stands for never changes.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use arc_swap::ArcSwap;
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

use super::{Reference, convert};
use crate::{
    engine::{Engine, EngineError},
    model::LookupError,
};

/// An image, as CRI has it.
pub type Image = cri_proto::runtime::v1::Image;

const ID_PREFIX: &str = "sha256:";

/// All images at one moment.
#[derive(Debug, Default)]
pub struct ImageSnapshot {
    by_id: BTreeMap<String, Arc<Image>>,
    by_reference: HashMap<Reference, String>,
    /// The user that an image is configured with, as it has it; only where it has one.
    users: HashMap<String, Box<str>>,
    /// Only for images that have labels.
    label_keys: HashMap<String, Box<[String]>>,
}

/// The engine's images.
#[derive(Debug)]
pub struct Images {
    current: ArcSwap<ImageSnapshot>,
    /// Never to be removed by the kubelet's garbage collection.
    pinned: Reference,
    refreshing: Mutex<()>,
    wish: Notify,
}

// === impl ImageSnapshot ===

impl ImageSnapshot {
    fn new(
        images: impl IntoIterator<Item = Arc<Image>>,
        users: HashMap<String, Box<str>>,
        label_keys: HashMap<String, Box<[String]>>,
    ) -> Self {
        let mut snapshot = Self {
            users,
            label_keys,
            ..Self::default()
        };
        for image in images {
            for name in image.repo_tags.iter().chain(&image.repo_digests) {
                if let Ok(reference) = name.parse() {
                    snapshot.by_reference.insert(reference, image.id.clone());
                }
            }
            snapshot.by_id.insert(image.id.clone(), image);
        }
        snapshot
    }

    /// All images, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Image>> {
        self.by_id.values()
    }

    /// The image with this full id.
    pub fn by_id(&self, id: &str) -> Option<&Arc<Image>> {
        self.by_id.get(id)
    }

    /// The user that the image with this full id is configured with: `user[:group]`, or
    /// nothing.
    pub fn user(&self, id: &str) -> &str {
        self.users.get(id).map_or("", |user| user)
    }

    /// The keys of the labels that the image with this full id has.
    pub fn label_keys(&self, id: &str) -> &[String] {
        self.label_keys.get(id).map_or(&[], |keys| keys)
    }

    /// The image that `name` means: an id with or without `sha256:`, whole or a prefix
    /// that fits only one, or a reference by tag or digest.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub fn find(&self, name: &str) -> Result<&Arc<Image>, LookupError> {
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
    /// No images yet; the one named `pinned` will be marked so.
    pub fn new(pinned: Reference) -> Self {
        Self {
            current: ArcSwap::default(),
            pinned,
            refreshing: Mutex::default(),
            wish: Notify::new(),
        }
    }

    /// What is known now.
    pub fn snapshot(&self) -> Arc<ImageSnapshot> {
        self.current.load_full()
    }

    /// Lists the images anew. When it returns, what was so before the call is known.
    ///
    /// # Errors
    /// Any [`Cause`](crate::engine::Cause); what was known stays.
    pub async fn refresh(&self, engine: &Engine) -> Result<(), EngineError> {
        let _one_at_a_time = self.refreshing.lock().await;
        let before = self.snapshot();
        let mut images = Vec::new();
        let (mut users, mut label_keys) = (HashMap::new(), HashMap::new());
        for mut summary in engine.list_images().await? {
            let user: Box<str> = match before.by_id(&summary.id) {
                Some(_) => before.user(&summary.id).into(),
                None => match engine.inspect_image(&summary.id).await {
                    Ok(inspect) => convert::configured_user(&inspect).into(),
                    // Removed since the list: it is no image any more.
                    Err(error) if error.is_not_found() => continue,
                    Err(error) => return Err(error),
                },
            };
            let labels = std::mem::take(&mut summary.labels);
            if !labels.is_empty() {
                label_keys.insert(summary.id.clone(), labels.into_keys().collect());
            }
            let id = summary.id.clone();
            let mut image = convert::from_summary(summary, convert::User::parse(&user));
            if !user.is_empty() {
                users.insert(id, user);
            }
            image.pinned = image
                .repo_tags
                .iter()
                .chain(&image.repo_digests)
                .any(|name| name.parse().is_ok_and(|r: Reference| r == self.pinned));
            images.push(Arc::new(image));
        }
        let snapshot = ImageSnapshot::new(images, users, label_keys);
        self.current.store(Arc::new(snapshot));
        Ok(())
    }

    /// Wishes for a refresh soon; several wishes at once are one.
    pub fn wish_refresh(&self) {
        self.wish.notify_one();
    }

    /// Fulfils wishes until `stop`. A failure needs no second try: the engine is away
    /// then, and the next connect refreshes.
    pub async fn run(self: Arc<Self>, engine: Arc<Engine>, stop: CancellationToken) {
        let work = async {
            loop {
                self.wish.notified().await;
                if let Err(error) = self.refresh(&engine).await {
                    tracing::warn!(%error, "the list of images is stale");
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn snapshot() -> ImageSnapshot {
        ImageSnapshot::new(
            [
                ("sha256:aa11", vec!["busybox:latest"], vec![]),
                (
                    "sha256:aa22",
                    vec!["127.0.0.1:5000/app:v1"],
                    vec![format!("127.0.0.1:5000/app@{DIGEST}")],
                ),
            ]
            .map(|(id, tags, digests)| {
                Arc::new(Image {
                    id: id.into(),
                    repo_tags: tags.into_iter().map(str::to_owned).collect(),
                    repo_digests: digests,
                    ..Default::default()
                })
            }),
            HashMap::new(),
            HashMap::new(),
        )
    }

    #[test]
    fn an_image_is_found_by_any_of_its_names() {
        let snapshot = snapshot();
        let id = |name: &str| snapshot.find(name).map(|image| image.id.as_str());
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
