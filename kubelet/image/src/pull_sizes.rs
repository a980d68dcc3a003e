//! Size classes and duration buckets of the image pull metric, as upstream.

/// Upper bounds of the duration buckets, in seconds.
pub(super) const SECONDS: &[f64] = &[
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0,
    1200.0, 1800.0, 2700.0, 3600.0,
];

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Exclusive lower bound and name of each size class, largest first.
const CLASSES: [(u64, &str); 12] = [
    (100 * GIB, "GT100GB"),
    (60 * GIB, "60GB-100GB"),
    (40 * GIB, "40GB-60GB"),
    (30 * GIB, "30GB-40GB"),
    (20 * GIB, "20GB-30GB"),
    (10 * GIB, "10GB-20GB"),
    (5 * GIB, "5GB-10GB"),
    (GIB, "1GB-5GB"),
    (500 * MIB, "500MB-1GB"),
    (100 * MIB, "100MB-500MB"),
    (10 * MIB, "10MB-100MB"),
    (0, "0-10MB"),
];

/// The size class of an image in bytes; 0 means that the size is unknown.
pub(super) fn class(bytes: u64) -> &'static str {
    let mut classes = CLASSES.iter();
    classes
        .find(|(lower, _)| bytes > *lower)
        .map_or("N/A", |(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_belong_to_the_smaller_class() {
        assert_eq!(class(0), "N/A");
        assert_eq!(class(1), "0-10MB");
        assert_eq!(class(10 * MIB), "0-10MB");
        assert_eq!(class(10 * MIB + 1), "10MB-100MB");
        assert_eq!(class(100 * GIB), "60GB-100GB");
        assert_eq!(class(u64::MAX), "GT100GB");
    }
}
