//! Which images to remove, in which order, and how much to free.

use std::time::Duration;

use super::{
    host::DiskSpace,
    options::ImageGcOptions,
    usage::{Moment, TrackedImage},
};

/// The images that may be removed, the least recently used first: never used ones by their
/// detection.
///
/// Images younger than `minimum_age` stay. Time before `watched_since`, when this kubelet started,
/// does not count for it: pods that run soon may need images that nothing uses yet.
pub(super) fn removable(
    images: Vec<TrackedImage>,
    minimum_age: Duration,
    watched_since: Moment,
    now: Moment,
) -> Vec<TrackedImage> {
    let mut removable: Vec<TrackedImage> = images
        .into_iter()
        .filter(|image| !image.is_in_use && !image.is_pinned)
        .filter(|image| image.usage.first_detected.max(watched_since).age(now) >= minimum_age)
        .collect();
    removable.sort_by(|a, b| {
        let order = |image: &TrackedImage| (image.usage.last_used, image.usage.first_detected);
        order(a).cmp(&order(b)).then_with(|| a.key.cmp(&b.key))
    });
    removable
}

/// Splits off the images that were not used for longer than `limit`. The order remains.
///
/// As the records survive restarts, and count only time while a kubelet ran, a new kubelet need not
/// run for `limit` first, as upstream's does. An image that was never used is as old as its
/// detection; upstream's is of infinite age.
pub(super) fn split_old(
    images: Vec<TrackedImage>,
    limit: Option<Duration>,
    now: Moment,
) -> (Vec<TrackedImage>, Vec<TrackedImage>) {
    let is_old = |image: &TrackedImage| {
        limit.is_some_and(|limit| image.usage.unused_since().age(now) > limit)
    };
    images.into_iter().partition(is_old)
}

/// Usage in percent, rounded up.
pub(super) fn used_percent(space: DiskSpace) -> u64 {
    let (capacity, available) = widened(space);
    let free = (available * 100).checked_div(capacity).unwrap_or_default();
    100 - u64::try_from(free).unwrap_or(100)
}

/// The bytes to free; zero below the high threshold.
pub(super) fn bytes_to_free(space: DiskSpace, options: &ImageGcOptions) -> u64 {
    if used_percent(space) < u64::from(options.high_threshold_percent) {
        return 0;
    }
    let (capacity, available) = widened(space);
    let free_percent = 100_u8.saturating_sub(options.low_threshold_percent);
    let wanted = (capacity * u128::from(free_percent) / 100).saturating_sub(available);
    u64::try_from(wanted).unwrap_or(u64::MAX)
}

/// Some file systems report more available than their size.
fn widened(space: DiskSpace) -> (u128, u128) {
    let available = space.available.min(space.capacity);
    (u128::from(space.capacity), u128::from(available))
}

/// The number of images, from the first, whose removal frees `wanted` bytes; all if they are too
/// small.
pub(super) fn count_for(images: &[TrackedImage], wanted: u64) -> usize {
    let mut freed = 0_u64;
    let suffices = images.iter().take_while(|image| {
        let is_needed = freed < wanted;
        freed = freed.saturating_add(image.size);
        is_needed
    });
    suffices.count()
}

#[cfg(test)]
mod tests;
