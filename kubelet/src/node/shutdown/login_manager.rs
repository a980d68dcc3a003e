//! The seam between a node's shutdown and whoever shuts it down.

use std::{fmt::Debug, future::Future, io, path::PathBuf, time::Duration};

/// Why shutdowns are not held up, or not for long enough.
#[derive(Debug, thiserror::Error)]
pub enum LoginManagerError {
    /// There is no system bus, or it does not take the connection.
    #[error("cannot reach the system bus: {0}")]
    Bus(#[source] zbus::Error),
    /// The login manager does not do what it is asked for.
    #[error("logind does not {action}: {source}")]
    Call {
        /// What it is asked for.
        action: &'static str,
        /// Why not.
        source: zbus::Error,
    },
    /// Its configuration cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Configuration {
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It was told to wait longer, and does not: other configuration may say otherwise.
    #[error("InhibitDelayMaxSec of logind is still {found:?} and not {wanted:?}")]
    Delay {
        /// How long it waits.
        found: Duration,
        /// How long it should.
        wanted: Duration,
    },
    /// The connection ended.
    #[error("the system bus is gone")]
    Gone,
    /// The login manager ended. The next may know of no lock.
    #[error("logind ended, or was started again")]
    Restarted,
}

/// Shuts the node down, and waits for those who have a lock.
pub trait LoginManager: Send + Sync {
    /// A connection to it.
    type Session: Session;

    /// Connects.
    ///
    /// # Errors
    /// It cannot be reached.
    fn connect(&self) -> impl Future<Output = Result<Self::Session, LoginManagerError>> + Send;
}

/// A connection to the login manager. Locks outlive it.
pub trait Session: Send + Sync {
    /// Holds up shutdowns until it is dropped, for no longer than the delay.
    type Lock: Debug + Send;

    /// Whether the node is being shut down now.
    ///
    /// # Errors
    /// It does not say.
    fn is_shutting_down(&self) -> impl Future<Output = Result<bool, LoginManagerError>> + Send;

    /// How long locks hold up a shutdown at most.
    ///
    /// # Errors
    /// It does not say.
    fn delay(&self) -> impl Future<Output = Result<Duration, LoginManagerError>> + Send;

    /// Has it set the delay, in a while.
    ///
    /// # Errors
    /// It cannot be told to.
    fn set_delay(
        &self,
        delay: Duration,
    ) -> impl Future<Output = Result<(), LoginManagerError>> + Send;

    /// Takes a lock.
    ///
    /// # Errors
    /// There is none to be had, as while the node is being shut down.
    fn inhibit(&self) -> impl Future<Output = Result<Self::Lock, LoginManagerError>> + Send;

    /// Whether the node is shut down, once it begins to be or is not any more. Nothing is
    /// lost when the future is dropped.
    ///
    /// # Errors
    /// The session has ended.
    fn changed(&mut self) -> impl Future<Output = Result<bool, LoginManagerError>> + Send;
}
