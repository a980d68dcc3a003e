//! What Kubernetes puts into WebSockets: numbered channels, or one byte stream.

mod channels;
mod tunnel;

use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

pub(crate) use channels::{Channels, Codec};
pub(crate) use tunnel::Tunnel;

/// The longest message that is taken, as gRPC's in CRI. Clients' pieces are of 32 KiB,
/// but some send a whole file as one message.
const LONGEST_MESSAGE: usize = 16 * 1024 * 1024;
const READ_BUFFER: usize = 32 * 1024;

/// The limits of each WebSocket.
pub(crate) fn config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0)
        .max_message_size(Some(LONGEST_MESSAGE))
        .max_frame_size(Some(LONGEST_MESSAGE))
}
