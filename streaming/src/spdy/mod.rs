//! SPDY/3.1, both ends, to the extent that Kubernetes clients and servers use it: frames,
//! compressed header blocks, and streams over one connection.
//!
//! # Flow control
//!
//! In SPDY/3.1 each stream and each connection has a window. The Go library that Kubernetes clients
//! and servers use ignores windows: it sends without limit and never sends a WINDOW_UPDATE. This
//! implementation supports peers with and without flow control:
//!
//! * A peer *shows* flow control by sending SETTINGS or a WINDOW_UPDATE; a peer that implements it
//!   does so at the start. From then on its windows are obeyed, and ours are announced and updated
//!   as data is read. For other peers, only the transport's back-pressure limits the sender. The
//!   connection's window is treated separately, since some peers never update it: when it is used
//!   up and was never updated, a ping is sent after the data. If there is no update before the
//!   ping's answer, the connection's window is ignored.
//! * Received data that is not read yet is always bounded: when a stream or the connection holds
//!   too much of it, reading from the transport stops until the reader has caught up. A peer that
//!   obeys its windows does not reach that limit, except with many tiny pieces of data, since each
//!   counts with an overhead. For other peers, a slow reader stalls all streams of the connection,
//!   as in upstream.

mod connection;
mod dictionary;
mod frame;
mod headers;
mod state;
mod stream;
#[cfg(test)]
mod tests;
mod transport;

pub use connection::{Connection, Error, Incoming, NewStream};
pub use frame::{Decoder, Frame, FrameError, status};
pub use headers::{Deflater, HeaderError, Headers, Inflater};
pub use stream::{ReadHalf, Stream, WriteHalf};
