//! What can go wrong with a call, and the connections that it goes wrong on.

use std::{io, net::Shutdown, os::unix::net, path::Path, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::{Stream, StreamExt as _, wrappers::UnixListenerStream};
use tonic::Status;

/// How long a driver that hangs is at it: longer than any kubelet waits.
pub(super) const HANG: Duration = Duration::from_secs(150);

/// What becomes of a call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The driver does nothing, and says why.
    Fail(Status),
    /// The driver takes its time. No other call for the volume may come meanwhile.
    Delay(Duration),
    /// The driver does it after the kubelet has given up, and refuses other calls for the
    /// volume until then.
    Hang,
    /// The connection breaks before anything is done.
    Disconnect,
    /// The driver does it, and the connection breaks before it says so.
    LoseAnswer,
    /// The driver does not know what it had, takes nothing away, and says that it is done.
    Forget,
}

/// The driver's connections, to be cut at any time.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections(Arc<Mutex<Vec<net::UnixStream>>>);

impl Connections {
    /// Cuts all of them.
    pub(super) fn cut(&self) {
        for connection in self.0.lock().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Those that are accepted at a socket.
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
