//! Takes events from the kubelet's components.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use k8s_openapi::{
    api::core::v1::{Event, EventSource},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kubelet_host::clock;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::Subject;

/// Capacity of the queue, as upstream.
const QUEUED: usize = 1000;
/// The component that reports the events.
const COMPONENT: &str = "kubelet";
/// Maximum length of an object's name.
const MAX_NAME: usize = 253;

/// Records events. It neither waits nor fails: events are dropped if the queue is full. Clones are
/// cheap and share their state. The default recorder only logs events, at debug level.
#[derive(Clone, Debug, Default)]
pub struct EventRecorder(Option<Arc<Sink>>);

/// The recorded events that are not sent yet.
pub type EventQueue = mpsc::Receiver<Event>;

#[derive(Debug)]
struct Sink {
    node_name: String,
    queue: mpsc::Sender<Event>,
    /// Nanoseconds since the epoch in the name of the last event.
    last: Mutex<u64>,
    /// Whether the last event was dropped.
    is_full: AtomicBool,
}

impl EventRecorder {
    /// A recorder of events on a node, and its queue.
    pub fn new(node_name: &str) -> (Self, EventQueue) {
        let (queue, events) = mpsc::channel(QUEUED);
        let sink = Sink {
            node_name: node_name.to_owned(),
            queue,
            last: Mutex::default(),
            is_full: AtomicBool::default(),
        };
        (Self(Some(Arc::new(sink))), events)
    }

    /// Records a normal event. `message` is formatted only if the event is used.
    pub fn normal(&self, subject: Subject<'_>, reason: &str, message: impl fmt::Display) {
        self.record(subject, "Normal", reason, &[], &message);
    }

    /// Records a warning. `message` as for [`Self::normal`].
    pub fn warning(&self, subject: Subject<'_>, reason: &str, message: impl fmt::Display) {
        self.record(subject, "Warning", reason, &[], &message);
    }

