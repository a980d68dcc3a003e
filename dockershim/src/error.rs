//! What a verb can fail with, and the one mapping from it to gRPC codes.

use std::{path::PathBuf, time::Duration};

use cri_streaming::TokenError;
use tonic::{Code, Status};

use crate::{
    checkpoint::CheckpointError,
    engine::{Cause, EngineError},
    logs::LogError,
    network::cni::CniError,
};

/// Why a CRI verb failed. The message names the object and the reason; the gRPC
/// code comes from [`Error::code`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field of the request cannot be right, whatever the state of the node.
    #[error("{field}: {reason}")]
    InvalidArgument {
        /// Path of the field in the request, in protobuf names.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The request asks for something that this runtime cannot give.
    #[error("{field}: {reason}")]
    Unsupported {
        /// Path of the field in the request, in protobuf names.
        field: String,
        /// What is missing.
        reason: String,
    },
    /// No such object.
    #[error("no such {kind}: {id:?}")]
    NotFound {
        /// `sandbox`, `container` or `image`.
        kind: &'static str,
        /// The identifier that was asked for.
        id: String,
    },
    /// A short id that fits several objects.
    #[error("{kind} id {id:?} fits more than one")]
    Ambiguous {
        /// `sandbox`, `container` or `image`.
        kind: &'static str,
        /// The prefix that was asked for.
        id: String,
    },
    /// The object is there already, or is being made by another request.
    #[error("{0}")]
    AlreadyExists(String),
    /// Another request works on the same object.
    #[error("{0}")]
    Busy(String),
    /// The object is in a state in which this cannot be done.
    #[error("{0}")]
    FailedPrecondition(String),
    /// The shim has not seen the engine's containers yet.
    #[error("{0}")]
    NotSynced(String),
    /// The work did not end in time.
    #[error("{action} {object}: not finished within {limit:?}")]
    Deadline {
        /// What was attempted.
        action: &'static str,
        /// On what.
        object: String,
        /// The time that was given.
        limit: Duration,
    },
    /// The registry refused or failed a pull.
    #[error("pull image {image:?}: {message}")]
    Pull {
        /// The reference that was asked for.
        image: String,
        /// The code that fits the registry's answer.
        code: Code,
        /// The engine's or registry's words.
        message: String,
    },
    /// A file of the node could not be read or written.
    #[error("{action} {}: {source}", path.display())]
    File {
        /// What was attempted.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A note could not be kept.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A container's log could not be read or written.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A forwarded connection broke.
    #[error("carry a connection to port {port}: {source}")]
    Forward {
        /// The port.
        port: u16,
        /// Why.
        source: std::io::Error,
    },
    /// No stream can be prepared.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The pod network failed.
    #[error(transparent)]
    Network(#[from] CniError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A task of this process panicked; its message is in the log.
    #[error("{0} failed inside the shim; its log says more")]
    Panicked(&'static str),
}

impl Error {
    /// An [`Error::InvalidArgument`].
    pub fn invalid(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::InvalidArgument {
            field: field.into(),
            reason: reason.into(),
        }
    }

    /// An [`Error::Unsupported`].
    pub fn unsupported(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Unsupported {
            field: field.into(),
            reason: reason.into(),
        }
    }

    /// The gRPC code that a CRI client should see.
    pub fn code(&self) -> Code {
        match self {
            Self::InvalidArgument { .. } | Self::Ambiguous { .. } => Code::InvalidArgument,
            Self::Unsupported { .. } => Code::Unimplemented,
            Self::NotFound { .. } => Code::NotFound,
            Self::AlreadyExists(_) => Code::AlreadyExists,
            Self::Busy(_) => Code::Aborted,
            Self::FailedPrecondition(_) => Code::FailedPrecondition,
            Self::NotSynced(_) => Code::Unavailable,
            Self::Deadline { .. } => Code::DeadlineExceeded,
            Self::Pull { code, .. } => *code,
            Self::Token(TokenError::TooMany) => Code::ResourceExhausted,
            Self::File { .. }
            | Self::Checkpoint(_)
            | Self::Log(_)
            | Self::Forward { .. }
            | Self::Token(TokenError::Random(_))
            | Self::Panicked(_) => Code::Internal,
            Self::Network(error) => error.code(),
            Self::Engine(error) => match &error.cause {
                Cause::Unreachable(_) => Code::Unavailable,
                Cause::Deadline(_) => Code::DeadlineExceeded,
                Cause::NotFound(_) => Code::NotFound,
                Cause::Conflict(_) => Code::FailedPrecondition,
                Cause::Refused { status: 400, .. } => Code::InvalidArgument,
                Cause::Refused { status: 403, .. } => Code::PermissionDenied,
                Cause::Refused { .. } | Cause::Protocol(_) => Code::Unknown,
            },
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Status::new(error.code(), error.to_string())
    }
}
