//! The Docker engine client, a thin layer around bollard. Every call has a deadline that fits its
//! kind, and an error that names the operation and the object.
//!
//! The engine may be unavailable at startup or at any later time. Calls then fail immediately;
//! [`resync`](crate::resync) reconnects.

mod checkpoints;
mod containers;
mod dial;
mod disk_usage;
mod endpoint;
mod error;
mod exec;
mod hijack;
mod image_files;
mod images;
mod info;
mod locality;
mod logs;
mod observe;
mod oci_runtimes;
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
pub use hijack::AttachTo;
use image_files::ScratchUse;
pub use image_files::may_be_scratch;
pub use images::Credentials;
pub use info::EngineInfo;
pub use locality::EngineLocality;
pub use logs::{LogPiece, LogPieces};
pub use observe::Observe;
pub use oci_runtimes::is_default_handler;
pub use output::{OutputError, carry};
pub use probe::{OLDEST_API, Probe, ProbeError, probe};

use dial::Dialer;
use observe::ObservedCall;
use probe::probe_by;

/// The deadline of calls that only read.
const READ: Duration = Duration::from_secs(15);
/// The deadline of calls that change something without a grace period.
const CHANGE: Duration = Duration::from_secs(120);
/// bollard has one limit for all calls, so it must exceed the longest grace period; the per-call
/// deadlines are the effective limits.
const CLIENT_LIMIT_SECONDS: u64 = 7 * 24 * 3600;
/// bollard requires a complete URL, but sends only its path.
const ANY_HOST: &str = "http://docker";

/// The connection to the engine.
#[derive(Debug)]
pub struct Engine {
    endpoint: Endpoint,
    state: ArcSwap<ConnectionState>,
    /// The engine's last description of itself, kept while the engine is away.
    info: ArcSwapOption<EngineInfo>,
    observer: Option<Arc<dyn Observe>>,
    scratch: ScratchUse,
    locality: EngineLocality,
}

/// The state of the connection.
#[derive(Debug)]
pub enum ConnectionState {
    /// The engine does not answer; the reason is human-readable.
    Disconnected(String),
    /// The engine answers.
    Connected(Arc<Connection>),
}

/// A live connection.
#[derive(Clone, Debug)]
pub struct Connection {
    docker: Docker,
    /// The dialer for calls that bypass bollard.
    dialer: Dialer,
    /// The negotiated API version.
    pub api: (usize, usize),
    /// The engine's description of itself.
    pub info: Arc<EngineInfo>,
    /// Whether the engine runs in this process's pid namespace, so that its pids are valid here.
    pub is_local: bool,
    /// The engine's process, if it is local and known.
    pub pid: Option<Pid>,
}

/// One call: the operation, the object, and the deadline.
struct Call<'a> {
    action: &'static str,
    object: &'a str,
    deadline: Duration,
    observer: Option<&'a dyn Observe>,
}

// === impl Engine ===

