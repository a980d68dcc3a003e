//! Back-off after failed image pulls, and the time that pulls take.

use std::{collections::BTreeMap, time::Duration};

use kubelet_pacing::backoff::{Backoff, jittered};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    error::{ImageError, PullFailure},
    pull_time::PullTime,
};

/// Initial and maximum delay after failed pulls, as upstream.
const BASE: Duration = Duration::from_secs(10);
const MAX: Duration = Duration::from_secs(300);

/// The failed pulls of one pod, by image as written in its spec, and the time of all of its pulls.
#[derive(Debug)]
pub struct PullBackoff {
    backoff: Backoff,
    /// Time and cause of each image's last failure.
    failures: BTreeMap<String, (Instant, PullFailure)>,
    time: PullTime,
}

impl Default for PullBackoff {
    fn default() -> Self {
        Self {
            backoff: Backoff::new(BASE, MAX),
            failures: BTreeMap::new(),
            time: PullTime::default(),
        }
    }
}

impl PullBackoff {
    /// The time with at least one pull under way, which includes waits for a turn.
    pub fn time_spent(&self) -> Duration {
        self.time.so_far()
    }

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

/// A pull under way, until it is dropped.
#[derive(Debug)]
pub(super) struct PullUnderWay<'a>(&'a Mutex<PullBackoff>);

impl<'a> PullUnderWay<'a> {
    pub(super) fn of(pod: &'a Mutex<PullBackoff>) -> Self {
        pod.lock().time.begin();
        Self(pod)
    }
}

impl Drop for PullUnderWay<'_> {
    fn drop(&mut self) {
        self.0.lock().time.end();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pulls_at_the_same_time_count_once() {
        let second = Duration::from_secs(1);
        let pod = Mutex::<PullBackoff>::default();
        let first = PullUnderWay::of(&pod);
        advance(second).await;
        let other = PullUnderWay::of(&pod);
        advance(second).await;
        drop(first);
        advance(second).await;
        drop(other);
        advance(second).await;
        assert_eq!(pod.lock().time_spent(), 3 * second);
        let _third = PullUnderWay::of(&pod);
        advance(second).await;
        assert_eq!(pod.lock().time_spent(), 4 * second);
    }
}
