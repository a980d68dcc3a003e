//! Why calls to the runtime fail.

use std::{borrow::Cow, error::Error as _, fmt, time::Duration};

use tonic::{Code, Status};

/// Why a call to the runtime failed.
#[derive(Debug, thiserror::Error)]
pub enum CriError {
    /// The endpoint is none that can be connected to.
    #[error("runtime endpoint {endpoint:?}: {reason}; it must be unix:///path/of/the/socket")]
    Endpoint {
        /// The endpoint as it was given.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The runtime, or the connection to it, returned an error.
    #[error("{verb}{}: {} ({:?})", Of(object), status.message(), status.code())]
    Status {
        /// The CRI verb.
        verb: &'static str,
        /// What it was called on; empty when it concerns no single object.
        object: String,
        /// What was returned.
        status: Box<Status>,
    },
    /// The runtime did not answer in time.
    #[error("{verb}{}: no answer from the runtime within {after:?}", Of(object))]
    Deadline {
        /// The CRI verb.
        verb: &'static str,
        /// What it was called on; empty when it concerns no single object.
        object: String,
        /// How long was waited.
        after: Duration,
    },
    /// The runtime answered without what the answer is for.
    #[error("{verb}{}: the runtime's answer lacks {missing}", Of(object))]
    Incomplete {
        /// The CRI verb.
        verb: &'static str,
        /// What it was called on.
        object: String,
        /// The field that is not set.
        missing: &'static str,
    },
}

impl CriError {
    /// Whether the object does not exist (any more).
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Status { status, .. } if status.code() == Code::NotFound)
    }

    /// Whether the runtime answered that the call failed. Where it is only known that no
    /// answer came, it may have done what it was asked.
    pub fn is_answer(&self) -> bool {
        match self {
            // What came over the wire has no cause on this side of it.
            Self::Status { status, .. } => status.source().is_none(),
            Self::Deadline { .. } | Self::Incomplete { .. } => false,
            Self::Endpoint { .. } => true,
        }
    }

    /// What the runtime itself says; the whole error where it says nothing.
    pub fn words(&self) -> Cow<'_, str> {
        match self {
            Self::Status { status, .. } => Cow::Borrowed(status.message()),
            _ => Cow::Owned(self.to_string()),
        }
    }

    /// The error as gRPC clients written in Go show it, which is what people look for.
    pub fn go_text(&self) -> String {
        let Self::Status { status, .. } = self else {
            return self.to_string();
        };
        let message = status.message();
        match status.code() {
            Code::Cancelled => format!("rpc error: code = Canceled desc = {message}"),
            code => format!("rpc error: code = {code:?} desc = {message}"),
        }
    }

    /// Whether the runtime does not serve the verb. containerd 2.2 says so with another code.
    pub fn is_unimplemented(&self) -> bool {
        let Self::Status { status, .. } = self else {
            return false;
        };
        match status.code() {
            Code::Unimplemented => true,
            Code::Unknown => status.message().contains("not implemented"),
            _ => false,
        }
    }
}

/// ` <object>`, or nothing.
struct Of<'a>(&'a str);

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(f, " {}", self.0)
    }
}
