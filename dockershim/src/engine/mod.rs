//! The Docker engine: a thin client around bollard. Every call has a deadline by its
//! kind, and an error that says what was attempted on which object.
//!
//! The engine may be away, at start or at any time later: a call then fails at once,
//! and [`model::sync`](crate::model::sync) is the one that keeps trying.

mod checkpoints;
mod containers;
mod dial;
mod disk_usage;
mod endpoint;
mod error;
mod exec;
mod here;
mod hijack;
mod image_files;
mod images;
mod info;
mod logs;
mod observe;
mod output;
mod probe;
mod tls;

use std::{future::Future, sync::Arc, time::Duration};

use arc_swap::{ArcSwap, ArcSwapOption};
use bollard::{
    API_DEFAULT_VERSION, BollardRequest, ClientVersion, Docker,
    errors::Error as BollardError,
    models::{EventMessage, SystemInfo},
    query_parameters::EventsOptions,
};
use futures::{FutureExt as _, Stream, TryFutureExt as _};
use rustix::process::Pid;

pub use containers::NewContainer;
pub use dial::DialError;
pub use endpoint::Endpoint;
pub use error::{Cause, EngineError};
pub use exec::NewExec;
pub use here::Here;
pub use hijack::AttachTo;
use image_files::ScratchUse;
pub use image_files::may_be_scratch;
pub use images::Credentials;
pub use info::EngineInfo;
pub use logs::{LogPiece, LogPieces};
pub use observe::Observe;
pub use output::{OutputError, carry};
pub use probe::{OLDEST_API, Probe, ProbeError, probe};

use dial::Dialer;
use observe::Watch;
use probe::probe_by;

/// For calls that only read.
const READ: Duration = Duration::from_secs(15);
/// For calls that change something and are not bound by a grace period.
const CHANGE: Duration = Duration::from_secs(120);
/// bollard's own limit is the same for all calls, so it must exceed the longest
/// grace period; the limits that matter are the ones per call.
const CLIENT_LIMIT_SECONDS: u64 = 7 * 24 * 3600;
/// bollard wants a whole URL; only its path is sent.
const ANY_HOST: &str = "http://docker";

/// A connection to the engine that is live or was lost.
#[derive(Debug)]
pub struct Engine {
    endpoint: Endpoint,
    state: ArcSwap<State>,
    /// What the engine last said of itself; it holds on while the engine is away.
    info: ArcSwapOption<EngineInfo>,
    observer: Option<Arc<dyn Observe>>,
    scratch: ScratchUse,
    here: Here,
}

/// What is known of the engine.
#[derive(Debug)]
pub enum State {
    /// It does not answer; the reason is for people.
    Away(String),
    /// It answers.
    Connected(Arc<Connection>),
}

/// An engine that answers.
#[derive(Debug)]
pub struct Connection {
    docker: Docker,
    /// The dialer of calls that are made without bollard.
    dialer: Dialer,
    /// The API version that both sides speak.
    pub api: (usize, usize),
    /// What the engine says of itself.
    pub info: Arc<EngineInfo>,
    /// Whether the engine's processes are those of `/proc` here.
    pub here: bool,
    /// The engine's process, where it is here and can be told.
    pub pid: Option<Pid>,
}

/// One call: what is attempted, on what, and for how long at most.
struct Call<'a> {
    action: &'static str,
    object: &'a str,
    deadline: Duration,
    observer: Option<&'a dyn Observe>,
}

// === impl Engine ===

