//! Correlation of events before they are sent, with upstream's rules: repeated events are counted,
//! similar events are combined, and a rate limit per object drops the excess.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hasher as _},
    time::Duration,
};

use k8s_openapi::{api::core::v1::Event, apimachinery::pkg::apis::meta::v1::Time};
use tokio::time::Instant;

use super::lru::Lru;

/// Maximum number of remembered entries of each sort.
const REMEMBERED: usize = 4096;
/// Events that are otherwise equal are combined once they have this many distinct messages.
const SIMILAR: usize = 10;
/// Combining ends if there is no such event for longer than this.
const SIMILAR_PERIOD: Duration = Duration::from_secs(600);
/// Burst of events of one type about one object.
const SPAM_BURST: f64 = 25.0;
/// Interval at which one more event is allowed.
const SPAM_PERIOD: Duration = Duration::from_secs(300);

/// Correlates events. Its memory is bounded.
#[derive(Debug)]
pub struct Correlator {
    similar: Lru<SimilarEvents>,
    known: Lru<Option<ObservedEvent>>,
    objects: Lru<Bucket>,
}

/// Events that differ only in their messages.
#[derive(Debug)]
struct SimilarEvents {
    messages: BTreeSet<u64>,
    last: Instant,
}

/// An event that was seen before, whether it was sent or dropped.
#[derive(Debug)]
struct ObservedEvent {
    name: Option<String>,
    first_timestamp: Option<Time>,
    count: i32,
}

/// The rate limit of one object.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Default for Correlator {
    fn default() -> Self {
        Self {
            similar: Lru::new(REMEMBERED),
            known: Lru::new(REMEMBERED),
            objects: Lru::new(REMEMBERED),
        }
    }
}

impl Correlator {
    /// Returns the event to send: a new one if its count is 1, or else the new count, message and
    /// time of the event with its name. `None` if the event is dropped.
    pub fn correlate(&mut self, event: Event) -> Option<Event> {
        let now = Instant::now();
        let (mut event, key) = self.aggregate(event, now);
        let known = self.known.get_or_insert_with(key, || None);
        let count = known.as_ref().map_or(0, |known| known.count);
        let count = count.saturating_add(1);
        if let Some(known) = known {
            event.metadata.name.clone_from(&known.name);
            event.first_timestamp.clone_from(&known.first_timestamp);
            known.count = count;
        } else {
            *known = Some(ObservedEvent {
                name: event.metadata.name.clone(),
                first_timestamp: event.first_timestamp.clone(),
                count,
            });
        }
        event.count = Some(count);
        self.is_affordable(&event, now).then_some(event)
    }

    /// Returns the event, or the combined event for all similar ones, and its key.
    fn aggregate(&mut self, mut event: Event, now: Instant) -> (Event, u64) {
        let group = hash(&(object(&event), &event.type_, &event.reason));
        let message = hash(&event.message);
        let similar = self.similar.get_or_insert_with(group, || SimilarEvents {
            messages: BTreeSet::new(),
            last: now,
        });
        if now.duration_since(similar.last) > SIMILAR_PERIOD {
            similar.messages.clear();
        }
        similar.messages.insert(message);
        similar.last = now;
        if similar.messages.len() < SIMILAR {
            let field = &event.involved_object.field_path;
            let key = hash(&(object(&event), &event.type_, &event.reason, field, message));
            return (event, key);
        }
        // The number of messages need not exceed the limit.
        similar.messages.pop_first();
        let message = event.message.unwrap_or_default();
        event.message = Some(format!("(combined from similar events): {message}"));
        (event, group)
    }

    fn is_affordable(&mut self, event: &Event, now: Instant) -> bool {
        let key = hash(&(object(event), &event.type_));
        let bucket = self.objects.get_or_insert_with(key, || Bucket {
            tokens: SPAM_BURST,
            at: now,
        });
        let gained = now.duration_since(bucket.at).as_secs_f64() / SPAM_PERIOD.as_secs_f64();
        bucket.tokens = (bucket.tokens + gained).min(SPAM_BURST);
        bucket.at = now;
        let is_affordable = bucket.tokens >= 1.0;
        if is_affordable {
            bucket.tokens -= 1.0;
        }
        is_affordable
    }
}

