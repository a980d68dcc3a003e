//! `logging.format: json`: each line is a JSON object with upstream's keys: `ts` (milliseconds
//! since the epoch), `caller`, `msg`, `v` (the verbosity that shows the line; none for errors),
//! followed by the event's own fields and those of its spans.

use std::{
    fmt::{self, Write as _},
    io::Write,
};

use jiff::Timestamp;
use kubelet_host::clock;
use serde::Serialize;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id},
};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

/// Writes events as lines of JSON.
#[derive(Debug)]
pub(super) struct JsonLines<W> {
    writer: W,
}

impl<W> JsonLines<W> {
    /// Writes each line immediately to the result of `writer`.
    pub(super) const fn new(writer: W) -> Self {
        Self { writer }
    }
}

impl<S, W, O> Layer<S> for JsonLines<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: Fn() -> O + 'static,
    O: Write,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(outer) = span.extensions().get::<Fields>() {
                fields.add_outer(outer);
            }
        }
        let line = line(event.metadata(), &fields, clock::now());
        // A failure to write the log cannot be reported.
        let _ = (self.writer)().write_all(line.as_bytes());
    }
}

fn line(metadata: &Metadata<'_>, fields: &Fields, now: Timestamp) -> String {
    let micros = now.as_microsecond();
    let (millis, rest) = (micros.div_euclid(1000), micros.rem_euclid(1000));
    let mut line = format!("{{\"ts\":{millis}.{rest:03}");
    if let (Some(file), Some(number)) = (metadata.file(), metadata.line()) {
        // As upstream: the file name with its directory.
        let short = file.rmatch_indices('/').nth(1);
        let short = short.map_or(file, |(at, _)| &file[at + 1..]);
        add(&mut line, "caller", &format!("{short}:{number}"));
    }
    add(&mut line, "msg", &fields.message);
    match *metadata.level() {
        Level::ERROR => {}
        Level::WARN | Level::INFO => add(&mut line, "v", &0),
        Level::DEBUG => add(&mut line, "v", &4),
        Level::TRACE => add(&mut line, "v", &6),
    }
    for (_, json) in &fields.others {
        line.push_str(json);
    }
    line + "}\n"
}

/// Appends a key to an object that is not empty.
fn add(line: &mut String, key: &str, value: &(impl Serialize + ?Sized)) {
    // Serializing texts and numbers does not fail.
    let json = |value| serde_json::to_string(value).unwrap_or_default();
    let value = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
    // Writing to memory cannot fail.
    let _ = write!(line, ",{}:{value}", json(key));
}

/// The fields of an event or a span.
#[derive(Default)]
struct Fields {
    message: String,
    /// The other fields by name: as keys of a JSON object, each after a comma.
    others: Vec<(&'static str, String)>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: &(impl Serialize + ?Sized)) {
        let key = match field.name() {
            "error" => "err",
            name => name,
        };
        let mut json = String::new();
        add(&mut json, key, value);
        self.others.push((field.name(), json));
    }

    /// Adds the fields of a span around this one, unless both have one of that name: a line about
    /// another pod must not have the UID of the span's.
    fn add_outer(&mut self, outer: &Self) {
        let has = |name: &str| self.others.iter().any(|(own, _)| *own == name);
        if !outer.others.iter().any(|(name, _)| has(name)) {
            self.others.extend_from_slice(&outer.others);
        }
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, &value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, &value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, &value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, &value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            _ => self.put(field, value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Arc};

    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_have_upstreams_keys() {
        let written = Written::default();
        let writer = written.clone();
        let lines = JsonLines::new(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(lines);
        tracing::subscriber::with_default(subscriber, || {
            let error = io::Error::other("a \"broken\" line\n");
            tracing::info!(pod = "web", count = 3, is_new = true, "pod added: {}", 1);
            tracing::warn!(%error, "odd");
            tracing::debug!(share = 0.5, nan = f64::NAN, "why");
            tracing::error!(list = ?["a"], "bad");
            let pod = tracing::info_span!("pod", pod = "web", pod_uid = %"u1");
            pod.in_scope(|| {
                tracing::info!(container = "c", "started");
                tracing::info!(pod = "other", "rejected");
            });
        });
        let text = String::from_utf8(written.0.lock().clone()).unwrap();
        let mut lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        for line in &mut lines {
            let object = line.as_object_mut().unwrap();
            let ts = object.remove("ts").unwrap().as_f64().unwrap();
            assert!(ts > 1.7e12, "{ts}");
            let caller = object.remove("caller").unwrap();
            assert!(caller.as_str().unwrap().starts_with("logging/json.rs:"));
        }
        assert_eq!(
            lines,
            [
                json!({"msg": "pod added: 1", "v": 0, "pod": "web", "count": 3, "is_new": true}),
                json!({"msg": "odd", "v": 0, "err": "a \"broken\" line\n"}),
                json!({"msg": "why", "v": 4, "share": 0.5, "nan": null}),
                json!({"msg": "bad", "list": "[\"a\"]"}),
                json!({"msg": "started", "v": 0, "pod": "web", "pod_uid": "u1", "container": "c"}),
                json!({"msg": "rejected", "v": 0, "pod": "other"}),
            ]
        );
    }
}
