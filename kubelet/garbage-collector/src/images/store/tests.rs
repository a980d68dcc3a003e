use std::fs;

use proptest::prelude::*;
use serde_json::json;
use tempfile::TempDir;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// A store with this file.
fn store(contents: impl AsRef<[u8]>) -> (TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("image_manager")).unwrap();
    let store = Store::new(dir.path());
    fs::write(&store.path, contents).unwrap();
    (dir, store)
}

/// The age of detection and of the last use of an image in a file, in seconds.
fn ages(records: &Records, key: &str) -> Option<(u64, Option<u64>)> {
    let usage = records.usages().get(key)?;
    let seconds = |moment: Moment| moment.age(Moment::START).as_secs();
    Some((seconds(usage.first_detected), usage.last_used.map(seconds)))
}

fn file() -> serde_json::Value {
    json!({
        "version": 1,
        "observedAt": "2026-03-01T12:00:00Z",
        "images": {
            "sha256:a": {
                "firstDetected": "2026-03-01T11:00:00Z",
                "lastUsed": "2026-03-01T11:59:00Z",
            },
            "sha256:b,kata": {"firstDetected": "2026-03-01T11:30:00Z"},
        },
    })
}

#[test]
fn time_without_a_kubelet_does_not_count() {
    let (_dir, store) = store(file().to_string());
    let records = store.load(Moment::START, SinceWritten::Ignored);
    assert_eq!(ages(&records, "sha256:a"), Some((3600, Some(60))));
    assert_eq!(ages(&records, "sha256:b,kata"), Some((1800, None)));
    // Beside a running kubelet it does.
    let now = at("2026-03-01T12:10:00Z");
    let records = store.load(Moment::START, SinceWritten::Counts(now));
    assert_eq!(ages(&records, "sha256:a"), Some((4200, Some(660))));
    let earlier = at("2025-01-01T00:00:00Z");
    let records = store.load(Moment::START, SinceWritten::Counts(earlier));
    assert_eq!(ages(&records, "sha256:a"), Some((3600, Some(60))));
}

#[test]
fn times_in_the_future_are_now() {
    let mut file = file();
    file["images"]["sha256:a"]["lastUsed"] = json!("2999-01-01T00:00:00Z");
    file["images"]["sha256:b,kata"]["firstDetected"] = json!("2026-03-01T12:00:01Z");
    let (_dir, store) = store(file.to_string());
    let records = store.load(Moment::START, SinceWritten::Ignored);
    assert_eq!(ages(&records, "sha256:a"), Some((3600, Some(0))));
    assert_eq!(ages(&records, "sha256:b,kata"), Some((0, None)));
}

#[test]
fn an_image_was_not_used_before_it_was_detected() {
    let mut file = file();
    file["images"]["sha256:a"]["lastUsed"] = json!("1970-01-01T00:00:00Z");
    let (_dir, store) = store(file.to_string());
    let records = store.load(Moment::START, SinceWritten::Ignored);
    assert_eq!(ages(&records, "sha256:a"), Some((3600, Some(3600))));
}

#[test]
fn an_invalid_entry_does_not_cost_the_others() {
    let mut file = file();
    file["images"]["sha256:a"]["lastUsed"] = json!("yesterday");
    file["images"][""] = json!({"firstDetected": "2026-03-01T11:30:00Z"});
    let (_dir, store) = store(file.to_string());
    let records = store.load(Moment::START, SinceWritten::Ignored);
    assert_eq!(records.usages().len(), 1);
    assert_eq!(ages(&records, "sha256:b,kata"), Some((1800, None)));
}

#[test]
fn an_invalid_file_is_no_records_and_is_replaced() {
    let mut other_version = file();
    other_version["version"] = json!(2);
    let mut no_time = file();
    no_time["observedAt"] = json!("");
    let text = file().to_string();
    let huge = format!("{text}{}", " ".repeat(16 << 20));
    for contents in [
        other_version.to_string().into_bytes(),
        no_time.to_string().into_bytes(),
        text.as_bytes()[..text.len() - 2].to_vec(),
        huge.into_bytes(),
        b"[".repeat(1 << 20),
        vec![0xff; 64],
        Vec::new(),
    ] {
        let (_dir, store) = store(&contents);
        let records = store.load(Moment::START, SinceWritten::Ignored);
        assert!(records.usages().is_empty());
        let now = at("2026-03-01T12:00:00Z");
        store.save(&records, Moment::START, now).unwrap();
        assert!(store.read().unwrap().is_some());
    }
}

#[test]
fn a_missing_file_is_no_records() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let records = store.load(Moment::START, SinceWritten::Ignored);
    assert!(records.usages().is_empty());
}

#[test]
fn records_that_are_too_large_are_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let usage = Usage {
        first_detected: Moment::START,
        last_used: None,
    };
    let records = Records::new([("a".repeat(17 << 20), usage)].into());
    let now = at("2026-03-01T12:00:00Z");
    store.save(&records, Moment::START, now).unwrap_err();
    assert!(!store.path.exists());
}

proptest! {
    #[test]
    fn records_are_read_as_they_were_written(
        times in prop::collection::vec((0_u64..1 << 40, prop::option::of(0_u64..1 << 40)), 0..20),
    ) {
        let now = Moment::START;
        let usages = times.iter().enumerate().map(|(index, (detected, used))| {
            let detected = now.before(Duration::from_millis(*detected));
            let used = used.map(|used| now.before(Duration::from_millis(used)).max(detected));
            let usage = Usage { first_detected: detected, last_used: used };
            (format!("sha256:{index}"), usage)
        });
        let usages: BTreeMap<String, Usage> = usages.collect();
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        let time = at("2026-03-01T12:00:00.123Z");
        store.save(&Records::new(usages.clone()), now, time).unwrap();
        let records = store.load(now, SinceWritten::Ignored);
        prop_assert_eq!(records.usages(), &usages);
        // A minute later, each age is a minute more.
        let later = store.load(now, SinceWritten::Counts(time + MINUTE));
        for (key, usage) in later.usages() {
            prop_assert_eq!(usage.first_detected, usages[key].first_detected.before(MINUTE));
        }
    }
}
