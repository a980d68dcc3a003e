//! A proxy in front of an engine that simulates bad networks, full disks and busy engines: some
//! events are lost, some requests fail, some responses are late.

use std::{
    convert::Infallible,
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response, StatusCode,
    body::{Frame, Incoming},
    client, server,
    service::service_fn,
    upgrade::OnUpgrade,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use test_run::random::Random;
use tokio::{
    net::{UnixListener, UnixStream},
    task::{JoinHandle, JoinSet},
    time::sleep,
};

/// The delay of a late response. It exceeds the deadline of read-only calls.
const LATE: Duration = Duration::from_secs(20);

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// The proxy. It stops when this is dropped.
#[derive(Debug)]
pub struct EngineProxy {
    socket: PathBuf,
    faults: Arc<Faults>,
    serves: JoinHandle<()>,
}

/// The faults to inject, and how often each happened.
#[derive(Debug, Default)]
struct Faults {
    /// The fault rate, one in this many, and the random numbers. Without it there are no random
    /// faults.
    chance: Option<(u64, Mutex<Random>)>,
    /// Whether all signs of OOM kills are hidden.
    loses_oom_kills: bool,
    healed: AtomicBool,
    events: AtomicUsize,
    refused: AtomicUsize,
    late: AtomicUsize,
    /// The number of late responses that are no longer pending.
    came: AtomicUsize,
}

impl EngineProxy {
    /// Serves the engine at the socket `engine` on `socket`. One in `one_in` events is dropped, and
    /// one in `one_in` requests fails or is answered late, as determined by `random`.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub fn start(engine: &Path, socket: &Path, one_in: u64, random: Random) -> Result<Self> {
        let faults = Faults {
            chance: Some((one_in, Mutex::new(random))),
            ..Faults::default()
        };
        Self::with(engine, socket, faults)
    }

    /// Serves the engine at the socket `engine` on `socket`, but hides OOM kills: it drops the
    /// events and clears `OOMKilled` in the containers' states.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub fn that_loses_oom_kills(engine: &Path, socket: &Path) -> Result<Self> {
        let faults = Faults {
            loses_oom_kills: true,
            ..Faults::default()
        };
        Self::with(engine, socket, faults)
    }

    fn with(engine: &Path, socket: &Path, faults: Faults) -> Result<Self> {
        let listener = UnixListener::bind(socket).context("the proxy's socket")?;
        let faults = Arc::new(faults);
        let serves = tokio::spawn(serve(listener, engine.to_owned(), Arc::clone(&faults)));
        Ok(Self {
            socket: socket.to_owned(),
            faults,
            serves,
        })
    }

    /// The endpoint of the proxy: `unix://...`.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// The number of faults so far. A late response counts twice: when its delay starts and when it
    /// ends.
    pub fn faults(&self) -> usize {
        let Faults {
            events,
            refused,
            late,
            came,
            ..
        } = &*self.faults;
        let counts = [events, refused, late, came].map(|n| n.load(Ordering::SeqCst));
        counts.iter().sum()
    }

    /// Whether a late response is pending.
    pub fn holds_back(&self) -> bool {
        self.faults.late.load(Ordering::SeqCst) > self.faults.came.load(Ordering::SeqCst)
    }

    /// Stops injecting faults.
    pub fn heal(&self) {
        self.faults.healed.store(true, Ordering::Relaxed);
    }
}

impl fmt::Display for EngineProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Faults {
            events,
            refused,
            late,
            ..
        } = &*self.faults;
        let [events, refused, late] = [events, refused, late].map(|n| n.load(Ordering::Relaxed));
        write!(
            f,
            "{events} events were dropped, {refused} requests refused, {late} answered late"
        )
    }
}

impl Drop for EngineProxy {
    fn drop(&mut self) {
        self.serves.abort();
    }
}

impl Faults {
    /// Decides whether this event or request has a fault.
    fn strike(&self) -> bool {
        !self.healed.load(Ordering::Relaxed) && self.random(|one_in| one_in) == Some(0)
    }

    /// A random number below `below(one_in)`, where `one_in` is the fault rate.
    fn random(&self, below: impl Fn(u64) -> u64) -> Option<u64> {
        let (one_in, random) = self.chance.as_ref()?;
        Some(random.lock().below(below(*one_in)))
    }

