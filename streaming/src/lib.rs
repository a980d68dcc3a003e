//! The streaming server of a container runtime: exec, attach and port-forward
//! as Kubernetes clients speak them, over SPDY/3.1 and WebSocket.
//!
//! A container runtime implements [`Runtime`] and gives it to a [`Server`]. When CRI's
//! `Exec`, `Attach` or `PortForward` is called, the server returns a URL with a token; a
//! client that comes with it within a minute, once, gets the streams, and the server
//! calls the runtime with them:
//!
//! ```text
//! CRI Exec -> Server::exec -> URL with token
//! client -> HTTP -> handshake -> SPDY or WebSocket -> streams -> Runtime::exec
//!                                                     status  <- exit code
//! ```
//!
//! [`client`] is the other end, and [`Proxy`] stands between the two. [`spdy`] is the
//! protocol by itself, both ends. What each peer can make this side keep in memory is
//! bounded: connections and tokens by their number, requests and messages by their size,
//! streams by their number and by what is kept for their readers. [`places`] says who keeps
//! a connection when there are too many, for other servers as well.

#![forbid(unsafe_code)]

pub mod bound;
pub mod client;
mod dial;
mod handshake;
mod idle;
pub mod places;
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

/// While nothing is read from a client, it is asked this often whether it is there.
const PROBE_PAUSE: std::time::Duration = std::time::Duration::from_secs(15);

pub use proxy::{Proxy, ProxyTimeouts};
pub use runtime::{
    Attach, Connection, Exec, Exit, Reader, Runtime, RuntimeError, Streams, TerminalSize, Wants,
    Writer,
};
pub use server::{CREATION_TIMEOUT, Config, IDLE_TIMEOUT, MOST_CONNECTIONS, Server, ServerError};
pub use status::{Cause, Details, Status};
pub use token::TokenError;
/// For [`Config::tls`], [`client::Client::with_tls`] and [`Proxy::with_tls`].
pub use tokio_rustls::rustls;
pub use url::{UrlError, parse_url};
