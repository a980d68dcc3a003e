//! The events of a watch, as lines of its response. The type of an event and its object are decoded
//! one after the other, so that an API type has one decoder for lists and watches.

use std::{error::Error, io, pin::Pin, string::FromUtf8Error};

use futures::io::{AsyncBufRead, AsyncBufReadExt as _};
use kube::core::Status;
use memchr::memchr;
use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};

/// Maximum length of an event. API servers accept objects of up to 3 MiB in the shorter of two
/// encodings.
const MAX_EVENT: usize = 16 * 1024 * 1024;

/// Why an event cannot be read. The events after it can.
#[derive(Debug, thiserror::Error)]
pub(super) enum EventError {
    #[error("it is longer than {MAX_EVENT} bytes")]
    TooLong,
    #[error("it is not UTF-8: {0}")]
    NotText(#[from] FromUtf8Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// The text of an event.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) text: Result<String, EventError>,
    /// Whether the end of the response may have cut it off.
    pub(super) is_last: bool,
}

/// The events of an open watch.
pub(super) struct WatchEvents {
    body: Pin<Box<dyn AsyncBufRead + Send>>,
    /// The beginning of the next event.
    line: Vec<u8>,
    /// Whether the rest of this event is skipped.
    is_too_long: bool,
}

impl WatchEvents {
    pub(super) fn new(body: impl AsyncBufRead + Send + 'static) -> Self {
        Self {
            body: Box::pin(body),
            line: Vec::new(),
            is_too_long: false,
        }
    }

    /// The next event; `None` at the end of the response. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The connection fails.
    pub(super) async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            let read = match self.body.fill_buf().await {
                Ok(read) => read,
                Err(error) if is_cut_off(&error) => &[],
                Err(error) => return Err(error),
            };
            let is_last = read.is_empty();
            let end = memchr(b'\n', read);
            let part = &read[..end.unwrap_or(read.len())];
            self.is_too_long |= self.line.len() + part.len() > MAX_EVENT;
            if self.is_too_long {
                self.line = Vec::new();
            } else {
                self.line.extend_from_slice(part);
            }
            let length = part.len() + usize::from(end.is_some());
            self.body.consume_unpin(length);
            if end.is_none() && !is_last {
                continue;
            }
            let line = std::mem::take(&mut self.line);
            if std::mem::take(&mut self.is_too_long) {
                let text = Err(EventError::TooLong);
                return Ok(Some(Line { text, is_last }));
            }
            if !line.is_empty() {
                let text = String::from_utf8(line).map_err(EventError::from);
                return Ok(Some(Line { text, is_last }));
            }
            if is_last {
                return Ok(None);
            }
        }
    }
}

/// Whether the server ended a response in the middle, as API servers do when they stop.
fn is_cut_off(error: &io::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::UnexpectedEof)
            || error.to_string().contains("unexpected EOF during chunk")
        {
            return true;
        }
        // An I/O error with a custom error is that error; its source would be skipped.
        cause = match io.and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    false
}

/// An event.
#[derive(Debug)]
pub(super) enum WatchEvent<K> {
    /// An object was added or modified.
    Updated(K),
    /// An object was deleted.
    Deleted(K),
    /// The watch has reached this resource version.
    Bookmark(String),
    /// The watch has failed.
    Error(Box<Status>),
}

#[derive(Deserialize)]
struct Head<'a> {
    r#type: &'a str,
    #[serde(rename = "object")]
    _object: IgnoredAny,
}

#[derive(Deserialize)]
struct Whole<T> {
    object: T,
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: BookmarkMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMetadata {
    resource_version: String,
}

impl<K: DeserializeOwned> WatchEvent<K> {
    pub(super) fn parse(line: &str) -> Result<Self, serde_json::Error> {
        let head: Head<'_> = serde_json::from_str(line)?;
        Ok(match head.r#type {
            "ADDED" | "MODIFIED" => Self::Updated(object(line)?),
            "DELETED" => Self::Deleted(object(line)?),
            "BOOKMARK" => {
                let bookmark: Bookmark = object(line)?;
                Self::Bookmark(bookmark.metadata.resource_version)
            }
            "ERROR" => Self::Error(object(line)?),
            other => {
                let known = &["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"];
                return Err(serde::de::Error::unknown_variant(other, known));
            }
        })
    }
}

fn object<T: DeserializeOwned>(line: &str) -> Result<T, serde_json::Error> {
    Ok(serde_json::from_str::<Whole<T>>(line)?.object)
}

