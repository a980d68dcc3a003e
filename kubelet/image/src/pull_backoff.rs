//! Back-off after failed image pulls.

use std::{collections::BTreeMap, time::Duration};

use kubelet_pacing::backoff::{Backoff, jittered};
use tokio::time::Instant;

use super::error::{ImageError, PullFailure};

/// Initial and maximum delay after failed pulls, as upstream.
const BASE: Duration = Duration::from_secs(10);
const MAX: Duration = Duration::from_secs(300);

/// The failed pulls of one pod, by image as written in its spec.
#[derive(Debug)]
pub struct PullBackoff {
    backoff: Backoff,
    /// Time and cause of each image's last failure.
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
    /// Checks whether the image may be pulled now.
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
                // Without jitter, pods that were refused together would retry together and exceed
                // the rate limit again.
                retry_after: jittered(retry_after),
            }),
        }
    }

    /// Records that a pull failed just now.
    pub(super) fn failed(&mut self, image: &str, failure: PullFailure) {
        let now = Instant::now();
        self.backoff.attempt(image, now);
        self.failures.insert(image.to_owned(), (now, failure));
    }

    /// Records a successful pull. The delay is kept, so that a registry that fails every other time
    /// is not retried at the initial delay.
    pub(super) fn succeeded(&mut self, image: &str) {
        self.failures.remove(image);
    }
}
