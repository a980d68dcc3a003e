//! The kubelet's HTTP servers: the full API on the secure port, for authorized callers; `/healthz`
//! on its own port; the read-only API on a port and on a unix socket. Only its owner can open the
//! socket, which also serves running pods, container logs and reports for `kubelet` commands.

#![forbid(unsafe_code)]

mod access;
pub mod authentication;
mod authorization;
mod body_guard;
mod bounds;
mod checkpoint;
mod commands;
mod configz;
mod connection;
mod container_logs;
mod debug_flags;
mod debugging;
mod expiring_cache;
mod flush_before_end;
mod health_check;
mod healthz;
mod long_query;
mod machine_info;
mod metrics;
mod node_log_query;
mod node_view;
pub mod options;
mod pods;
mod profiling;
mod report_routes;
pub mod reports;
mod response;
mod review_limit;
pub mod reviews;
mod secure;
mod socket;
mod stats;
mod streaming_server;
mod streams;
mod system_logs;
mod target;
pub mod tls;
mod zpages;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{Router, serve::ListenerExt as _};
use cri_streaming::connections::ConnectionLimiter;
use kubelet_host::unix_socket;
use kubelet_machine_info::MachineReader;
use kubelet_metrics::Collector;
use rustix::net::sockopt::set_ipv6_v6only;
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::info;

