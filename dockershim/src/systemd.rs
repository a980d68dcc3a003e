//! Readiness and watchdog notifications to systemd, and socket activation.
//!
//! Without systemd's environment variables (`sd_notify(3)`, `sd_listen_fds(3)`), notifications do
//! nothing.

use std::{io, os::unix::net::UnixListener as StdListener, time::Duration};

use rustix::{
    net::sockopt::socket_acceptconn,
    process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open},
};
use sd_notify::NotifyState;
use tokio::net::UnixListener;

/// Why a socket passed by systemd cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ActivationError {
    /// No socket was passed.
    #[error(
        "systemd passed no socket (LISTEN_FDS, LISTEN_PID): start the socket unit, or use \
         unix://<absolute path>"
    )]
    None,
    /// Several sockets were passed, so the right one is ambiguous.
    #[error("systemd passed {0} sockets; expected 1")]
    Many(usize),
    /// It is not a listening unix stream socket.
    #[error("systemd passed something other than a listening unix stream socket")]
    NoListener,
    /// A system call failed.
    #[error("take the socket passed by systemd: {0}")]
    Io(#[from] io::Error),
}

/// Notifies systemd that the shim is ready, and keeps sending watchdog notifications if the unit
/// asks for them (`WatchdogSec=`).
pub fn ready() {
    notify(&[NotifyState::Ready]);
    if let Some(limit) = sd_notify::watchdog_enabled() {
        tokio::spawn(keep_telling(limit));
    }
}

/// Notifies systemd that shutdown has begun.
pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Notifies twice as often as needed, as `sd_watchdog_enabled(3)` recommends. Runs in the same
/// async runtime as the requests, so that it stops when that hangs.
async fn keep_telling(limit: Duration) {
    loop {
        notify(&[NotifyState::Watchdog]);
        tokio::time::sleep(limit / 2).await;
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}

/// The socket passed by systemd.
///
/// # Errors
/// [`ActivationError`].
pub fn socket() -> Result<UnixListener, ActivationError> {
    let mut handed = sd_notify::listen_fds()?;
    let (count, first) = (handed.len(), handed.next());
    let number = match (count, first) {
        (1, Some(number)) => number,
        (0, _) | (_, None) => return Err(ActivationError::None),
        (count, _) => return Err(ActivationError::Many(count)),
    };
    // A raw descriptor number has no owner in Rust, so take an owned duplicate from the kernel.
    let this = pidfd_open(getpid(), PidfdFlags::empty()).map_err(io::Error::from)?;
    let own = pidfd_getfd(&this, number, PidfdGetfdFlags::empty()).map_err(io::Error::from)?;
    if !matches!(socket_acceptconn(&own), Ok(true)) {
        return Err(ActivationError::NoListener);
    }
    let listener = StdListener::from(own);
    // Fails for other address families.
    listener
        .local_addr()
        .map_err(|_| ActivationError::NoListener)?;
    listener.set_nonblocking(true)?;
    Ok(UnixListener::from_std(listener)?)
}