/// The identity of the involved object. The source of the events is always the same.
fn object(event: &Event) -> [&Option<String>; 5] {
    let object = &event.involved_object;
    [
        &object.kind,
        &object.namespace,
        &object.name,
        &object.uid,
        &object.api_version,
    ]
}

fn hash(value: &impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;
    use tokio::time::advance;

    use super::*;
    use crate::events::{EventQueue, EventRecorder, Subject};

    /// Correlates events of pods.
    struct Bench {
        recorder: EventRecorder,
        queue: EventQueue,
        correlator: Correlator,
    }

    impl Bench {
        fn new() -> Self {
            let (recorder, queue) = EventRecorder::new("node");
            Self {
                recorder,
                queue,
                correlator: Correlator::default(),
            }
        }

        fn tell(&mut self, pod: &str, reason: &str, message: &str) -> Option<Event> {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"name": pod, "namespace": "ns", "uid": pod}
            }))
            .unwrap();
            let subject = Subject::Pod(&pod);
            self.recorder.normal(subject, reason, message);
            let event = self.queue.try_recv().unwrap();
            self.correlator.correlate(event)
        }

        /// Count and message of the event that is sent.
        fn sent(&mut self, pod: &str, reason: &str, message: &str) -> Option<(i32, String)> {
            let event = self.tell(pod, reason, message)?;
            Some((event.count.unwrap(), event.message.unwrap()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_event_is_counted() {
        let mut bench = Bench::new();
        let first = bench.tell("a", "Unhealthy", "no").unwrap();
        advance(Duration::from_secs(60)).await;
        let second = bench.tell("a", "Unhealthy", "no").unwrap();
        assert_eq!((first.count, second.count), (Some(1), Some(2)));
        assert_eq!(first.metadata.name, second.metadata.name);
        assert_eq!(first.first_timestamp, second.first_timestamp);
        assert_ne!(first.last_timestamp, second.last_timestamp);
        let other = bench.tell("a", "Unhealthy", "still no").unwrap();
        assert_eq!(other.count, Some(1));
        assert_ne!(first.metadata.name, other.metadata.name);
        assert_eq!(bench.tell("b", "Unhealthy", "no").unwrap().count, Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn similar_events_become_one() {
        let mut bench = Bench::new();
        for index in 0..9 {
            let message = format!("m{index}");
            assert_eq!(bench.sent("a", "Failed", &message), Some((1, message)));
        }
        let combined = |message: &str| format!("(combined from similar events): {message}");
        assert_eq!(bench.sent("a", "Failed", "m9"), Some((1, combined("m9"))));
        assert_eq!(bench.sent("a", "Failed", "m10"), Some((2, combined("m10"))));
        // Other events are not combined with these.
        assert_eq!(bench.sent("a", "Pulled", "p"), Some((1, "p".to_owned())));
        assert_eq!(bench.sent("b", "Failed", "m"), Some((1, "m".to_owned())));
        // After a pause, events are separate again.
        advance(SIMILAR_PERIOD + Duration::from_secs(1)).await;
        assert_eq!(bench.sent("a", "Failed", "n"), Some((1, "n".to_owned())));
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_has_a_burst_and_then_an_event_every_five_minutes() {
        let mut bench = Bench::new();
        let sent = (0..40).filter(|_| bench.sent("a", "BackOff", "b").is_some());
        assert_eq!(sent.count(), 25);
        assert!(bench.sent("b", "BackOff", "b").is_some());
        advance(SPAM_PERIOD - Duration::from_secs(1)).await;
        assert_eq!(bench.sent("a", "BackOff", "b"), None);
        advance(Duration::from_secs(1)).await;
        // Dropped events were counted.
        assert_eq!(bench.sent("a", "BackOff", "b"), Some((42, "b".to_owned())));
        assert_eq!(bench.sent("a", "BackOff", "b"), None);
    }
}