impl Engine {
    /// Creates a client that is not connected yet.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            state: ArcSwap::from_pointee(ConnectionState::Disconnected("not connected yet".into())),
            info: ArcSwapOption::empty(),
            observer: None,
            scratch: ScratchUse::default(),
            locality: EngineLocality::default(),
        }
    }

    /// Reports every call to `observer` from now on.
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

    /// Whether the engine's pids are valid on this machine.
    pub fn locality(&self) -> EngineLocality {
        self.locality.clone()
    }

    /// The current state of the connection.
    pub fn state(&self) -> Arc<ConnectionState> {
        self.state.load_full()
    }

    /// The engine's last description of itself, even if the engine is away now.
    ///
    /// # Errors
    /// [`Cause::Unreachable`] if the engine was never reached.
    pub fn info(&self) -> Result<Arc<EngineInfo>, EngineError> {
        match self.info.load_full() {
            Some(info) => Ok(info),
            None => Ok(Arc::clone(&self.connection()?.info)),
        }
    }

    /// The live connection.
    ///
    /// # Errors
    /// [`Cause::Unreachable`] immediately if there is none.
    pub fn connection(&self) -> Result<Arc<Connection>, EngineError> {
        self.call("use", "the engine", READ).connection(self)
    }

    /// Connects to the engine, negotiates the API version and reads the engine's description.
    ///
    /// # Errors
    /// Any [`Cause`]; the state is unchanged.
    pub async fn connect(&self) -> Result<Arc<Connection>, EngineError> {
        let address = self.endpoint.to_string();
        let call = self.call("connect to", &address, READ);
        let (dialer, probe) = call
            .limited(async {
                // The certificates may have been renewed, so read them for every connect.
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
        let is_local = locality::is_local(probe.peer, info.kernel.clone()).await;
        self.locality.set(is_local);
        let before = self.info.swap(Some(Arc::clone(&info)));
        if let (Some(_), Some(observer)) = (before, &self.observer) {
            observer.reconnected();
        }
        let connection = Arc::new(Connection {
            api,
            info,
            is_local,
            pid: probe.peer.filter(|peer| is_local && *peer != Pid::INIT),
            docker,
            dialer,
        });
        self.state
            .store(Arc::new(ConnectionState::Connected(Arc::clone(
                &connection,
            ))));
        Ok(connection)
    }

    /// Reads the engine's description again, which its administrator can change while it runs.
    ///
    /// # Errors
    /// Any [`Cause`]; the description is unchanged.
    pub async fn refresh_info(&self) -> Result<Arc<Connection>, EngineError> {
        let described = self.connection()?;
        let info = Arc::new(EngineInfo::from(self.describe_by(&described.docker).await?));
        let connection = Arc::new(Connection {
            info: Arc::clone(&info),
            ..(*described).clone()
        });
        let new = Arc::new(ConnectionState::Connected(Arc::clone(&connection)));
        // A connection that was made meanwhile has a description of its own.
        let is_described = |state: &ConnectionState| {
            let ConnectionState::Connected(current) = state else {
                return false;
            };
            Arc::ptr_eq(current, &described)
        };
        let before = self.state.rcu(|current| match is_described(current) {
            true => Arc::clone(&new),
            false => Arc::clone(current),
        });
        if is_described(&before) {
            self.info.store(Some(info));
        }
        Ok(connection)
    }

    /// Marks the engine as away; calls fail immediately until [`Engine::connect`] succeeds.
    pub fn set_disconnected(&self, reason: String) {
        self.state
            .store(Arc::new(ConnectionState::Disconnected(reason)));
    }

    /// The engine's full description of itself; [`EngineInfo`] has only a part.
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

    /// Checks that the engine answers.
    ///
    /// # Errors
    /// Any [`Cause`].
    pub async fn ping(&self) -> Result<(), EngineError> {
        let call = self.call("ping", "the engine", READ);
        let docker = call.docker(self)?;
        call.run(docker.ping()).await.map(drop)
    }

    /// The engine's events that match `options`; the stream ends with the first error.
    ///
    /// # Errors
    /// [`Cause::Unreachable`] if there is no connection.
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
    // bollard's stream borrows nothing, but its type says so; the client is moved into the stream
    // to satisfy the compiler.
    use futures::StreamExt as _;
    futures::stream::once(async move { docker.events(Some(options)).boxed() }).flatten()
}

/// bollard encodes `X-Registry-Auth` in standard base64, but the engine decodes base64url and
/// treats an undecodable value as missing credentials.
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
    /// Checks that the negotiated API is at least `major.minor`.
    pub fn serves(&self, major: usize, minor: usize) -> bool {
        self.api >= (major, minor)
    }

    /// Prefixes the path with the API version.
    fn versioned(&self, path: &str) -> String {
        let (major, minor) = self.api;
        format!("/v{major}.{minor}{path}")
    }
}

// === impl Call ===

impl Call<'_> {
    fn connection(&self, engine: &Engine) -> Result<Arc<Connection>, EngineError> {
        match &**engine.state.load() {
            ConnectionState::Connected(connection) => Ok(Arc::clone(connection)),
            ConnectionState::Disconnected(reason) => {
                Err(self.failed(Cause::Unreachable(reason.clone())))
            }
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
        // Boxed, because the callers' futures would otherwise contain several copies of this one.
        let call = tokio::time::timeout(self.deadline, Box::pin(call));
        let deadline = self.deadline;
        self.observed(call.map(move |answer| answer.unwrap_or(Err(Cause::Deadline(deadline)))))
    }

    /// Runs the call without the call's deadline, for calls that have their own.
    async fn observed<T>(
        &self,
        call: impl Future<Output = Result<T, Cause>>,
    ) -> Result<T, EngineError> {
        let observed_call = ObservedCall::begin(self.observer, self.action);
        let result = call.await;
        observed_call.end(&result);
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