impl Engine {
    /// An engine that has not been reached yet.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            state: ArcSwap::from_pointee(State::Away("not reached since the start".into())),
            info: ArcSwapOption::empty(),
            observer: None,
            scratch: ScratchUse::default(),
            here: Here::default(),
        }
    }

    /// Tells `observer` of every call from now on.
    #[must_use]
    pub fn observed_by(self, observer: Arc<dyn Observe>) -> Self {
        Self {
            observer: Some(observer),
            ..self
        }
    }

    /// The engine's address.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Whether the engine's processes are those of `/proc` here.
    pub fn here(&self) -> Here {
        self.here.clone()
    }

    /// What is known of the engine now.
    pub fn state(&self) -> Arc<State> {
        self.state.load_full()
    }

    /// What the engine last said of itself, even if it is away by now.
    ///
    /// # Errors
    /// [`Cause::Unreachable`] when it was never reached.
    pub fn info(&self) -> Result<Arc<EngineInfo>, EngineError> {
        match self.info.load_full() {
            Some(info) => Ok(info),
            None => Ok(Arc::clone(&self.connection()?.info)),
        }
    }

    /// The live connection.
    ///
    /// # Errors
    /// [`Cause::Unreachable`] at once when there is none.
    pub fn connection(&self) -> Result<Arc<Connection>, EngineError> {
        self.call("use", "the engine", READ).connection(self)
    }

    /// Reaches the engine, negotiates the API version and asks it about itself.
    ///
    /// # Errors
    /// Any [`Cause`]; the state is left as it was.
    pub async fn connect(&self) -> Result<Arc<Connection>, EngineError> {
        let address = self.endpoint.to_string();
        let call = self.call("connect to", &address, READ);
        let (dialer, probe) = call
            .limited(async {
                // Certificates are replaced as time goes by.
                let dialer = Dialer::new(&self.endpoint).await?;
                match probe_by(&dialer, &self.endpoint).await {
                    Ok(probe) => Ok((dialer, probe)),
                    Err(error) => Err(Cause::Unreachable(error.to_string())),
                }
            })
            .await?;
        let newest = (
            API_DEFAULT_VERSION.major_version,
            API_DEFAULT_VERSION.minor_version,
        );
        let api = probe.api.min(newest);
        let version = ClientVersion {
            major_version: api.0,
            minor_version: api.1,
        };
        let transport = dialer.clone();
        let docker = Docker::connect_with_custom_transport(
            move |request| transport.clone().send_by_bollard(request),
            Some(ANY_HOST),
            CLIENT_LIMIT_SECONDS,
            &version,
        )
        .map_err(|error| call.failed(error.into()))?
        .with_request_modifier(url_safe_registry_auth);
        let info = Arc::new(EngineInfo::from(self.describe_by(&docker).await?));
        let here = here::is_here(probe.peer, info.kernel.clone()).await;
        self.here.set(here);
        let before = self.info.swap(Some(Arc::clone(&info)));
        if let (Some(_), Some(observer)) = (before, &self.observer) {
            observer.reconnected();
        }
        let connection = Arc::new(Connection {
            api,
            info,
            here,
            pid: probe.peer.filter(|peer| here && *peer != Pid::INIT),
            docker,
            dialer,
        });
        self.state
            .store(Arc::new(State::Connected(Arc::clone(&connection))));
        Ok(connection)
    }

    /// Marks the engine as away; calls fail at once until [`Engine::connect`] succeeds.
    pub fn set_away(&self, reason: String) {
        self.state.store(Arc::new(State::Away(reason)));
    }

    /// All that the engine says of itself, beyond what [`EngineInfo`] keeps.
    ///
    /// # Errors
    /// Any [`Cause`].
    pub async fn describe(&self) -> Result<SystemInfo, EngineError> {
        let docker = self.call("describe", "the engine", READ).docker(self)?;
        self.describe_by(&docker).await
    }

    async fn describe_by(&self, docker: &Docker) -> Result<SystemInfo, EngineError> {
        let call = self.call("describe", "the engine", READ);
        call.run(docker.info()).await
    }

    /// Whether the engine answers at all.
    ///
    /// # Errors
    /// Any [`Cause`].
    pub async fn ping(&self) -> Result<(), EngineError> {
        let call = self.call("ping", "the engine", READ);
        let docker = call.docker(self)?;
        call.run(docker.ping()).await.map(drop)
    }

    /// The engine's events that pass `options`; ends with the first error.
    ///
    /// # Errors
    /// [`Cause::Unreachable`] when there is no connection.
    pub fn events(
        &self,
        options: EventsOptions,
    ) -> Result<impl Stream<Item = Result<EventMessage, BollardError>> + use<>, EngineError> {
        let docker = self
            .call("watch", "the engine's events", READ)
            .docker(self)?;
        Ok(async_events(docker, options))
    }

    fn call<'a>(&'a self, action: &'static str, object: &'a str, deadline: Duration) -> Call<'a> {
        Call {
            action,
            object,
            deadline,
            observer: self.observer.as_deref(),
        }
    }
}

