//! Kubernetes' uses of WebSockets: numbered channels, or a single byte stream.

mod channels;
mod tunnel;

use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

pub(crate) use channels::{Channels, Codec};
pub(crate) use tunnel::Tunnel;

/// The maximum size of a message, the same as for CRI's gRPC messages. Clients usually send 32 KiB
/// per message, but some send a whole file as one.
const LONGEST_MESSAGE: usize = 16 * 1024 * 1024;
const READ_BUFFER: usize = 32 * 1024;

/// The limits of every WebSocket.
pub(crate) fn config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0)
        .max_message_size(Some(LONGEST_MESSAGE))
        .max_frame_size(Some(LONGEST_MESSAGE))
}
