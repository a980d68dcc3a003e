//! SPDY/3.1, both ends, as far as Kubernetes' clients and servers speak it: frames,
//! compressed header blocks, and streams over one connection.
//!
//! # Flow control
//!
//! SPDY/3.1 gives each stream and each connection a window. The Go library that every
//! Kubernetes client and server is built on ignores them: it sends as much as it
//! likes and never gives a window back. So both kinds of peer must be served:
//!
//! * A peer *shows* flow control by sending SETTINGS or a WINDOW_UPDATE; those that have
//!   it do so at the start. From then on its windows are obeyed, and it is told ours and
//!   given back what is read. Before, and for ever with the others, neither is done: the
//!   transport's own back pressure is all there is. The connection's window is judged by
//!   itself: when it is used up and nothing was ever given back, a ping goes out behind
//!   the data; if still nothing was when its answer comes, that window does not count.
//! * What was received and not read yet is bounded in any case: when a stream or the
//!   connection holds too much, no more is read from the transport until its reader has
//!   caught up. A peer that keeps to its windows never gets there; with one that does
//!   not, a slow reader stops all streams of its connection, as with upstream's.

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
