//! Delays after failed pulls.

use std::{collections::BTreeMap, time::Duration};

use kubelet_pacing::backoff::{Backoff, jittered};
use tokio::time::Instant;

use super::error::{ImageError, PullFailure};

/// First and longest delay after failed pulls, as upstream.
const BASE: Duration = Duration::from_secs(10);
const MAX: Duration = Duration::from_secs(300);

/// The failed pulls of one pod, by image as its spec names it.
#[derive(Debug)]
pub struct PullBackoff {
    backoff: Backoff,
    /// The last failure of each image: when, and why.
    failures: BTreeMap<String, (Instant, PullFailure)>,
}

impl Default for PullBackoff {
    fn default() -> Self {
        Self {
            backoff: Backoff::new(BASE, MAX),
            failures: BTreeMap::new(),
        }
    }
}

impl PullBackoff {
    /// Whether the image may be pulled now.
    ///
    /// # Errors
    /// [`ImageError::BackOff`].
    pub(super) fn check(&self, image: &str) -> Result<(), ImageError> {
        let Some((failed, last)) = self.failures.get(image) else {
            return Ok(());
        };
        match self.backoff.remaining(image, *failed) {
            None => Ok(()),
            Some((retry_after, _)) => Err(ImageError::BackOff {
                image: image.to_owned(),
                last: last.clone(),
                // Pods that were refused together would come again together, and more of
                // them than may begin at once.
                retry_after: jittered(retry_after),
            }),
        }
    }

    /// A pull failed just now.
    pub(super) fn failed(&mut self, image: &str, failure: PullFailure) {
        let now = Instant::now();
        self.backoff.attempt(image, now);
        self.failures.insert(image.to_owned(), (now, failure));
    }

    /// A pull was done. The delay is remembered: a registry that fails every
    /// other time is not asked at the shortest one.
    pub(super) fn succeeded(&mut self, image: &str) {
        self.failures.remove(image);
    }
}
