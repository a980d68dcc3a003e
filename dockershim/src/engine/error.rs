//! Errors of calls to the engine.

use std::time::Duration;

use bollard::errors::Error as BollardError;

/// A failed call to the engine: the operation, the object, and the cause.
#[derive(Debug, thiserror::Error)]
#[error("{action} {object}: {cause}")]
pub struct EngineError {
    /// The operation, as a verb phrase.
    pub action: &'static str,
    /// The container, image or exec; empty for the engine itself.
    pub object: String,
    /// The cause.
    pub cause: Cause,
}

/// Why a call to the engine failed.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// There is no connection, or it broke.
    #[error("cannot reach the Docker engine: {0}")]
    Unreachable(String),
    /// The engine did not answer in time; whether it performed the operation is unknown.
    #[error("the Docker engine did not answer within {0:?}")]
    Deadline(Duration),
    /// HTTP 404: the object, or another object named in the request, does not exist.
    #[error("{0}")]
    NotFound(String),
    /// HTTP 409: the object is in use or in the wrong state.
    #[error("{0}")]
    Conflict(String),
    /// Any other error response.
    #[error("{message}")]
    Refused {
        /// The HTTP status; 0 if the error came inside a progress stream.
        status: u16,
        /// The engine's message.
        message: String,
    },
    /// The response does not conform to the API.
    #[error("unexpected response: {0}")]
    Protocol(String),
}

impl EngineError {
    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self.cause, Cause::NotFound(_))
    }

    /// Whether the engine does not support the operation, given its or the object's configuration.
    pub fn is_not_implemented(&self) -> bool {
        matches!(self.cause, Cause::Refused { status: 501, .. })
    }

    /// Whether the object is in use or in the wrong state.
    pub fn is_conflict(&self) -> bool {
        matches!(self.cause, Cause::Conflict(_))
    }
}

impl Cause {
    /// The kind's name in metrics.
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

    /// The cause for an HTTP status and the engine's message.
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

/// The innermost error message: hyper wraps "connection refused" in two layers of "client error".
pub(super) fn root(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
