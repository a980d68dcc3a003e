//! Faults of calls, and the connections to break.

use std::{io, net::Shutdown, os::unix::net, path::Path, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::{Stream, StreamExt as _, wrappers::UnixListenerStream};
use tonic::Status;

/// How long the driver is busy with a hanging call: longer than any kubelet waits.
pub(super) const HANG: Duration = Duration::from_secs(150);

/// A fault of a call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The call fails with this status and has no effect.
    Fail(Status),
    /// The call is served after this delay. The kubelet must not make another call for the volume
    /// meanwhile.
    Delay(Duration),
    /// The call takes effect after the kubelet has given up. The driver refuses other calls for the
    /// volume until then.
    Hang,
    /// The connection breaks before the call takes effect.
    Disconnect,
    /// The call takes effect, but the connection breaks before the response.
    LoseAnswer,
    /// The driver has lost its state of the volume: the call succeeds, but removes nothing.
    Forget,
}

/// The driver's connections, for breaking them.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections(Arc<Mutex<Vec<net::UnixStream>>>);

impl Connections {
    /// Breaks all connections.
    pub(super) fn cut(&self) {
        for connection in self.0.lock().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Accepts connections on a socket.
    pub(super) fn accept(
        &self,
        socket: &Path,
    ) -> io::Result<impl Stream<Item = io::Result<UnixStream>> + use<>> {
        let connections = self.clone();
        Ok(listen(socket)?.map(move |stream| {
            let stream = stream?.into_std()?;
            connections.0.lock().push(stream.try_clone()?);
            UnixStream::from_std(stream)
        }))
    }
}

/// Listens on a socket; creates its directory.
pub(super) fn listen(socket: &Path) -> io::Result<UnixListenerStream> {
    if let Some(dir) = socket.parent() {
        std::fs::create_dir_all(dir)?;
    }
    Ok(UnixListenerStream::new(UnixListener::bind(socket)?))
}
