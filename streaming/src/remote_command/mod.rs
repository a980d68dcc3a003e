//! Exec and attach: the streams of a command over SPDY or WebSocket.

mod protocol;
mod resize;
mod session;
mod spdy;
mod websocket;

pub(crate) use protocol::{SPDY_PROTOCOLS, Subprotocol, Version};
pub(crate) use session::Session;
pub(crate) use spdy::STREAM_TYPE;
pub(crate) use websocket::channel;
