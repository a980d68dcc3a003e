//! Exec and attach over WebSocket. Every stream is a channel with a fixed number.

use std::time::Duration;

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};
use tokio_tungstenite::WebSocketStream;
use tokio_util::sync::CancellationToken;

use super::{Session, Subprotocol, resize, session::Link};
use crate::{
    RequestedStreams, Streams,
    websocket::{Channels, Codec},
};

/// The channel numbers of exec and attach.
pub(crate) mod channel {
    pub(crate) const STDIN: u8 = 0;
    pub(crate) const STDOUT: u8 = 1;
    pub(crate) const STDERR: u8 = 2;
    pub(crate) const ERROR: u8 = 3;
    pub(crate) const RESIZE: u8 = 4;
}

impl Session {
    /// Opens the channels and sends an empty message, by which the client knows that they are open.
    pub(crate) fn over_websocket<T>(
        socket: WebSocketStream<T>,
        protocol: Subprotocol,
        requested: RequestedStreams,
        idle: Duration,
        gone: CancellationToken,
    ) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let codec = Codec {
            base64: protocol.base64,
            close_signal: protocol.version.has_close_signal(),
        };
        let inputs = [requested.stdin, false, false, false, requested.tty];
        let mut channels = Channels::open(socket, codec, &inputs, idle, gone.clone());
        let first = if requested.stdout {
            channel::STDOUT
        } else if requested.stderr {
            channel::STDERR
        } else {
            channel::ERROR
        };
        channels.announce(first);
        let output = |wanted: bool, number| wanted.then(|| channels.writer(number));
        let (stdout, stderr) = (
            output(requested.stdout, channel::STDOUT),
            output(requested.stderr, channel::STDERR),
        );
        let status = channels.writer(channel::ERROR);
        let resize = channels.reader(channel::RESIZE).map(|stream| {
            let (sizes, sizes_to_come) = mpsc::channel(1);
            tokio::spawn(resize::follow(stream, sizes));
            sizes_to_come
        });
        Self {
            streams: Some(Streams {
                stdin: channels.reader(channel::STDIN),
                stdout,
                stderr,
                resize,
                gone,
            }),
            status: Some(status),
            format: protocol.version.status_format(),
            link: Link::WebSocket(channels),
        }
    }
}
