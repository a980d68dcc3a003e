//! The errors of CRI verbs, and their mapping to gRPC codes.

use std::{path::PathBuf, time::Duration};

use cri_streaming::TokenError;
use tonic::{Code, Status};

use crate::{
    checkpoint::CheckpointError,
    engine::{Cause, EngineError},
    logs::LogError,
    network::cni::CniError,
};

/// Why a CRI verb failed. The message names the object and the reason; [`Error::code`] gives the
/// gRPC code.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field of the request is invalid, regardless of the node's state.
    #[error("{field}: {reason}")]
    InvalidArgument {
        /// The field's path in the request, in protobuf names.
        field: String,
        /// What is wrong with the field.
        reason: String,
    },
    /// The request asks for something that this runtime does not support.
    #[error("{field}: {reason}")]
    Unsupported {
        /// The field's path in the request, in protobuf names.
        field: String,
        /// What is not supported.
        reason: String,
    },
    /// The object does not exist.
    #[error("no such {kind}: {id:?}")]
    NotFound {
        /// `sandbox`, `container` or `image`.
        kind: &'static str,
        /// The requested identifier.
        id: String,
    },
    /// A short id matches several objects.
    #[error("{kind} id {id:?} is ambiguous")]
    Ambiguous {
        /// `sandbox`, `container` or `image`.
        kind: &'static str,
        /// The requested prefix.
        id: String,
    },
    /// The object exists already, or another request is creating it.
    #[error("{0}")]
    AlreadyExists(String),
    /// Another request is working on the same object.
    #[error("{0}")]
    Busy(String),
    /// The object's state does not allow the operation.
    #[error("{0}")]
    FailedPrecondition(String),
    /// The shim has not read the engine's containers yet.
    #[error("{0}")]
    NotSynced(String),
    /// The operation did not finish in time.
    #[error("{action} {object}: timed out after {limit:?}")]
    Deadline {
        /// The operation.
        action: &'static str,
        /// The object.
        object: String,
        /// The time limit.
        limit: Duration,
    },
    /// A pull failed.
    #[error("pull image {image:?}: {message}")]
    Pull {
        /// The requested reference.
        image: String,
        /// The gRPC code for the registry's answer.
        code: Code,
        /// The message of the engine or the registry.
        message: String,
    },
    /// The registry of an image cannot be reached. The beginning is the kubelet's word for it.
    #[error("RegistryUnavailable: pull image {image:?}: {message}")]
    RegistryUnavailable {
        /// The requested reference.
        image: String,
        /// The message of the engine.
        message: String,
    },
    /// An image mount failed. The beginning is the kubelet's word for it.
    #[error("ImageVolumeMountFailed: {0}")]
    ImageMount(Box<Self>),
    /// A file on the node could not be read or written.
    #[error("{action} {}: {source}", path.display())]
    File {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A checkpoint failed.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A container's log could not be read or written.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A forwarded connection failed.
    #[error("forward a connection to port {port}: {source}")]
    Forward {
        /// The port.
        port: u16,
        /// The cause.
        source: std::io::Error,
    },
    /// No token for a stream could be issued.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The pod network failed.
    #[error(transparent)]
    Network(#[from] CniError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A task of this process panicked; the log has its message.
    #[error("{0}: internal error in the shim; see its log")]
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

    /// The failure of an image mount for this reason.
    pub fn of_image_mount(self) -> Self {
        Self::ImageMount(Box::new(self))
    }

    /// The gRPC code for CRI clients.
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
            // The kubelet takes only this code's message as it is.
            Self::RegistryUnavailable { .. } => Code::Unknown,
            Self::ImageMount(why) => why.code(),
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

/// Why an id lookup failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupError {
    /// Nothing has this id.
    Missing,
    /// More than one id starts with this prefix.
    Ambiguous,
}

impl LookupError {
    /// The error for a request for `id`.
    pub fn of(self, kind: &'static str, id: &str) -> Error {
        let id = id.to_owned();
        match self {
            Self::Missing => Error::NotFound { kind, id },
            Self::Ambiguous => Error::Ambiguous { kind, id },
        }
    }
}
