//! The unix socket in the root directory, for `kubelet status` and `kubelet logs`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::fs::Mode;
use tokio::net::{UnixListener, UnixSocket};

const BACKLOG: u32 = 64;

/// Where the kubelet with this root directory listens.
pub fn socket_path(root_dir: &Path) -> PathBuf {
    root_dir.join("kubelet.sock")
}

/// Listens on a socket that only its owner can open. The socket of a kubelet
/// that is gone is replaced; that it is gone is known from its lock.
pub(super) fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = UnixSocket::new_stream()?;
    // Set before the name exists: there is no moment at which others could open it.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    socket.bind(path)?;
    socket.listen(BACKLOG)
}
