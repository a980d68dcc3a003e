use proptest::prelude::*;

use super::*;
use crate::images::usage::Usage;

const SECOND: Duration = Duration::from_secs(1);
const NOW: Moment = Moment::START;
const LONG: Duration = Duration::from_secs(1 << 40);

fn ago(seconds: u64) -> Moment {
    NOW.before(SECOND * u32::try_from(seconds).unwrap())
}

/// An image that was detected and last used this many seconds ago.
fn image(key: &str, detected: u64, used: Option<u64>) -> TrackedImage {
    TrackedImage {
        key: key.to_owned(),
        id: key.to_owned(),
        handler: String::new(),
        names: Vec::new(),
        size: 10,
        is_pinned: false,
        is_in_use: false,
        usage: Usage {
            first_detected: ago(detected),
            last_used: used.map(ago),
        },
    }
}

fn keys(images: &[TrackedImage]) -> Vec<&str> {
    images.iter().map(|image| image.key.as_str()).collect()
}

#[test]
fn the_least_recently_used_image_is_first() {
    let images = vec![
        image("used", 100, Some(1)),
        image("used before", 100, Some(50)),
        image("used before, new", 60, Some(50)),
        image("new", 10, None),
        image("old", 90, None),
    ];
    let order = removable(images, Duration::ZERO, Moment::LONG_AGO, NOW);
    let expected = ["old", "new", "used before", "used before, new", "used"];
    assert_eq!(keys(&order), expected);
}

#[test]
fn used_pinned_and_young_images_stay() {
    let mut images = vec![
        image("used", 100, Some(0)),
        image("pinned", 100, None),
        image("young", 59, None),
        image("old enough", 60, None),
    ];
    images[0].is_in_use = true;
    images[1].is_pinned = true;
    let after = |since| keys_of(removable(images.clone(), 60 * SECOND, since, NOW));
    assert_eq!(after(Moment::LONG_AGO), ["old enough"]);
    assert_eq!(after(ago(60)), ["old enough"]);
    let none: [&str; 0] = [];
    assert_eq!(after(ago(59)), none, "the kubelet has just started");
}

fn keys_of(images: Vec<TrackedImage>) -> Vec<String> {
    images.into_iter().map(|image| image.key).collect()
}

#[test]
fn images_are_old_once_they_were_unused_for_longer_than_the_limit() {
    let images = vec![
        image("never used", 101, None),
        image("never used, new", 100, None),
        image("used", 300, Some(100)),
        image("used before", 300, Some(101)),
    ];
    let (old, rest) = split_old(images.clone(), Some(100 * SECOND), NOW);
    assert_eq!(keys(&old), ["never used", "used before"]);
    assert_eq!(keys(&rest), ["never used, new", "used"]);
    let (old, _) = split_old(images, None, NOW);
    assert_eq!(keys(&old), Vec::<&str>::new());
}

#[test]
fn usage_is_brought_from_above_the_high_threshold_to_the_low_one() {
    let options = ImageGcOptions {
        high_threshold_percent: 90,
        low_threshold_percent: 80,
        ..ImageGcOptions::default()
    };
    for (capacity, available, used, wanted) in [
        (1000, 500, 50, 0),
        (1000, 110, 89, 0),
        (1000, 109, 90, 91),
        (1000, 100, 90, 100),
        (1000, 0, 100, 200),
        (1000, 2000, 0, 0),
        (0, 0, 100, 0),
        (u64::MAX, 0, 100, u64::MAX / 5),
    ] {
        let space = DiskSpace {
            capacity,
            available,
        };
        assert_eq!(used_percent(space), used, "{space:?}");
        assert_eq!(bytes_to_free(space, &options), wanted, "{space:?}");
    }
}

#[test]
fn equal_thresholds_may_leave_nothing_to_free() {
    let options = ImageGcOptions {
        high_threshold_percent: 85,
        low_threshold_percent: 85,
        ..ImageGcOptions::default()
    };
    let space = DiskSpace {
        capacity: 1000,
        available: 155,
    };
    assert_eq!(bytes_to_free(space, &options), 0);
}

fn any_image() -> impl Strategy<Value = TrackedImage> {
    let times = (0_u64..300, prop::option::of(0_u64..300));
    let size = prop_oneof![0_u64..1000, Just(u64::MAX)];
    (times, size, any::<bool>(), any::<bool>()).prop_map(
        |((detected, used), size, is_pinned, is_in_use)| TrackedImage {
            size,
            is_pinned,
            is_in_use,
            ..image("", detected, used)
        },
    )
}

proptest! {
    #[test]
    fn what_is_removed_may_be_and_suffices(
        mut images in prop::collection::vec(any_image(), 0..30),
        wanted in 0_u64..5000,
        minimum_age in 0_u64..300,
        started in 0_u64..300,
        limit in prop::option::of(0_u64..300),
    ) {
        for (index, image) in images.iter_mut().enumerate() {
            image.key = index.to_string();
        }
        let may_go = |image: &TrackedImage| {
            let age = image.usage.first_detected.max(ago(started)).age(NOW);
            !image.is_in_use && !image.is_pinned && age >= Duration::from_secs(minimum_age)
        };
        let limit = limit.map(Duration::from_secs);
        let order = removable(images.clone(), Duration::from_secs(minimum_age), ago(started), NOW);
        prop_assert_eq!(order.len(), images.iter().filter(|image| may_go(image)).count());
        let (old, rest) = split_old(order, limit, NOW);
        for image in &old {
            prop_assert!(image.usage.unused_since().age(NOW) > limit.unwrap_or(LONG));
        }
        let count = count_for(&rest, wanted);
        let (gone, left) = rest.split_at(count);
        for image in old.iter().chain(&rest) {
            prop_assert!(may_go(image), "{:?}", image);
        }
        // It suffices if anything does, and no image is removed in excess.
        let sum = |images: &[TrackedImage]| images.iter().map(|i| u128::from(i.size)).sum::<u128>();
        prop_assert!(sum(gone) >= u128::from(wanted) || left.is_empty());
        if let Some((_, before)) = gone.split_last() {
            prop_assert!(sum(before) < u128::from(wanted));
        }
        // None is used more recently than one that stays.
        for gone in gone {
            for left in left {
                prop_assert!(gone.usage.last_used <= left.usage.last_used);
            }
        }
    }
}
