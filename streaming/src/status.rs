//! The result of a command, in the format that Kubernetes clients read from the error stream.

use serde::{Deserialize, Serialize};

use crate::{Exit, RuntimeError};

const SUCCESS: &str = "Success";
const FAILURE: &str = "Failure";
const NON_ZERO_EXIT_CODE: &str = "NonZeroExitCode";
const EXIT_CODE: &str = "ExitCode";
const INTERNAL_ERROR: &str = "InternalError";

/// The fields of `metav1.Status` that are sent on the error stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// "Success" or "Failure".
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// A human-readable description.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// A machine-readable reason, one word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Details of the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Details>,
    /// An HTTP status code; 0 if not set.
    #[serde(skip_serializing_if = "is_zero")]
    pub code: i32,
}

/// Details of a status' reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Details {
    /// The causes; at most one, the exit code.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
}

/// A cause of a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cause {
    /// The kind of cause: "ExitCode".
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The exit code in decimal.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(code: &i32) -> bool {
    *code == 0
}

// === impl Status ===

impl Status {
    pub(crate) fn success() -> Self {
        Self {
            status: SUCCESS.into(),
            ..Self::default()
        }
    }

    /// The status of a command that exited or failed to start.
    pub(crate) fn exited(exit: Exit) -> Self {
        let (code, message) = match exit {
            Exit::Code(0) => return Self::success(),
            Exit::Code(code) => {
                let message = "command terminated with non-zero exit code: exit status";
                (code, format!("{message} {code}"))
            }
            Exit::NotStarted { code, reason } => (code, reason),
        };
        Self {
            status: FAILURE.into(),
            message,
            reason: NON_ZERO_EXIT_CODE.into(),
            details: Some(Details {
                causes: vec![Cause {
                    reason: EXIT_CODE.into(),
                    message: code.to_string(),
                }],
            }),
            code: 0,
        }
    }

    /// The status of a failed operation; `doing` describes the operation.
    pub(crate) fn failed(doing: &str, error: &RuntimeError) -> Self {
        Self {
            status: FAILURE.into(),
            message: format!("Internal error occurred: error {doing} container: {error}"),
            reason: INTERNAL_ERROR.into(),
            details: None,
            code: 500,
        }
    }

    /// Checks whether the command succeeded.
    pub fn is_success(&self) -> bool {
        self.status == SUCCESS
    }

    /// Returns the command's exit code, if it ran to completion.
    pub fn exit_code(&self) -> Option<i32> {
        if self.is_success() {
            return Some(0);
        }
        if self.reason != NON_ZERO_EXIT_CODE {
            return None;
        }
        let causes = &self.details.as_ref()?.causes;
        let cause = causes.iter().find(|cause| cause.reason == EXIT_CODE)?;
        cause.message.parse().ok()
    }

    /// Encodes the status for the error stream; `None` if nothing is sent.
    pub(crate) fn encode(&self, format: StatusFormat) -> Option<Vec<u8>> {
        match format {
            StatusFormat::Json => serde_json::to_vec(self).ok(),
            StatusFormat::Text if self.is_success() => None,
            StatusFormat::Text => Some(self.message.clone().into_bytes()),
        }
    }
}

/// The encoding of a status in a protocol version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusFormat {
    /// JSON, from v4 on.
    Json,
    /// Text, before v4: the message of a failure, nothing for success.
    Text,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_what_upstream_sends() {
        let json =
            |status: Status| String::from_utf8(status.encode(StatusFormat::Json).unwrap()).unwrap();
        assert_eq!(
            json(Status::exited(Exit::Code(0))),
            r#"{"status":"Success"}"#
        );
        assert_eq!(
            json(Status::exited(Exit::Code(42))),
            r#"{"status":"Failure","message":"command terminated with non-zero exit code: exit status 42","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"42"}]}}"#
        );
        let exit = Exit::NotStarted {
            code: 127,
            reason: "no such file".into(),
        };
        assert_eq!(
            json(Status::exited(exit)),
            r#"{"status":"Failure","message":"no such file","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"127"}]}}"#
        );
        let error = RuntimeError::from("no such file");
        assert_eq!(
            json(Status::failed("executing command in", &error)),
            r#"{"status":"Failure","message":"Internal error occurred: error executing command in container: no such file","reason":"InternalError","code":500}"#
        );
        assert_eq!(Status::success().encode(StatusFormat::Text), None);
        assert_eq!(
            Status::exited(Exit::Code(1))
                .encode(StatusFormat::Text)
                .unwrap(),
            b"command terminated with non-zero exit code: exit status 1"
        );
    }

    #[test]
    fn exit_codes_are_read_back() {
        for code in [0, 1, 42, 126, 127, 137] {
            assert_eq!(Status::exited(Exit::Code(code)).exit_code(), Some(code));
        }
        let error = RuntimeError::from("x");
        assert_eq!(Status::failed("attaching to", &error).exit_code(), None);
    }
}
