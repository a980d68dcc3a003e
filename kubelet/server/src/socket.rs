//! The unix socket in the root directory, for `kubelet status` and `kubelet logs`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::fs::Mode;
use tokio::net::{UnixListener, UnixSocket};

const BACKLOG: u32 = 64;

/// The path of the socket of the kubelet with this root directory.
pub fn socket_path(root_dir: &Path) -> PathBuf {
    root_dir.join("kubelet.sock")
}

/// Listens on a socket that only its owner can open. An existing socket is replaced: the lock on
/// the root directory guarantees that its kubelet is gone.
pub(super) fn bind(path: &Path) -> io::Result<UnixListener> {
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
