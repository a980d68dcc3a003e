//! Queries that are longer than a [`Uri`](axum::http::Uri) can be (64 KiB). The command of an exec is
//! part of its query, and the API server passes on up to [`LONGEST`] of it.
//!
//! The query of a connection's first request is taken out of the request line before HTTP is parsed,
//! and handlers get it by [`Parameters`]. Later requests of a connection are left as they are:
//! clients open a connection for each exec, since it becomes a stream.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::{
    extract::FromRequestParts,
    http::{StatusCode, request},
    response::Response,
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{OwnedSemaphorePermit, Semaphore},
};

use super::response::text;

/// Maximum length of a request line in bytes, as in Go's servers.
const LONGEST: usize = 1024 * 1024;
/// Request lines up to this length, and a piece more, are left to the parser.
const SHORT: usize = 48 * 1024;
/// Bytes per read, until the request line is complete.
const PIECE: usize = 8 * 1024;
/// Maximum number of parameters: of a long query, each takes many times its length in memory.
const PARAMETERS: usize = 16 * 1024;
/// Maximum number of longer request lines in memory: clients send them before they are known.
const CONCURRENT: usize = 8;
/// The routes whose queries contain a command.
const ROUTES: [&str; 2] = ["/exec/", "/run/"];

/// A query that was taken out of its request.
#[derive(Debug)]
pub(super) struct LongQuery {
    text: String,
    _place: OwnedSemaphorePermit,
}

/// The query of a connection's first request, if it was long.
pub(super) type FirstQuery = Arc<Mutex<Option<LongQuery>>>;

/// A bound on the memory for long queries.
#[derive(Clone, Debug)]
pub(super) struct LongQueries(Arc<Semaphore>);

impl Default for LongQueries {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(CONCURRENT)))
    }
}

/// What was read of a connection's beginning.
enum Head {
    /// A part of the request line.
    Line(Vec<u8>),
    /// Bytes to pass on, and how many of them were.
    Passing(Vec<u8>, usize),
    Passed,
}

/// A connection whose first request line may be shortened.
pub(super) struct FirstRequest<S> {
    stream: S,
    head: Head,
    room: Option<LongQueries>,
    place: Option<OwnedSemaphorePermit>,
    query: FirstQuery,
}

impl<S> FirstRequest<S> {
    /// A connection, and its first query if that is long and there is room for it.
    pub(super) fn new(stream: S, room: Option<&LongQueries>) -> (Self, FirstQuery) {
        let query = FirstQuery::default();
        let connection = Self {
            stream,
            head: room.map_or(Head::Passed, |_| Head::Line(Vec::new())),
            room: room.cloned(),
            place: None,
            query: Arc::clone(&query),
        };
        (connection, query)
    }
}

impl<S: AsyncRead + Unpin> FirstRequest<S> {
    /// Reads on, and returns whether the request line is complete or remains as it is.
    fn poll_line(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let Head::Line(line) = &mut self.head else {
            return Poll::Ready(Ok(true));
        };
        let mut piece = [0; PIECE];
        let mut piece = ReadBuf::new(&mut piece);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut piece))?;
        let piece = piece.filled();
        line.extend_from_slice(piece);
        if piece.is_empty() || piece.contains(&b'\n') || line.len() > LONGEST {
            return Poll::Ready(Ok(true));
        }
        if line.len() > SHORT && self.place.is_none() {
            let room = self.room.as_ref().map(|room| Arc::clone(&room.0));
            self.place = room.and_then(|room| room.try_acquire_owned().ok());
            // Without a place, the parser refuses the line.
            return Poll::Ready(Ok(self.place.is_none()));
        }
        Poll::Ready(Ok(false))
    }

    /// Takes the query out of the line, if it is long and belongs to a command.
    fn pass_on(&mut self) {
        let Head::Line(line) = std::mem::replace(&mut self.head, Head::Passed) else {
            return;
        };
        let Some(place) = self.place.take() else {
            self.head = Head::Passing(line, 0);
            return;
        };
        self.head = match split(&line) {
            Some((short, query)) => {
                *self.query.lock() = Some(LongQuery {
                    text: query.to_owned(),
                    _place: place,
                });
                Head::Passing(short, 0)
            }
            None => Head::Passing(line, 0),
        };
    }
}

