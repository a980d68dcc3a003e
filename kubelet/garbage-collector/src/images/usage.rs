//! When images were first detected and last used, on a clock that stands still while no kubelet
//! runs.
//!
//! The time of day is not used: it may jump by years when the node synchronizes its clock after
//! boot, and all images would be old. Time without a kubelet does not count either: nothing could
//! use an image then.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cri_proto::runtime::v1;
use tokio::time::Instant;

use super::in_use::InUse;

/// A moment, in milliseconds since this kubelet began to watch; negative for earlier kubelets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(i64);

impl Moment {
    /// When this kubelet began to watch.
    pub(super) const START: Self = Self(0);
    /// Before everything.
    pub(super) const LONG_AGO: Self = Self(i64::MIN);

    /// The current moment of a kubelet that began to watch at `start`.
    pub(super) fn now(start: Instant) -> Self {
        Self(milliseconds(start.elapsed()))
    }

    /// The moment that is this much earlier.
    pub(super) fn before(self, age: Duration) -> Self {
        Self(self.0.saturating_sub(milliseconds(age)))
    }

    /// The time from this moment until `now`; zero if it is later.
    pub(super) fn age(self, now: Self) -> Duration {
        let age = now.0.saturating_sub(self.0);
        Duration::from_millis(u64::try_from(age).unwrap_or_default())
    }
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// When an image was detected and used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) first_detected: Moment,
    /// `None` if it was never seen in use.
    pub(super) last_used: Option<Moment>,
}

impl Usage {
    /// Since when the image is unused; that it was detected counts as a use.
    pub(super) fn unused_since(&self) -> Moment {
        self.last_used.unwrap_or(self.first_detected)
    }
}

/// An image of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TrackedImage {
    /// ID and runtime handler, see [`key`].
    pub(super) key: String,
    pub(super) id: String,
    /// The runtime handler that it was pulled for; empty if the runtime does not distinguish them.
    pub(super) handler: String,
    pub(super) names: Vec<String>,
    /// In bytes.
    pub(super) size: u64,
    /// Whether the runtime needs it itself.
    pub(super) is_pinned: bool,
    pub(super) is_in_use: bool,
    pub(super) usage: Usage,
}

/// The records of all images.
#[derive(Clone, Debug, Default)]
pub(super) struct Records {
    usages: BTreeMap<String, Usage>,
    in_use: BTreeSet<String>,
}

impl Records {
    /// Records of an earlier kubelet.
    pub(super) const fn new(usages: BTreeMap<String, Usage>) -> Self {
        Self {
            usages,
            in_use: BTreeSet::new(),
        }
    }

    /// The records by key.
    pub(super) const fn usages(&self) -> &BTreeMap<String, Usage> {
        &self.usages
    }

    /// Takes the images of the node and their use, as they are now. Images that no longer exist are
    /// forgotten. Returns the images, and whether one has appeared, disappeared, or begun or ceased
    /// to be used.
    pub(super) fn detect(
        &mut self,
        images: &[v1::Image],
        in_use: &InUse,
        now: Moment,
    ) -> (Vec<TrackedImage>, bool) {
        let mut found: BTreeMap<String, TrackedImage> = BTreeMap::new();
        for image in images.iter().filter(|image| !image.id.is_empty()) {
            let spec = image.spec.as_ref();
            let handler = spec.map_or("", |spec| spec.runtime_handler.as_str());
            let key = key(&image.id, handler);
            let is_in_use = in_use.contains(&image.id, handler);
            let mut usage = self.usages.get(&key).copied().unwrap_or(Usage {
                first_detected: now,
                last_used: None,
            });
            if is_in_use {
                usage.last_used = Some(now);
            }
            let tags = image.repo_tags.iter().chain(&image.repo_digests);
            let tracked = found.entry(key.clone()).or_insert(TrackedImage {
                key,
                id: image.id.clone(),
                handler: handler.to_owned(),
                names: Vec::new(),
                size: image.size,
                is_pinned: false,
                is_in_use,
                usage,
            });
            tracked.is_pinned |= image.pinned;
            tracked.names.extend(tags.cloned());
        }
        let used = found.values().filter(|image| image.is_in_use);
        let used: BTreeSet<String> = used.map(|image| image.key.clone()).collect();
        let has_changed = used != self.in_use || !found.keys().eq(self.usages.keys());
        self.in_use = used;
        self.usages = found
            .iter()
            .map(|(key, image)| (key.clone(), image.usage))
            .collect();
        (found.into_values().collect(), has_changed)
    }

