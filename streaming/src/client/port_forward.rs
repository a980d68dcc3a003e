//! The client side of port-forward: any number of forwarded connections over one connection.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio_util::sync::CancellationToken;

use super::{Client, ClientError, Transport};
use crate::{
    IDLE_TIMEOUT, Reader, Writer,
    port_forward::{PORT, PROTOCOL, REQUEST_ID},
    remote_command::STREAM_TYPE,
    spdy::{Connection, Headers},
    websocket::Tunnel,
};

const TUNNEL_PROTOCOL: &str = "SPDY/3.1+portforward.k8s.io";

/// Forwards connections to the ports of a pod. Dropping it closes all of them.
#[derive(Debug)]
pub struct Forwarder {
    connection: Connection,
    next: AtomicU64,
}

/// A connection to a port of a pod.
pub struct Forwarded {
    /// The data from the pod.
    pub reader: Reader,
    /// The data to the pod.
    pub writer: Writer,
    /// The error text if forwarding failed; empty otherwise.
    pub error: Reader,
}

impl Client {
    /// Starts a port-forward by the URL that a server's `port_forward` returned.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn port_forward(
        &self,
        url: &str,
        transport: Transport,
    ) -> Result<Forwarder, ClientError> {
        match transport {
            Transport::Spdy => {
                let (io, chosen) = self.spdy(url, &[PROTOCOL]).await?;
                Forwarder::over(io, &chosen, PROTOCOL)
            }
            Transport::WebSocket => {
                let (socket, chosen) = self.websocket(url, &[TUNNEL_PROTOCOL]).await?;
                Forwarder::over(Tunnel::new(socket), &chosen, TUNNEL_PROTOCOL)
            }
        }
    }
}

impl Forwarder {
    fn over<T>(io: T, chosen: &str, wanted: &str) -> Result<Self, ClientError>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        if chosen != wanted {
            return Err(ClientError::Protocol(format!("{chosen:?}")));
        }
        let gone = CancellationToken::new();
        let (connection, incoming) = Connection::client(io, IDLE_TIMEOUT, gone);
        drop(incoming);
        Ok(Self {
            connection,
            next: AtomicU64::new(0),
        })
    }

    /// Connects to a port. If no process listens on it, the returned error stream says so.
    ///
    /// # Errors
    /// [`ClientError::Spdy`].
    pub async fn connect(&self, port: u16) -> Result<Forwarded, ClientError> {
        let request = self.next.fetch_add(1, Ordering::Relaxed).to_string();
        let headers = |kind: &str| {
            Headers::default()
                .with(STREAM_TYPE, kind)
                .with(PORT, port.to_string())
                .with(REQUEST_ID, request.clone())
        };
        let (error, mut unused) = self.connection.open(headers("error")).await?.split();
        let _ = unused.shutdown().await;
        let (reader, writer) = self.connection.open(headers("data")).await?.split();
        Ok(Forwarded {
            reader: Box::new(reader),
            writer: Box::new(writer),
            error: Box::new(error),
        })
    }
}
