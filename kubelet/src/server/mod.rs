//! The kubelet's HTTP servers: `/healthz`, the read-only API on a port and on a
//! unix socket, and the logs of containers on the socket alone, which only its
//! owner can open. The secure port is not built yet.

mod connection;
mod container_logs;
mod healthz;
mod pods;
mod socket;
mod view;

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use axum::Router;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::info;

use crate::config::settings::ServerOptions;

pub use socket::socket_path;
pub use view::NodeView;

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Its address is taken, or is none of this host.
    #[error("cannot serve {what} on {address}: {source}; choose another one with {option}")]
    Bind {
        /// What was to be served.
        what: &'static str,
        /// Where.
        address: SocketAddr,
        /// The fields and flags that decide the address.
        option: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The unix socket cannot be made.
    #[error("cannot serve `kubelet status` and `kubelet logs` on {}: {source}; choose another place with --root-dir", path.display())]
    Socket {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The servers' listeners: bound, so that nothing can fail any more.
#[derive(Debug)]
pub struct Servers {
    healthz: Option<TcpListener>,
    read_only: Option<TcpListener>,
    socket: UnixListener,
}

impl Servers {
    /// Takes the addresses, and the socket in the root directory.
    ///
    /// # Errors
    /// The address that cannot be had, and the option that names it.
    pub async fn bind(options: &ServerOptions, root_dir: &Path) -> Result<Self, ServerError> {
        let path = socket_path(root_dir);
        let socket = socket::bind(&path).map_err(|source| ServerError::Socket { path, source })?;
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
            socket,
        })
    }

    /// The addresses that are served: of `/healthz`, and of the read-only API.
    pub fn addresses(&self) -> [Option<SocketAddr>; 2] {
        [&self.healthz, &self.read_only]
            .map(|listener| listener.as_ref().and_then(|bound| bound.local_addr().ok()))
    }

    /// Serves until `cancel`, and then until the requests that run are answered.
    pub async fn serve<V: NodeView>(self, view: V, cancel: CancellationToken) {
        let health = healthz::routes(view.clone());
        let read_only = health.clone().merge(pods::routes(view.clone()));
        let on_socket = read_only
            .clone()
            .merge(container_logs::routes(view, cancel.clone()));
        let servers = TaskTracker::new();
        let spawn = |listener: Option<TcpListener>, what, routes: &Router| {
            if let Some(listener) = listener {
                if let Ok(address) = listener.local_addr() {
                    info!(%address, "Serving {what}");
                }
                let lifetime = connection::LIFETIME;
                servers.spawn(connection::serve(
                    listener,
                    routes.clone(),
                    lifetime,
                    cancel.clone(),
                ));
            }
        };
        spawn(self.healthz, "/healthz", &health);
        spawn(self.read_only, "the read-only API", &read_only);
        // A log may be followed for as long as its container runs.
        let lifetime = Duration::MAX;
        servers.spawn(connection::serve(
            self.socket,
            on_socket,
            lifetime,
            cancel.clone(),
        ));
        servers.close();
        servers.wait().await;
    }
}

async fn bind(
    what: &'static str,
    address: Option<SocketAddr>,
    option: &'static str,
) -> Result<Option<TcpListener>, ServerError> {
    let Some(address) = address else {
        return Ok(None);
    };
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(Some(listener)),
        Err(source) => Err(ServerError::Bind {
            what,
            address,
            option,
            source,
        }),
    }
}
