//! The unix socket in the root directory, for `kubelet status` and `kubelet logs`.

use std::path::{Path, PathBuf};

/// The path of the socket of the kubelet with this root directory.
pub fn socket_path(root_dir: &Path) -> PathBuf {
    root_dir.join("kubelet.sock")
}
