//! Unix sockets of the kubelet's own servers.

use std::{fs, io, path::Path};

use rustix::fs::Mode;
use tokio::net::{UnixListener, UnixSocket};

const BACKLOG: u32 = 64;

/// Listens on a socket that only its owner can open. An existing socket is replaced: the lock on
/// the root directory guarantees that its kubelet is gone. Blocks briefly.
///
/// # Errors
/// The socket cannot be created, or an existing file cannot be removed.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = UnixSocket::new_stream()?;
    // Set before the path exists, so that others can never open it.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    socket.bind(path)?;
    socket.listen(BACKLOG)
}
