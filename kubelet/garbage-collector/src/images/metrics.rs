//! Metrics of removed images.

use kubelet_metrics::{Counter, Exposition, Family};

/// Why an image is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageReason {
    /// It was not used for too long.
    Age,
    /// Its space is needed.
    Space,
}

impl ImageReason {
    /// The reason in the metric's label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Space => "space",
        }
    }
}

/// The instruments.
#[derive(Debug)]
pub(super) struct ImageGcMetrics(Family<Counter, 1>);

impl Default for ImageGcMetrics {
    fn default() -> Self {
        Self(Family::counter(
            "kubelet_image_garbage_collected_total",
            "[ALPHA] Total number of images garbage collected by the kubelet, whether through disk usage or image age.",
            ["reason"],
        ))
    }
}

impl ImageGcMetrics {
    /// Counts a removed image.
    pub(super) fn removed(&self, reason: ImageReason) {
        self.0.of([reason.as_str()]).increment();
    }

    pub(super) fn collect(&self, page: &mut Exposition) {
        self.0.collect(page);
    }
}
