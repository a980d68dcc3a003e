//! What a call to the engine can fail with.

use std::time::Duration;

use bollard::errors::Error as BollardError;

/// A call to the engine that failed: what was attempted, on which object, and why.
#[derive(Debug, thiserror::Error)]
#[error("{action} {object}: {cause}")]
pub struct EngineError {
    /// What was attempted, as a verb phrase.
    pub action: &'static str,
    /// The container, image or exec it was attempted on; empty for the engine itself.
    pub object: String,
    /// Why it failed.
    pub cause: Cause,
}

/// Why a call to the engine failed.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// No connection, or one that broke.
    #[error("the Docker engine cannot be reached: {0}")]
    Unreachable(String),
    /// No answer in time; what the engine did with the call is unknown.
    #[error("the Docker engine did not answer within {0:?}")]
    Deadline(Duration),
    /// HTTP 404: the object, or something that the call names, does not exist.
    #[error("{0}")]
    NotFound(String),
    /// HTTP 409: the object is in use, or in the wrong state.
    #[error("{0}")]
    Conflict(String),
    /// Any other refusal.
    #[error("{message}")]
    Refused {
        /// HTTP status; 0 when the refusal came inside a progress stream.
        status: u16,
        /// The engine's words.
        message: String,
    },
    /// An answer that is not what the API promises.
    #[error("unexpected answer: {0}")]
    Protocol(String),
}

impl EngineError {
    /// The object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self.cause, Cause::NotFound(_))
    }

    /// The engine cannot do that, as it or the object is set up.
    pub fn is_not_implemented(&self) -> bool {
        matches!(self.cause, Cause::Refused { status: 501, .. })
    }

    /// The object is in use, or in the wrong state.
    pub fn is_conflict(&self) -> bool {
        matches!(self.cause, Cause::Conflict(_))
    }
}

impl Cause {
    /// Its kind in a word, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::Deadline(_) => "deadline",
            Self::NotFound(_) => "not_found",
            Self::Conflict(_) => "conflict",
            Self::Refused { .. } => "refused",
            Self::Protocol(_) => "protocol",
        }
    }

    /// Of an HTTP status and the engine's words.
    pub(super) fn refused(status: u16, message: String) -> Self {
        match status {
            404 => Self::NotFound(message),
            409 => Self::Conflict(message),
            status => Self::Refused { status, message },
        }
    }
}

impl From<BollardError> for Cause {
    fn from(error: BollardError) -> Self {
        match error {
            BollardError::DockerResponseServerError {
                status_code,
                message,
            } => Self::refused(status_code, message),
            BollardError::DockerStreamError { error } => Self::Refused {
                status: 0,
                message: error,
            },
            BollardError::RequestTimeoutError
            | BollardError::IOError { .. }
            | BollardError::HyperResponseError { .. } => Self::Unreachable(root(&error)),
            other => Self::Protocol(other.to_string()),
        }
    }
}

/// The innermost reason: hyper wraps "connection refused" in two layers of "client error".
pub(super) fn root(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
