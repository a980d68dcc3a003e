//! The service manager: what it is told, and the socket that it may hand over.
//!
//! Where nobody set its variables (`sd_notify(3)`, `sd_listen_fds(3)`) there is nobody to
//! tell, and nothing is done.

use std::{io, os::unix::net::UnixListener as StdListener, time::Duration};

use rustix::{
    net::sockopt::socket_acceptconn,
    process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open},
};
use sd_notify::NotifyState;
use tokio::net::UnixListener;

/// Why the socket that was to be handed over cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ActivationError {
    /// Nobody handed one over.
    #[error(
        "no socket was handed over (LISTEN_FDS, LISTEN_PID): start the socket unit, or use unix://<absolute path>"
    )]
    None,
    /// It is not clear which one is meant.
    #[error("{0} sockets were handed over, 1 is needed")]
    Many(usize),
    /// It is not one for CRI.
    #[error("what was handed over is no listening unix stream socket")]
    NoListener,
    /// The system refused.
    #[error("take the socket that was handed over: {0}")]
    Io(#[from] io::Error),
}

/// Tells that requests are served, and goes on telling that this process is alive if the
/// service manager wants to hear it (`WatchdogSec=`).
pub fn ready() {
    notify(&[NotifyState::Ready]);
    if let Some(limit) = sd_notify::watchdog_enabled() {
        tokio::spawn(keep_telling(limit));
    }
}

/// Tells that the end has begun.
pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Twice as often as needed, as `sd_watchdog_enabled(3)` wants it. In a task of the runtime
/// that serves requests: when that hangs, so does this.
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

/// The one socket that systemd handed over.
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
    // A bare number is owned by nobody; the kernel gives this process a descriptor of its own.
    let this = pidfd_open(getpid(), PidfdFlags::empty()).map_err(io::Error::from)?;
    let own = pidfd_getfd(&this, number, PidfdGetfdFlags::empty()).map_err(io::Error::from)?;
    if !matches!(socket_acceptconn(&own), Ok(true)) {
        return Err(ActivationError::NoListener);
    }
    let listener = StdListener::from(own);
    // Fails for another family.
    listener
        .local_addr()
        .map_err(|_| ActivationError::NoListener)?;
    listener.set_nonblocking(true)?;
    Ok(UnixListener::from_std(listener)?)
}
