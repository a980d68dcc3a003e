//! A session of exec or attach: the streams of a command and its connection, independent of the
//! protocol.

use tokio::io::AsyncWriteExt as _;

use crate::{
    Streams, Writer, spdy,
    status::{Status, StatusFormat},
    websocket::Channels,
};

/// An upgraded connection with all streams of a command.
pub(crate) struct Session {
    pub(super) streams: Option<Streams>,
    pub(super) status: Option<Writer>,
    pub(super) format: StatusFormat,
    pub(super) link: Link,
}

/// The connection that carries the streams.
pub(super) enum Link {
    /// The connection, and the write half of stdin. Nothing is sent on it, but it is kept open,
    /// since clients react to its end.
    Spdy(spdy::Connection, Option<spdy::WriteHalf>),
    WebSocket(Channels),
}

impl Session {
    /// Takes the streams; `None` after the first call.
    pub(crate) fn take_streams(&mut self) -> Option<Streams> {
        self.streams.take()
    }

    /// Sends the command's status, after all of its output, and closes the connection.
    pub(crate) async fn finish(self, end: &Status) {
        if let Some(mut stream) = self.status {
            if let Some(text) = end.encode(self.format) {
                // An error means that the client is gone, and it needs no status then.
                let _ = stream.write_all(&text).await;
            }
            let _ = stream.shutdown().await;
        }
        match self.link {
            Link::Spdy(connection, held) => {
                connection.close();
                connection.closed().await;
                drop(held);
            }
            Link::WebSocket(channels) => channels.finish().await,
        }
    }
}