    fn drops(&self, event: &[u8]) -> bool {
        let oom = String::from_utf8_lossy(event).contains(r#""Action":"oom""#);
        let dropped = self.loses_oom_kills && oom || self.strike();
        self.events.fetch_add(dropped.into(), Ordering::SeqCst);
        dropped
    }
}

/// A late response that is pending, until it is sent or its client has gone away.
struct Late<'a>(&'a Faults);

impl<'a> Late<'a> {
    fn begin(faults: &'a Faults) -> Self {
        faults.late.fetch_add(1, Ordering::SeqCst);
        Self(faults)
    }
}

impl Drop for Late<'_> {
    fn drop(&mut self) {
        self.0.came.fetch_add(1, Ordering::SeqCst);
    }
}

async fn serve(listener: UnixListener, engine: PathBuf, faults: Arc<Faults>) {
    // The connections end with the proxy.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (engine, faults) = (engine.clone(), Arc::clone(&faults));
        let answer =
            service_fn(move |request| answer(request, engine.clone(), Arc::clone(&faults)));
        connections.spawn(async move {
            let connection = server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), answer)
                .with_upgrades();
            // A client may be killed, so errors are ignored.
            let _ = connection.await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(
    request: Request<Incoming>,
    engine: PathBuf,
    faults: Arc<Faults>,
) -> Result<Response<Body>, Infallible> {
    let late = if !faults.strike() {
        false
    } else if faults.random(|_| 2) == Some(0) {
        faults.refused.fetch_add(1, Ordering::SeqCst);
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        return Ok(refusal(status, "a fault of the test's proxy"));
    } else {
        true
    };
    let _late = late.then(|| Late::begin(&faults));
    let answered = forward(request, &engine, &faults).await;
    if late {
        sleep(LATE).await;
    }
    Ok(answered.unwrap_or_else(|error| refusal(StatusCode::BAD_GATEWAY, &format!("{error:#}"))))
}

fn refusal(status: StatusCode, message: &str) -> Response<Body> {
    let body = serde_json::json!({ "message": message }).to_string();
    let body = Full::from(body).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = status;
    response
}

async fn forward(
    mut request: Request<Incoming>,
    engine: &Path,
    faults: &Arc<Faults>,
) -> Result<Response<Body>> {
    let are_events = request.uri().path().ends_with("/events");
    let is_inspect = request.uri().path().ends_with("/json");
    let client = hyper::upgrade::on(&mut request);
    let stream = UnixStream::connect(engine).await?;
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection.with_upgrades());
    let mut response = sender.send_request(request).await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let engine = hyper::upgrade::on(&mut response);
        tokio::spawn(carry(client, engine));
    }
    if is_inspect && faults.loses_oom_kills {
        let (mut head, body) = response.into_parts();
        let body = String::from_utf8(body.collect().await?.to_bytes().into())?;
        let body = body.replace(r#""OOMKilled":true"#, r#""OOMKilled":false"#);
        head.headers.remove(hyper::header::CONTENT_LENGTH);
        let body = Full::from(body).map_err(|never| match never {});
        return Ok(Response::from_parts(head, body.boxed_unsync()));
    }
    let faults = Arc::clone(faults);
    Ok(response.map(|body| {
        if are_events {
            some_of(body, faults).boxed_unsync()
        } else {
            body.boxed_unsync()
        }
    }))
}

async fn carry(client: OnUpgrade, engine: OnUpgrade) {
    let (Ok(client), Ok(engine)) = tokio::join!(client, engine) else {
        return;
    };
    let (mut client, mut engine) = (TokioIo::new(client), TokioIo::new(engine));
    let _ = tokio::io::copy_bidirectional(&mut client, &mut engine).await;
}

/// Passes on the events, one per line, that are not dropped.
fn some_of(
    body: Incoming,
    faults: Arc<Faults>,
) -> impl hyper::body::Body<Data = Bytes, Error = hyper::Error> {
    let mut begun = Vec::new();
    let pieces = body.into_data_stream().map_ok(move |piece| {
        begun.extend_from_slice(&piece);
        let mut passed = Vec::new();
        while let Some(end) = begun.iter().position(|byte| *byte == b'\n') {
            let event: Vec<u8> = begun.drain(..=end).collect();
            if !faults.drops(&event) {
                passed.extend(event);
            }
        }
        Frame::data(Bytes::from(passed))
    });
    StreamBody::new(pieces.boxed())
}
