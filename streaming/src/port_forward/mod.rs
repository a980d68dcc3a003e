//! Port-forward over SPDY or WebSocket. Each connection has two streams, for data and errors.

mod spdy;
mod websocket;

pub(crate) use spdy::{PORT, REQUEST_ID, over_spdy};
pub(crate) use websocket::{Subprotocol, over_websocket};

use std::sync::Arc;

use crate::{Connection, Runtime};

/// The only version of the protocol.
pub(crate) const PROTOCOL: &str = "portforward.k8s.io";

/// Forwards one connection. The error is the text for the client.
async fn forward<R: Runtime>(
    runtime: &Arc<R>,
    sandbox_id: &str,
    port: u16,
    connection: Connection,
) -> Result<(), String> {
    let ended = runtime.port_forward(sandbox_id, port, connection).await;
    ended.map_err(|error| {
        tracing::debug!(sandbox_id, port, %error, "cannot forward a port");
        format!("error forwarding port {port} to pod {sandbox_id}, uid : {error}")
    })
}
