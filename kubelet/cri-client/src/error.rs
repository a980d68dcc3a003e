//! Why calls to the runtime fail.

use std::{borrow::Cow, error::Error as _, fmt, time::Duration};

use tonic::{Code, Status};

/// Why a call to the runtime failed.
#[derive(Debug, thiserror::Error)]
pub enum CriError {
    /// The endpoint is not a valid address.
    #[error("runtime endpoint {endpoint:?}: {reason}; it must be unix:///path/of/the/socket")]
    Endpoint {
        /// The endpoint as configured.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The runtime, or the connection to it, returned an error.
    #[error("{verb}{}: {} ({:?})", Of(object), status.message(), status.code())]
    Status {
        /// The CRI verb.
        verb: &'static str,
        /// The ID or name of the object; empty for calls that concern no single object.
        object: String,
        /// The gRPC status.
        status: Box<Status>,
    },
    /// The runtime did not answer in time.
    #[error("{verb}{}: no answer from the runtime within {after:?}", Of(object))]
    Deadline {
        /// The CRI verb.
        verb: &'static str,
        /// The ID or name of the object; empty for calls that concern no single object.
        object: String,
        /// The deadline.
        after: Duration,
    },
    /// A list that was streamed broke off.
    #[error("{verb} recv failed: {cause}")]
    Interrupted {
        /// The CRI verb.
        verb: &'static str,
        /// Why.
        cause: Box<Self>,
    },
    /// The response lacks a required field.
    #[error("{verb}{}: the runtime's response lacks {missing}", Of(object))]
    Incomplete {
        /// The CRI verb.
        verb: &'static str,
        /// The ID or name of the object.
        object: String,
        /// The missing field.
        missing: &'static str,
    },
}

impl CriError {
    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Status { status, .. } if status.code() == Code::NotFound)
    }

    /// Whether the runtime itself reported the failure. Otherwise no response arrived, and the
    /// runtime may have carried out the call.
    pub fn is_answer(&self) -> bool {
        match self {
            // A status that came over the wire has no local source.
            Self::Status { status, .. } => status.source().is_none(),
            Self::Deadline { .. } | Self::Interrupted { .. } | Self::Incomplete { .. } => false,
            Self::Endpoint { .. } => true,
        }
    }

    /// The runtime's own message, or the whole error if there is none.
    pub fn words(&self) -> Cow<'_, str> {
        match self {
            Self::Status { status, .. } => Cow::Borrowed(status.message()),
            _ => Cow::Owned(self.to_string()),
        }
    }

    /// The error in the format of Go's gRPC client, which is what people search for.
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

    /// Whether the runtime does not implement the verb. containerd 2.2 uses a different code.
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

/// Formats as ` <object>`, or as nothing if it is empty.
struct Of<'a>(&'a str);

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(f, " {}", self.0)
    }
}