/// The status of a line that is not an event but an error response. All fields of a status are
/// optional, so that any other object looks like an empty one.
pub(super) fn bare_status(line: &str) -> Option<Box<Status>> {
    let status: Box<Status> = serde_json::from_str(line).ok()?;
    (*status != Status::default()).then_some(status)
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt as _, TryStreamExt as _, stream};

    use super::*;

    fn events(chunks: Vec<io::Result<Vec<u8>>>) -> WatchEvents {
        WatchEvents::new(stream::iter(chunks).boxed().into_async_read())
    }

    async fn all(mut events: WatchEvents) -> (Vec<String>, Option<String>) {
        let mut lines = Vec::new();
        loop {
            match events.next().await {
                Ok(Some(Line { text: Ok(text), .. })) => lines.push(text),
                Ok(Some(Line {
                    text: Err(error), ..
                })) => lines.push(error.to_string()),
                Ok(None) => return (lines, None),
                Err(error) => return (lines, Some(error.to_string())),
            }
        }
    }

    #[tokio::test]
    async fn events_are_lines_however_they_arrive() {
        let text = b"{\"a\": 1}\n\n{\"b\": 2}\n{\"c\"".to_vec();
        let lines = ["{\"a\": 1}", "{\"b\": 2}", "{\"c\""].map(str::to_owned);
        for size in 1..=text.len() {
            let chunks = text.chunks(size).map(|chunk| Ok(chunk.to_vec())).collect();
            assert_eq!(all(events(chunks)).await, (lines.to_vec(), None), "{size}");
        }
        let mut events = events(vec![Ok(b"a\nb".to_vec())]);
        for is_last in [false, true] {
            assert_eq!(events.next().await.unwrap().unwrap().is_last, is_last);
        }
    }

    #[tokio::test]
    async fn an_event_that_is_too_long_is_skipped_and_does_not_fill_the_memory() {
        let longest = [1, MAX_EVENT - 1].map(|size| Ok(vec![b'x'; size]));
        let (lines, error) = all(events(longest.into())).await;
        assert_eq!((lines[0].len(), error), (MAX_EVENT, None));
        let part = || Ok(vec![b'x'; 1 << 20]);
        let chunks = std::iter::repeat_with(part).take(40);
        let chunks = chunks.chain([Ok(b"y\n{}\n".to_vec())]);
        let mut events = WatchEvents::new(stream::iter(chunks).boxed().into_async_read());
        let first = events.next().await.unwrap().unwrap();
        assert_eq!(
            first.text.unwrap_err().to_string(),
            "it is longer than 16777216 bytes"
        );
        assert_eq!(events.line.capacity(), 0);
        assert_eq!(all(events).await, (vec!["{}".to_owned()], None));
    }

    #[tokio::test]
    async fn a_response_that_is_cut_off_ends_and_a_broken_connection_fails() {
        let cut = || io::Error::from(io::ErrorKind::UnexpectedEof);
        for error in [
            cut(),
            io::Error::other(cut()),
            io::Error::other(Box::<dyn Error + Send + Sync>::from(
                "unexpected EOF during chunk size line",
            )),
        ] {
            let chunks = vec![Ok(b"{}\n".to_vec()), Err(error)];
            assert_eq!(all(events(chunks)).await, (vec!["{}".to_owned()], None));
        }
        let chunks = vec![Ok(b"{}\n".to_vec()), Err(io::Error::other("reset"))];
        let (lines, error) = all(events(chunks)).await;
        assert_eq!((lines.len(), error.as_deref()), (1, Some("reset")));
        let (lines, error) = all(events(vec![Ok(b"\xff\n{}\n".to_vec())])).await;
        assert!(lines[0].starts_with("it is not UTF-8: "), "{lines:?}");
        assert_eq!((&*lines[1], error), ("{}", None));
    }

    #[test]
    fn an_event_has_a_known_type() {
        let parse = |text| WatchEvent::<Vec<String>>::parse(text).map(|event| format!("{event:?}"));
        let event = parse(r#"{"object": ["a", "}"], "type": "MODIFIED", "x": 1}"#);
        assert_eq!(event.unwrap(), r#"Updated(["a", "}"])"#);
        let event = parse(r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}}"#);
        assert_eq!(event.unwrap(), r#"Bookmark("7")"#);
        for (text, error) in [
            (
                r#"{"type": "GONE", "object": {}}"#,
                "unknown variant `GONE`",
            ),
            (r#"{"type": "ADDED"}"#, "missing field `object`"),
            (r#"{"kind": "Status", "code": 410}"#, "missing field `type`"),
        ] {
            let found = parse(text).unwrap_err().to_string();
            assert!(found.starts_with(error), "{found}");
        }
        assert!(parse(r#"{"type": "ADDED", "object": {"#).is_err_and(|error| error.is_eof()));
    }

    #[test]
    fn a_status_that_is_no_event_is_an_error_response() {
        let status = bare_status(r#"{"kind": "Status", "code": 410, "reason": "Expired"}"#);
        assert_eq!(status.unwrap().code, 410);
        assert!(bare_status(r#"{"type": "ADDED", "object": {"code": 1}}"#).is_none());
        assert!(bare_status("nonsense").is_none());
    }
}