    /// Records a warning with annotations. `message` as for [`Self::normal`].
    pub fn annotated_warning(
        &self,
        subject: Subject<'_>,
        reason: &str,
        annotations: &[(&'static str, String)],
        message: impl fmt::Display,
    ) {
        self.record(subject, "Warning", reason, annotations, &message);
    }

    fn record(
        &self,
        subject: Subject<'_>,
        kind: &str,
        reason: &str,
        annotations: &[(&'static str, String)],
        message: &dyn fmt::Display,
    ) {
        debug!(object = %Object(subject), kind, reason, %message, "event");
        let Some(sink) = &self.0 else {
            return;
        };
        let Some(mut event) = sink.event(subject, kind, reason, message) else {
            return;
        };
        if !annotations.is_empty() {
            let pairs = annotations.iter();
            let owned = pairs.map(|(key, value)| ((*key).to_owned(), value.clone()));
            event.metadata.annotations = Some(owned.collect());
        }
        let is_full = sink.queue.try_send(event).is_err();
        let was_full = sink.is_full.swap(is_full, Ordering::Relaxed);
        if is_full && !was_full && !sink.queue.is_closed() {
            warn!(reason, "the event queue is full; dropping events");
        }
    }
}

impl Sink {
    fn event(
        &self,
        subject: Subject<'_>,
        kind: &str,
        reason: &str,
        message: &dyn fmt::Display,
    ) -> Option<Event> {
        let reference = subject.reference(&self.node_name)?;
        let now = clock::now_time();
        let namespace = reference.namespace.clone();
        let name = reference.name.as_deref().unwrap_or_default();
        Some(Event {
            metadata: ObjectMeta {
                name: Some(self.name(name)),
                namespace: Some(namespace.unwrap_or_else(|| "default".to_owned())),
                ..ObjectMeta::default()
            },
            involved_object: reference,
            reason: Some(reason.to_owned()),
            message: Some(message.to_string()),
            type_: Some(kind.to_owned()),
            count: Some(1),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            source: Some(EventSource {
                component: Some(COMPONENT.to_owned()),
                host: Some(self.node_name.clone()),
            }),
            reporting_component: Some(COMPONENT.to_owned()),
            reporting_instance: Some(self.node_name.clone()),
            ..Event::default()
        })
    }

    /// A name for the next event, unique even if the clock has not advanced.
    fn name(&self, object: &str) -> String {
        let now = u64::try_from(clock::now().as_nanosecond()).unwrap_or_default();
        let unique = {
            let mut last = self.last.lock();
            *last = now.max(last.saturating_add(1));
            *last
        };
        let suffix = format!(".{unique:x}");
        // Object names are ASCII.
        let most = MAX_NAME.saturating_sub(suffix.len());
        let object = object.get(..most).unwrap_or(object);
        let object = object.trim_end_matches(['.', '-']);
        format!("{object}{suffix}")
    }
}

/// A subject, formatted for the log.
struct Object<'a>(Subject<'a>);

impl fmt::Display for Object<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (metadata, container) = match self.0 {
            Subject::Node => return f.write_str("node"),
            Subject::Pod(pod) => (&pod.metadata, None),
            Subject::Claim(claim) => (&claim.metadata, None),
            Subject::Container(pod, container) => (&pod.metadata, Some(container)),
        };
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        write!(f, "{}/{}", text(&metadata.namespace), text(&metadata.name))?;
        match container {
            Some(container) => write!(f, "/{container}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    fn pod(name: &str) -> Pod {
        let pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": "u"}});
        serde_json::from_value(pod).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_says_who_what_and_when() {
        let (recorder, mut events) = EventRecorder::new("node");
        recorder.normal(Subject::Pod(&pod("web")), "Started", format_args!("{}!", 1));
        recorder.warning(Subject::Node, "Rebooted", "again");
        let event = serde_json::to_value(events.recv().await.unwrap()).unwrap();
        let name = event["metadata"]["name"].as_str().unwrap();
        let (object, nanos) = name.rsplit_once('.').unwrap();
        assert_eq!(object, "web");
        assert!(u64::from_str_radix(nanos, 16).unwrap() > 1_000_000_000);
        assert_eq!(event["metadata"]["namespace"], "ns");
        assert_eq!(event["involvedObject"]["uid"], "u");
        assert_eq!(event["type"], "Normal");
        assert_eq!(event["reason"], "Started");
        assert_eq!(event["message"], "1!");
        assert_eq!(event["count"], 1);
        assert_eq!(
            event["source"],
            json!({"component": "kubelet", "host": "node"})
        );
        assert_eq!(event["reportingComponent"], "kubelet");
        assert_eq!(event["reportingInstance"], "node");
        assert_eq!(event["firstTimestamp"], event["lastTimestamp"]);
        let event = events.recv().await.unwrap();
        assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert_eq!(event.metadata.annotations, None);
        let annotations = [("key", "value".to_owned())];
        recorder.annotated_warning(Subject::Node, "Evicted", &annotations, "m");
        let event = events.recv().await.unwrap();
        assert_eq!(event.metadata.annotations.unwrap()["key"], "value");
        assert_eq!(event.type_.as_deref(), Some("Warning"));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_events_that_are_not_sent() {
        let (recorder, mut events) = EventRecorder::new("node");
        let pod = pod(&format!("{}-", "a".repeat(252)));
        for _ in 0..QUEUED + 10 {
            recorder.normal(Subject::Pod(&pod), "Started", "s");
        }
        drop(recorder);
        let mut names = BTreeSet::new();
        while let Some(event) = events.recv().await {
            let name = event.metadata.name.unwrap();
            assert!(name.len() <= MAX_NAME, "{name}");
            names.insert(name);
        }
        assert_eq!(names.len(), QUEUED, "each has a name of its own");
        EventRecorder::default().normal(Subject::Node, "Starting", "no receiver");
    }
}
