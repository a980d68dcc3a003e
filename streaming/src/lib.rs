//! The streaming server of a container runtime: exec, attach and port-forward
//! as Kubernetes clients speak them, over SPDY/3.1 and WebSocket.

#![forbid(unsafe_code)]

pub mod client;
mod handshake;
mod idle;
mod port_forward;
mod remote_command;
mod runtime;
mod server;
pub mod spdy;
mod status;
mod token;
mod websocket;

pub use runtime::{
    Attach, Connection, Exec, Reader, Runtime, RuntimeError, Streams, TerminalSize, Wants, Writer,
};
pub use server::{CREATION_TIMEOUT, Config, IDLE_TIMEOUT, Server, ServerError};
pub use status::{Cause, Details, Status};
pub use token::TokenError;
/// For [`Config::tls`] and [`client::Client::with_tls`].
pub use tokio_rustls::rustls;
