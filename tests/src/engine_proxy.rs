//! A proxy in front of an engine that does to its client what networks, full disks and busy
//! engines do: some events never come, some requests fail, some answers are late.

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
use tokio::{
    net::{UnixListener, UnixStream},
    task::{JoinHandle, JoinSet},
    time::sleep,
};

/// How late an answer is: later than calls that only read wait for.
const LATE: Duration = Duration::from_secs(20);

use crate::random::Random;

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// The proxy; it ends when this is dropped.
#[derive(Debug)]
pub struct EngineProxy {
    socket: PathBuf,
    faults: Arc<Faults>,
    serves: JoinHandle<()>,
}

/// What goes wrong, and how often it did.
#[derive(Debug, Default)]
struct Faults {
    /// One in so many, and whose turn it is; without it nothing goes wrong.
    chance: Option<(u64, Mutex<Random>)>,
    /// Nothing says of any container that it was killed for want of memory.
    loses_oom_kills: bool,
    healed: AtomicBool,
    events: AtomicUsize,
    refused: AtomicUsize,
    late: AtomicUsize,
    /// Answers that were late and are not any more.
    came: AtomicUsize,
}

impl EngineProxy {
    /// Serves the engine behind the socket `engine` at `socket`. Of the events one in
    /// `one_in` is dropped; of the requests as many fail or are answered late, as `random` has it.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn start(engine: &Path, socket: &Path, one_in: u64, random: Random) -> Result<Self> {
        let faults = Faults {
            chance: Some((one_in, Mutex::new(random))),
            ..Faults::default()
        };
        Self::with(engine, socket, faults)
    }

    /// Serves the engine behind the socket `engine` at `socket`, as if the engine had never
    /// heard of the kernel's OOM killer.
    ///
    /// # Errors
    /// The socket cannot be made.
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

    /// Its address: `unix://...`.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// How much went wrong so far. It goes up when an answer begins to be late and when it comes.
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

    /// Whether an answer is late now.
    pub fn holds_back(&self) -> bool {
        self.faults.late.load(Ordering::SeqCst) > self.faults.came.load(Ordering::SeqCst)
    }

    /// Nothing goes wrong from now on.
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
    /// Whether it is this one's turn.
    fn strike(&self) -> bool {
        !self.healed.load(Ordering::Relaxed) && self.random(|one_in| one_in) == Some(0)
    }

    /// A number below what `below` makes of the chance.
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

/// An answer that is late, until it comes or nobody waits for it any more.
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
    // Connections end with the proxy.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (engine, faults) = (engine.clone(), Arc::clone(&faults));
        let answer =
            service_fn(move |request| answer(request, engine.clone(), Arc::clone(&faults)));
        connections.spawn(async move {
            let connection = server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), answer)
                .with_upgrades();
            // A client that is killed is no fault of the proxy's.
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

/// The events, a line each, that are not dropped.
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
