//! The streaming server of a container runtime: exec, attach and port-forward
//! as Kubernetes clients speak them, over SPDY/3.1 and WebSocket.

#![forbid(unsafe_code)]

mod runtime;

pub use runtime::{
    Attach, Connection, Exec, Reader, Runtime, RuntimeError, Streams, TerminalSize, Wants, Writer,
};