/// The bytes of a request without its query, and the query.
fn split(bytes: &[u8]) -> Option<(Vec<u8>, &str)> {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let end = end.filter(|end| *end <= LONGEST)?;
    let line = std::str::from_utf8(&bytes[..end]).ok()?;
    let (method, rest) = line.split_once(' ')?;
    let (target, version) = rest.split_once(' ')?;
    let (path, query) = target.split_once('?')?;
    let is_command = ROUTES.iter().any(|route| path.starts_with(route));
    // The parser knows what else a URI must not contain.
    if !is_command || !query.bytes().all(|byte| byte.is_ascii_graphic()) {
        return None;
    }
    let mut short = format!("{method} {path} {version}").into_bytes();
    short.extend_from_slice(&bytes[end..]);
    Some((short, query))
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstRequest<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            match &mut this.head {
                Head::Line(_) => {
                    if ready!(this.poll_line(cx))? {
                        this.pass_on();
                    }
                }
                Head::Passing(bytes, passed) => {
                    let rest = &bytes[*passed..];
                    let length = rest.len().min(buffer.remaining());
                    buffer.put_slice(&rest[..length]);
                    *passed += length;
                    if *passed == bytes.len() {
                        this.head = Head::Passed;
                    }
                    return Poll::Ready(Ok(()));
                }
                Head::Passed => return Pin::new(&mut this.stream).poll_read(cx, buffer),
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FirstRequest<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The decoded parameters of a request, whose query may be long. While a handler has them, they count
/// as a long query.
#[derive(Debug)]
pub(super) struct Parameters {
    pub(super) pairs: Vec<(String, String)>,
    _query: Option<Arc<LongQuery>>,
}

impl<S: Sync> FromRequestParts<S> for Parameters {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut request::Parts, _: &S) -> Result<Self, Response> {
        let long = parts.extensions.remove::<Arc<LongQuery>>();
        let query = match &long {
            Some(long) => &long.text,
            None => parts.uri.query().unwrap_or_default(),
        };
        let mut pairs = form_urlencoded::parse(query.as_bytes()).into_owned();
        let all: Vec<_> = pairs.by_ref().take(PARAMETERS).collect();
        if pairs.next().is_some() {
            let reason = format!("a query must have at most {PARAMETERS} parameters");
            return Err(text(StatusCode::URI_TOO_LONG, reason));
        }
        Ok(Self {
            pairs: all,
            _query: long,
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    /// What the parser reads of a connection, and the first query if it was taken out.
    async fn read(places: &LongQueries, sent: &str) -> (String, Option<LongQuery>) {
        let (mut client, server) = duplex(3000);
        let (mut server, query) = FirstRequest::new(server, Some(places));
        let sent = sent.to_owned();
        tokio::spawn(async move { client.write_all(sent.as_bytes()).await });
        let mut read = String::new();
        server.read_to_string(&mut read).await.unwrap();
        (read, query.lock().take())
    }

    fn request(route: &str, length: usize) -> (String, String) {
        let query = format!("command={}", "x".repeat(length));
        let rest = "HTTP/1.1\r\nHost: n\r\n\r\nGET /exec/next?a=b HTTP/1.1\r\n";
        (format!("POST {route}?{query} {rest}"), query)
    }

    #[tokio::test]
    async fn the_query_of_a_command_is_taken_out() {
        let places = LongQueries::default();
        for length in [SHORT + PIECE, 65_536, LONGEST - 100] {
            let (sent, query) = request("/exec/ns/p/c", length);
            let (read, taken) = read(&places, &sent).await;
            assert!(
                read == sent.replacen(&format!("?{query}"), "", 1),
                "{length}"
            );
            assert!(taken.unwrap().text == query, "{length}");
        }
        let (short, _) = request("/exec/ns/p/c", 1000);
        let cut = short[..500].to_owned();
        let (other, _) = request("/pods", 70_000);
        let (longer, _) = request("/exec/ns/p/c", LONGEST);
        let (control, _) = request("/exec/ns/p/c", 70_000);
        let control = control.replacen("xx", "x\u{1}", 1);
        for sent in [&short, &cut, &other, &longer, &control, &String::new()] {
            let (read, taken) = read(&places, sent).await;
            assert!(read == *sent && taken.is_none(), "{}", sent.len());
        }
    }

    #[tokio::test]
    async fn the_memory_for_long_queries_is_bounded() {
        let places = LongQueries::default();
        let (sent, _) = request("/run/ns/p/c", 70_000);
        let mut taken = Vec::new();
        for _ in 0..CONCURRENT {
            taken.push(read(&places, &sent).await.1.unwrap());
        }
        assert!(read(&places, &sent).await.1.is_none());
        taken.pop();
        assert!(read(&places, &sent).await.1.is_some());
    }
}
