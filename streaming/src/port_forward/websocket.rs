//! Port-forward over the older WebSocket protocol: two channels and one connection for each
//! requested port.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::join_all;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio_tungstenite::WebSocketStream;
use tokio_util::sync::CancellationToken;

use super::forward;
use crate::{
    Connection, Runtime, Writer,
    websocket::{Channels, Codec},
};

/// The WebSocket subprotocols of port-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subprotocol {
    /// Two channels for each port.
    Channels {
        /// Whether the data is base64 in text messages.
        base64: bool,
    },
    /// A SPDY connection inside WebSocket messages.
    Tunnel,
}

impl Subprotocol {
    /// Parses a subprotocol's name; the empty name, of clients that request none, is accepted.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name {
            "" | "v4.channel.k8s.io" => Some(Self::Channels { base64: false }),
            "v4.base64.channel.k8s.io" => Some(Self::Channels { base64: true }),
            "SPDY/3.1+portforward.k8s.io" => Some(Self::Tunnel),
            _ => None,
        }
    }
}

/// Forwards one connection to each of `ports`.
pub(crate) async fn over_websocket<T, R: Runtime>(
    socket: WebSocketStream<T>,
    base64: bool,
    runtime: Arc<R>,
    sandbox_id: String,
    ports: Vec<u16>,
    idle: Duration,
    gone: CancellationToken,
) where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let codec = Codec {
        base64,
        close_signal: false,
    };
    // Even channels carry data, odd ones errors.
    let inputs: Vec<bool> = ports.iter().flat_map(|_| [true, false]).collect();
    let mut channels = Channels::open(socket, codec, &inputs, idle, gone.clone());
    let connections = (0_u8..)
        .step_by(2)
        .zip(&ports)
        .filter_map(|(channel, port)| {
            let reader = channels.reader(channel)?;
            let mut data = channels.writer(channel);
            let mut errors = channels.writer(channel + 1);
            let (runtime, sandbox_id, gone) = (&runtime, &sandbox_id, gone.child_token());
            Some(async move {
                let name = port.to_le_bytes();
                data.write_all(&name).await?;
                errors.write_all(&name).await?;
                let connection = Connection {
                    reader,
                    writer: Box::new(EndsBoth {
                        inner: data,
                        connection: gone.clone(),
                    }),
                    gone,
                };
                if let Err(text) = forward(runtime, sandbox_id, *port, connection).await {
                    errors.write_all(text.as_bytes()).await?;
                }
                io::Result::Ok(())
            })
        });
    let connections: Vec<_> = connections.collect();
    join_all(connections).await;
    channels.finish().await;
}

/// The write half of a connection that does not support half-close: when the pod ends its
/// direction, the connection is closed.
struct EndsBoth {
    inner: Writer,
    connection: CancellationToken,
}

impl AsyncWrite for EndsBoth {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.cancel();
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
