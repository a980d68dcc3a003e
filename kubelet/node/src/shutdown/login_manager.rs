//! The interface to the login manager, which shuts the node down.

use std::{fmt::Debug, future::Future, io, path::PathBuf, time::Duration};

/// Why shutdowns are not delayed, or not long enough.
#[derive(Debug, thiserror::Error)]
pub enum LoginManagerError {
    /// The system bus is missing or refuses the connection.
    #[error("cannot reach the system bus: {0}")]
    Bus(#[source] zbus::Error),
    /// A request to the login manager failed.
    #[error("logind cannot {action}: {source}")]
    Call {
        /// The operation.
        action: &'static str,
        /// The cause.
        source: zbus::Error,
    },
    /// The login manager's configuration cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Configuration {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The login manager keeps a shorter delay, perhaps because of other configuration.
    #[error("InhibitDelayMaxSec of logind is still {found:?} instead of {wanted:?}")]
    Delay {
        /// Its maximum delay.
        found: Duration,
        /// The required delay.
        wanted: Duration,
    },
    /// The connection ended.
    #[error("lost the connection to the system bus")]
    Gone,
    /// The login manager ended or was restarted. A new one may not know existing locks.
    #[error("logind stopped or restarted")]
    Restarted,
}

/// A login manager: it shuts the node down, and waits for the holders of inhibitor locks.
pub trait LoginManager: Send + Sync {
    /// A connection to it.
    type Session: Session;

    /// Connects.
    ///
    /// # Errors
    /// The login manager cannot be reached.
    fn connect(&self) -> impl Future<Output = Result<Self::Session, LoginManagerError>> + Send;
}

/// A connection to the login manager. Locks outlive it.
pub trait Session: Send + Sync {
    /// An inhibitor lock; delays shutdowns until dropped, at most for the maximum delay.
    type Lock: Debug + Send;

    /// Whether the node is shutting down.
    ///
    /// # Errors
    /// The request failed.
    fn is_shutting_down(&self) -> impl Future<Output = Result<bool, LoginManagerError>> + Send;

    /// The maximum delay of a shutdown by inhibitor locks.
    ///
    /// # Errors
    /// The request failed.
    fn delay(&self) -> impl Future<Output = Result<Duration, LoginManagerError>> + Send;

    /// Requests another maximum delay, which takes effect some time later.
    ///
    /// # Errors
    /// The configuration cannot be written or reloaded.
    fn set_delay(
        &self,
        delay: Duration,
    ) -> impl Future<Output = Result<(), LoginManagerError>> + Send;

    /// Takes an inhibitor lock.
    ///
    /// # Errors
    /// The request failed, such as during a shutdown.
    fn inhibit(&self) -> impl Future<Output = Result<Self::Lock, LoginManagerError>> + Send;

    /// Waits until a shutdown begins (`true`) or is cancelled (`false`). Cancel-safe.
    ///
    /// # Errors
    /// The session has ended.
    fn changed(&mut self) -> impl Future<Output = Result<bool, LoginManagerError>> + Send;
}
