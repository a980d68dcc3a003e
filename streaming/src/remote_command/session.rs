//! A remote command's streams, whatever they go over, and its end.

use tokio::io::AsyncWriteExt as _;

use crate::{
    Streams, Writer, spdy,
    status::{Status, StatusFormat},
    websocket::Channels,
};

/// An upgraded connection with all streams that a command needs.
pub(crate) struct Session {
    pub(super) streams: Option<Streams>,
    pub(super) status: Option<Writer>,
    pub(super) format: StatusFormat,
    pub(super) link: Link,
}

/// What carries the streams.
pub(super) enum Link {
    /// With the sending side of stdin: nothing is ever sent on it, but its end would mean
    /// something to clients.
    Spdy(spdy::Connection, Option<spdy::WriteHalf>),
    WebSocket(Channels),
}

impl Session {
    /// The streams; there are some the first time.
    pub(crate) fn take_streams(&mut self) -> Option<Streams> {
        self.streams.take()
    }

    /// Tells how the command ended, behind everything that it wrote, and closes the
    /// connection.
    pub(crate) async fn finish(self, end: &Status) {
        if let Some(mut stream) = self.status {
            if let Some(text) = end.encode(self.format) {
                // A client that is gone already does not want to know.
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
