//! Waiting for file descriptors that are neither sockets nor files of a process.

use std::{io, os::fd::OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

/// Registers a descriptor with the runtime, to wait until it is ready.
///
/// # Errors
/// The kernel cannot watch it.
#[expect(
    deprecated,
    reason = "sound, as the descriptor stays open; its replacement is unsafe code"
)]
pub fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, interest)
}
