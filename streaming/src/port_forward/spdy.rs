//! Port-forward over SPDY. For each connection the client opens a pair of streams with the same
//! request ID.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::forward;
use crate::{
    Connection, Runtime,
    remote_command::STREAM_TYPE,
    spdy::{self, NewStream, Stream, status},
};

/// The header with the port number.
pub(crate) const PORT: &str = "port";
/// The header with the request ID, which is the same for both streams of a pair.
pub(crate) const REQUEST_ID: &str = "requestid";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamType {
    Data,
    Error,
}

/// One stream of a pair.
struct Half {
    stream_type: StreamType,
    port: u16,
    stream: Stream,
}

/// Incomplete pairs by request ID, with their creation time.
#[derive(Default)]
struct Pairs(HashMap<String, (Instant, Half)>);

/// Forwards connections until the client or the server ends the session.
pub(crate) async fn over_spdy<T, R: Runtime>(
    io: T,
    runtime: Arc<R>,
    sandbox_id: String,
    idle: Duration,
    creation: Duration,
    gone: CancellationToken,
) where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (connection, mut incoming) = spdy::Connection::server(io, idle, gone.clone());
    let tasks = TaskTracker::new();
    let mut pairs = Pairs::default();
    loop {
        let oldest = pairs.0.values().map(|(since, _)| *since + creation).min();
        let stream = tokio::select! {
            stream = incoming.next() => stream,
            () = sleep_until(oldest.unwrap_or_else(Instant::now)), if oldest.is_some() => {
                pairs.expire(creation, &tasks);
                continue;
            }
        };
        let Some(stream) = stream else {
            break;
        };
        let (stream_type, port) = match describe(&stream) {
            Ok(description) => description,
            Err(reason) => {
                tracing::debug!(reason, "refused a port-forward stream");
                continue;
            }
        };
        let request = request_id(&stream, stream_type);
        let half = Half {
            stream_type,
            port,
            stream: stream.accept(),
        };
        if let Some((data, error)) = pairs.add(request, half, &tasks) {
            let (runtime, sandbox_id, gone) = (runtime.clone(), sandbox_id.clone(), gone.clone());
            tasks.spawn(async move { carry(&runtime, &sandbox_id, data, error, gone).await });
        }
    }
    drop(pairs);
    tasks.close();
    tasks.wait().await;
    connection.close();
    connection.closed().await;
}

async fn carry<R: Runtime>(
    runtime: &Arc<R>,
    sandbox_id: &str,
    data: Half,
    error: Half,
    gone: CancellationToken,
) {
    let (port, id) = (data.port, data.stream.id());
    let (reader, writer) = data.stream.split();
    let (from_client, mut errors) = error.stream.split();
    // Clients send no data on the error stream.
    drop(from_client);
    let connection = Connection {
        reader: Box::new(reader),
        writer: Box::new(writer),
        gone,
    };
    match forward(runtime, sandbox_id, port, connection).await {
        Ok(()) => tracing::debug!(port, id, "a forwarded connection ended"),
        Err(text) => {
            let _ = errors.write_all(text.as_bytes()).await;
        }
    }
}

fn describe(stream: &NewStream) -> Result<(StreamType, u16), String> {
    let port = stream.header(PORT).unwrap_or_default();
    let port = match port.parse::<u16>() {
        Ok(0) => return Err(format!("port {port:?} must be > 0")),
        Ok(port) => port,
        Err(_) if port.is_empty() => return Err(format!("{PORT:?} header is required")),
        Err(error) => return Err(format!("unable to parse {port:?} as a port: {error}")),
    };
    match stream.header(STREAM_TYPE) {
        Some("data") => Ok((StreamType::Data, port)),
        Some("error") => Ok((StreamType::Error, port)),
        Some(other) => Err(format!("invalid stream type {other:?}")),
        None => Err("\"streamType\" header is required".into()),
    }
}

/// Returns the request ID of a stream. Old clients send none: they open the error stream first, and
/// the data stream right after it.
fn request_id(stream: &NewStream, stream_type: StreamType) -> String {
    match stream.header(REQUEST_ID) {
        Some(id) if !id.is_empty() => id.to_owned(),
        _ if stream_type == StreamType::Error => stream.id().to_string(),
        _ => stream.id().saturating_sub(2).to_string(),
    }
}

// === impl Pairs ===

impl Pairs {
    /// Adds a stream; returns the data and error streams once the pair is complete.
    fn add(&mut self, request: String, half: Half, tasks: &TaskTracker) -> Option<(Half, Half)> {
        match self.0.entry(request) {
            Entry::Vacant(entry) => {
                entry.insert((Instant::now(), half));
                None
            }
            Entry::Occupied(entry) if entry.get().1.stream_type == half.stream_type => {
                let (_, (_, first)) = entry.remove_entry();
                let text = "error processing stream: a stream of this type is already assigned";
                first.fail(text, tasks);
                half.fail(text, tasks);
                None
            }
            Entry::Occupied(entry) => {
                let (_, first) = entry.remove();
                Some(match half.stream_type {
                    StreamType::Data => (half, first),
                    StreamType::Error => (first, half),
                })
            }
        }
    }

    fn expire(&mut self, creation: Duration, tasks: &TaskTracker) {
        let now = Instant::now();
        let over = |(since, _): &(Instant, Half)| *since + creation <= now;
        let requests: Vec<String> = self
            .0
            .iter()
            .filter(|(_, pair)| over(pair))
            .map(|(request, _)| request.clone())
            .collect();
        for request in requests {
            if let Some((_, half)) = self.0.remove(&request) {
                let text = format!("(request={request}) timed out waiting for streams");
                half.fail(&text, tasks);
            }
        }
    }
}

// === impl Half ===

impl Half {
    /// Ends the stream. The text is sent to the client if this is the error stream.
    fn fail(self, text: &str, tasks: &TaskTracker) {
        tracing::debug!(port = self.port, text, "dropped a port-forward stream");
        if self.stream_type == StreamType::Data {
            return self.stream.reset(status::CANCEL);
        }
        let text = text.to_owned();
        tasks.spawn(async move {
            let (_, mut errors) = self.stream.split();
            let _ = errors.write_all(text.as_bytes()).await;
        });
    }
}