use self::{
    access::AccessError,
    bounds::{BoundMetrics, Gates},
    connection::{Limits, OPEN_ROOM, Service},
    metrics::{Collectors, HealthResults, HttpMetrics},
    options::ServerOptions,
    secure::SecurePort,
    tls::{
        certificate::CertificateError, client_authority::AuthorityError,
        self_signed::SelfSignedError,
    },
};
pub use health_check::HealthCheck;
pub use node_view::NodeView;
pub use secure::ClusterDependencies;
pub use socket::socket_path;

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is in use, or does not belong to this host.
    #[error("cannot serve {what} on {address}: {source}; set another one with {option}")]
    Bind {
        /// The server.
        what: &'static str,
        /// The address.
        address: SocketAddr,
        /// The fields and flags that set the address.
        option: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The unix socket cannot be created.
    #[error(
        "cannot serve `kubelet status` and `kubelet logs` on {}: {source}; set another directory \
         with --root-dir",
        path.display()
    )]
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The secure port's certificate is unusable.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// A self-signed certificate cannot be created for the secure port.
    #[error(transparent)]
    SelfSigned(#[from] SelfSignedError),
    /// The client certificate authorities are unusable.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The configured authentication or authorization needs an API server.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// The servers with their listeners bound, so that nothing can fail any more.
#[derive(Debug)]
pub struct Servers {
    healthz: Option<TcpListener>,
    read_only: Option<TcpListener>,
    secure: Option<(TcpListener, SecurePort)>,
    /// Collectors of the metrics that only a node in a cluster has.
    metrics: Vec<Arc<dyn Collector>>,
    socket: UnixListener,
}

impl Servers {
    /// Binds the addresses and the socket in the root directory, and loads or creates the secure
    /// port's certificate.
    ///
    /// # Errors
    /// An address cannot be bound, with the option that sets it; or the secure port cannot be set
    /// up.
    pub async fn bind(
        options: &ServerOptions,
        root_dir: &Path,
        cluster: ClusterDependencies,
    ) -> Result<Self, ServerError> {
        let path = socket_path(root_dir);
        let socket =
            unix_socket::bind(&path).map_err(|source| ServerError::Socket { path, source })?;
        let metrics = cluster.metrics.clone();
        let secure = match &options.secure {
            Some(secure) => {
                let built = SecurePort::new(secure, cluster).await?;
                let option = "address and port (--address, --port), or disable the server with \
                              enableServer (--enable-server=false)";
                bind("the kubelet's API", Some(secure.address), option)
                    .await?
                    .map(|listener| (listener, built))
            }
            None => None,
        };
        Ok(Self {
            healthz: bind(
                "/healthz",
                options.healthz,
                "healthzBindAddress and healthzPort (--healthz-bind-address, --healthz-port)",
            )
            .await?,
            read_only: bind(
                "the read-only API",
                options.read_only,
                "address and readOnlyPort (--address, --read-only-port)",
            )
            .await?,
            secure,
            metrics,
            socket,
        })
    }

    /// The bound addresses of `/healthz`, of the read-only API and of the secure port.
    pub fn addresses(&self) -> [Option<SocketAddr>; 3] {
        let secure = self.secure.as_ref().map(|(listener, _)| listener);
        [self.healthz.as_ref(), self.read_only.as_ref(), secure]
            .map(|listener| listener.and_then(|bound| bound.local_addr().ok()))
    }

    /// Serves until `cancel`, then finishes the requests in flight.
    pub async fn serve<V: NodeView>(self, view: V, cancel: CancellationToken) {
        let results = HealthResults::default();
        let health = healthz::routes(view.clone(), results.clone());
        let http = Arc::<HttpMetrics>::default();
        let places =
            ["healthz", "read_only", "socket"].map(|name| ConnectionLimiter::new(name, OPEN_ROOM));
        let gates = Gates::new("socket", OPEN_ROOM);
        let mut bounds = BoundMetrics::default();
        bounds.add(places.iter().flat_map(|places| places.bounds()));
        bounds.add(gates.bounds());
        bounds.add(self.secure.iter().flat_map(|(_, secure)| secure.bounds()));
        let mut collectors = self.metrics;
        let more: [Arc<dyn Collector>; 2] = [http.clone(), Arc::new(bounds)];
        collectors.extend(more);
        let read_only = read_only_routes(view.clone(), collectors.into(), results);
        let logs = container_logs::routes(view.clone(), gates.followed_logs, cancel.clone());
        let on_socket = read_only
            .clone()
            .merge(pods::running_routes(view.clone()))
            .merge(report_routes::routes(view.clone()))
            .merge(logs);
        let [health_places, read_only_places, socket_places] = places;
        let servers = TaskTracker::new();
        let spawn = |listener: TcpListener, what, service: Service| {
            if let Ok(address) = listener.local_addr() {
                info!(%address, "serving {what}");
            }
            let listener = listener.tap_io(connection::keep_alive);
            servers.spawn(connection::serve(listener, service, cancel.clone()));
        };
        if let Some(listener) = self.healthz {
            let service = Service::open(health, Limits::OPEN, health_places);
            spawn(listener, "/healthz", service);
        }
        if let Some(listener) = self.read_only {
            let routes = read_only.clone().merge(debugging::disabled());
            let service = Service::open(routes, Limits::OPEN, read_only_places);
            spawn(
                listener,
                "the read-only API",
                service.counted(Arc::clone(&http)),
            );
        }
        if let Some((listener, secure)) = self.secure {
            let routes = secure.routes(view, read_only, &servers, &cancel);
            servers.spawn(secure.clone().watch_authority(cancel.clone()));
            spawn(listener, "the kubelet's API", secure.service(routes, http));
        }
        let service = Service::open(on_socket, Limits::SOCKET, socket_places);
        servers.spawn(connection::serve(self.socket, service, cancel.clone()));
        servers.close();
        servers.wait().await;
    }
}

/// The handlers that upstream serves on the read-only port, without authentication.
fn read_only_routes<V: NodeView>(view: V, collectors: Collectors, health: HealthResults) -> Router {
    let machine = MachineReader::new("/".into());
    healthz::routes(view.clone(), health.clone())
        .merge(pods::routes(view.clone()))
        .merge(stats::routes(view.clone()))
        .merge(metrics::routes(view, collectors, machine.clone(), health))
        .merge(machine_info::routes(machine))
}

/// Size of the accept queue, the same as tokio's own.
const BACKLOG: u32 = 1024;

async fn bind(
    what: &'static str,
    address: Option<SocketAddr>,
    option: &'static str,
) -> Result<Option<TcpListener>, ServerError> {
    let Some(address) = address else {
        return Ok(None);
    };
    match listen(address).await {
        Ok(listener) => Ok(Some(listener)),
        Err(source) => Err(ServerError::Bind {
            what,
            address,
            option,
            source,
        }),
    }
}

/// Listens on an address. The IPv4 unspecified address covers both IP families, as upstream, if the
/// host supports both.
async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if address.ip() == IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        && let Ok(listener) = listen_on_both(address.port())
    {
        return Ok(listener);
    }
    TcpListener::bind(address).await
}

fn listen_on_both(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v6()?;
    set_ipv6_v6only(&socket, false)?;
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv6Addr::UNSPECIFIED, port).into())?;
    socket.listen(BACKLOG)
}
