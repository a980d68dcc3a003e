//! The streaming server of a container runtime: exec, attach and port-forward over SPDY/3.1 and
//! WebSocket, for Kubernetes clients.
//!
//! A container runtime implements [`Runtime`] and passes it to a [`Server`]. For CRI's `Exec`,
//! `Attach` and `PortForward` the server returns a URL with a token. The token is valid once and
//! for one minute. When a client presents it, the server calls the runtime with the client's
//! streams:
//!
//! ```text
//! CRI Exec -> Server::exec -> URL with token
//! client -> HTTP -> handshake -> SPDY or WebSocket -> streams -> Runtime::exec
//!                                                     status  <- exit code
//! ```
//!
//! [`client`] is the client side, [`Proxy`] forwards between client and server, and [`spdy`]
//! implements both ends of the SPDY protocol. The memory that a peer can claim is bounded: by the
//! number of connections and tokens, the size of requests and messages, the number of streams and
//! the unread data of each. [`connections`] limits a server's connections and chooses the one to
//! close at the limit; other servers use it as well.

#![forbid(unsafe_code)]

pub mod bound;
pub mod client;
pub mod connections;
mod dial;
mod handshake;
mod idle;
mod negotiated_session;
mod port_forward;
mod proxy;
mod remote_command;
mod runtime;
mod server;
pub mod spdy;
mod status;
mod token;
mod url;
mod websocket;

/// The interval of the probes that are sent while this side does not read from a connection, to
/// detect that the peer is gone.
const PROBE_PAUSE: std::time::Duration = std::time::Duration::from_secs(15);

pub use proxy::{Proxy, ProxyTimeouts};
pub use runtime::{
    Attach, Connection, Exec, Exit, Reader, RequestedStreams, Runtime, RuntimeError, Streams,
    TerminalSize, Writer,
};
pub use server::{CREATION_TIMEOUT, Config, IDLE_TIMEOUT, MOST_CONNECTIONS, Server, ServerError};
pub use status::{Cause, Details, Status};
pub use token::TokenError;
/// The TLS library of [`Config::tls`], [`client::Client::with_tls`] and [`Proxy::with_tls`].
pub use tokio_rustls::rustls;
pub use url::{UrlError, parse_url};
