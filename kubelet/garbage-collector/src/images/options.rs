//! When images are removed.

use std::time::Duration;

/// When images are removed. The percentages are at most 100, and the low one is below the high one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageGcOptions {
    /// Usage of the image file system in percent at which unused images are removed; 100 for never
    /// (`imageGCHighThresholdPercent`).
    pub high_threshold_percent: u8,
    /// Usage in percent down to which they are removed (`imageGCLowThresholdPercent`).
    pub low_threshold_percent: u8,
    /// How long an image stays after it was detected: it may be pulled for a container that does not
    /// exist yet (`imageMinimumGCAge`).
    pub minimum_age: Duration,
    /// How long an image may be unused, whatever the usage; zero for any time
    /// (`imageMaximumGCAge`). Only time in which a kubelet runs counts, across restarts.
    pub maximum_age: Duration,
}

impl Default for ImageGcOptions {
    /// Upstream's defaults.
    fn default() -> Self {
        Self {
            high_threshold_percent: 85,
            low_threshold_percent: 80,
            minimum_age: Duration::from_secs(120),
            maximum_age: Duration::ZERO,
        }
    }
}

impl ImageGcOptions {
    /// Whether images are removed when the file system is too full.
    pub(super) const fn has_threshold(&self) -> bool {
        self.high_threshold_percent < 100
    }

    /// The age at which unused images are removed.
    pub(super) fn age_limit(&self) -> Option<Duration> {
        Some(self.maximum_age).filter(|age| !age.is_zero())
    }

    /// Whether images are removed without a request.
    pub(super) fn is_enabled(&self) -> bool {
        self.has_threshold() || self.age_limit().is_some()
    }
}