    /// Forgets an image. Returns whether no other record has its ID.
    pub(super) fn remove(&mut self, image: &TrackedImage) -> bool {
        self.usages.remove(&image.key);
        self.in_use.remove(&image.key);
        let of_handler = format!("{},", image.id);
        !self.usages.contains_key(&image.id)
            && !self.usages.keys().any(|key| key.starts_with(&of_handler))
    }
}

/// The key of an image's record, as upstream: its ID, followed by the runtime handler if the runtime
/// has an image for each.
fn key(id: &str, handler: &str) -> String {
    match handler {
        "" => id.to_owned(),
        handler => format!("{id},{handler}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::in_use::Names, *};

    fn image(id: &str, handler: &str) -> v1::Image {
        v1::Image {
            id: id.to_owned(),
            size: 5,
            spec: Some(v1::ImageSpec {
                runtime_handler: handler.to_owned(),
                ..v1::ImageSpec::default()
            }),
            ..v1::Image::default()
        }
    }

    fn using(images: &[v1::Image], ids: &[&str]) -> InUse {
        let mut in_use = InUse::default();
        for id in ids {
            in_use.add_reference(&Names::new(images), id);
        }
        in_use
    }

    #[test]
    fn images_are_detected_once_and_used_until_they_are_not() {
        let mut records = Records::default();
        let both = [image("a", ""), image("b", ""), image("", "")];
        let (found, has_changed) = records.detect(&both, &using(&both, &["a"]), Moment(10));
        assert!(has_changed);
        assert_eq!(found.len(), 2, "an image without an ID cannot be removed");
        assert_eq!(found[0].usage.last_used, Some(Moment(10)));
        assert_eq!(found[1].usage.last_used, None);

        let (found, has_changed) = records.detect(&both, &using(&both, &["a"]), Moment(20));
        assert!(!has_changed);
        assert_eq!(found[0].usage.first_detected, Moment(10));
        assert_eq!(found[0].usage.last_used, Some(Moment(20)));

        let (found, has_changed) = records.detect(&both, &InUse::default(), Moment(30));
        assert!(has_changed);
        assert_eq!(found[0].usage.last_used, Some(Moment(20)));

        let (_, has_changed) = records.detect(&both[..1], &InUse::default(), Moment(40));
        assert!(has_changed);
        let (found, has_changed) = records.detect(&both, &InUse::default(), Moment(50));
        assert!(has_changed);
        assert_eq!(found[1].usage.first_detected, Moment(50));
    }

    #[test]
    fn an_image_of_two_handlers_has_two_records() {
        let images = [image("a", "runc"), image("a", "kata")];
        let mut records = Records::default();
        let (found, _) = records.detect(&images, &InUse::default(), Moment::START);
        let keys: Vec<&str> = found.iter().map(|image| image.key.as_str()).collect();
        assert_eq!(keys, ["a,kata", "a,runc"]);
        assert!(!records.remove(&found[0]), "the other has the same ID");
        assert!(records.remove(&found[1]));
    }

    #[test]
    fn an_image_that_is_listed_twice_is_one_image() {
        let mut pinned = image("a", "");
        pinned.pinned = true;
        let images = [image("a", ""), pinned, image("a", "")];
        let (found, _) = Records::default().detect(&images, &InUse::default(), Moment::START);
        assert_eq!(found.len(), 1);
        assert!(found[0].is_pinned);
    }

    #[test]
    fn ages_saturate() {
        let age = Moment::LONG_AGO.age(Moment(i64::MAX));
        assert_eq!(age, Duration::from_millis(i64::MAX as u64));
        assert_eq!(Moment(5).age(Moment(3)), Duration::ZERO);
        assert_eq!(Moment(5).before(Duration::from_millis(3)), Moment(2));
        assert!(Moment(5).before(Duration::MAX) < Moment::START);
    }
}
