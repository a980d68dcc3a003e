//! Where the kubelet finds a container's log.

pub mod symlink;