fn async_events(
    docker: Docker,
    options: EventsOptions,
) -> impl Stream<Item = Result<EventMessage, BollardError>> {
    // bollard's stream borrows nothing at run time but says so in its type; the
    // client moves along to satisfy it.
    use futures::StreamExt as _;
    futures::stream::once(async move { docker.events(Some(options)).boxed() }).flatten()
}

/// bollard encodes `X-Registry-Auth` in standard base64, the engine decodes base64url
/// and takes what it cannot decode for "no credentials".
fn url_safe_registry_auth(mut request: BollardRequest) -> BollardRequest {
    if let Some(value) = request.headers_mut().get_mut("x-registry-auth") {
        let safe: Vec<u8> = value
            .as_bytes()
            .iter()
            .map(|byte| match byte {
                b'+' => b'-',
                b'/' => b'_',
                other => *other,
            })
            .collect();
        if let Ok(mut safe) = hyper::header::HeaderValue::from_bytes(&safe) {
            safe.set_sensitive(true);
            *value = safe;
        }
    }
    request
}

// === impl Connection ===

impl Connection {
    /// Whether the negotiated API is at least `major.minor`.
    pub fn serves(&self, major: usize, minor: usize) -> bool {
        self.api >= (major, minor)
    }

    /// The path with the API's version in front.
    fn versioned(&self, path: &str) -> String {
        let (major, minor) = self.api;
        format!("/v{major}.{minor}{path}")
    }
}

// === impl Call ===

impl Call<'_> {
    fn connection(&self, engine: &Engine) -> Result<Arc<Connection>, EngineError> {
        match &**engine.state.load() {
            State::Connected(connection) => Ok(Arc::clone(connection)),
            State::Away(reason) => Err(self.failed(Cause::Unreachable(reason.clone()))),
        }
    }

    fn docker(&self, engine: &Engine) -> Result<Docker, EngineError> {
        Ok(self.connection(engine)?.docker.clone())
    }

    fn run<T>(
        &self,
        call: impl Future<Output = Result<T, BollardError>> + Send,
    ) -> impl Future<Output = Result<T, EngineError>> + Send {
        self.limited(call.map_err(Cause::from))
    }

    fn limited<T>(
        &self,
        call: impl Future<Output = Result<T, Cause>> + Send,
    ) -> impl Future<Output = Result<T, EngineError>> + Send {
        // Boxed, or each future that awaits a call would be as large as several of them.
        let call = tokio::time::timeout(self.deadline, Box::pin(call));
        let deadline = self.deadline;
        self.observed(call.map(move |answer| answer.unwrap_or(Err(Cause::Deadline(deadline)))))
    }

    /// Without the deadline: for a call that has one of another kind.
    async fn observed<T>(
        &self,
        call: impl Future<Output = Result<T, Cause>>,
    ) -> Result<T, EngineError> {
        let watch = Watch::begin(self.observer, self.action);
        let result = call.await;
        watch.end(&result);
        result.map_err(|cause| self.failed(cause))
    }

    fn failed(&self, cause: Cause) -> EngineError {
        EngineError {
            action: self.action,
            object: self.object.to_owned(),
            cause,
        }
    }
}
