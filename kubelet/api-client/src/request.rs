//! Requests to the API server, and their errors.

use std::{
    error::Error,
    io::{self, ErrorKind},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, Preconditions},
    core::Status,
};
use tokio::time;

/// Default deadline of a request.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Errors of connections that had been made.
const BROKEN: [ErrorKind; 4] = [
    ErrorKind::BrokenPipe,
    ErrorKind::ConnectionAborted,
    ErrorKind::ConnectionReset,
    ErrorKind::UnexpectedEof,
];

const FORBIDDEN: u16 = 403;
const GONE: u16 = 410;
const TOO_MANY_REQUESTS: u16 = 429;
/// Upper bound for `Retry-After`.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(600);

/// Why a request to the API server failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The API server is unreachable; the request can be retried. The transport logs this once for
    /// all requests, so callers need not log it.
    #[error("cannot reach the API server: {}", causes(.0))]
    Unreachable(kube::Error),
    /// The API server did not answer in time; the request can be retried.
    #[error("the API server did not answer within {0:?}")]
    Silent(Duration),
    /// The API server cannot handle the request now; the request can be retried.
    #[error("the API server cannot handle the request now: {}", words(.0))]
    Unable(Box<Status>),
    /// The API server rejected the request.
    #[error("{}", words(.0))]
    Refused(Box<Status>),
    /// The request cannot be sent, or the response cannot be read.
    #[error("{}", causes(.0))]
    Unusable(kube::Error),
}

impl ApiError {
    /// Whether the transport has already logged the failure.
    pub const fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable(_))
    }

    /// Whether the request may succeed when retried later.
    pub const fn is_away(&self) -> bool {
        matches!(
            self,
            Self::Unreachable(_) | Self::Silent(_) | Self::Unable(_)
        )
    }

    /// Whether the API server cannot handle the request now.
    pub const fn is_unable(&self) -> bool {
        matches!(self, Self::Unable(_))
    }

    /// Whether a connection ended before the response.
    pub fn is_broken_off(&self) -> bool {
        let Self::Unreachable(error) = self else {
            return false;
        };
        let mut cause = Some(error as &(dyn Error + 'static));
        while let Some(error) = cause {
            let io = error.downcast_ref::<io::Error>();
            let hyper = error.downcast_ref::<hyper::Error>();
            if io.is_some_and(|error| BROKEN.contains(&error.kind()))
                || hyper.is_some_and(|error| error.is_incomplete_message() || error.is_canceled())
            {
                return true;
            }
            cause = error.source();
        }
        false
    }

    /// Whether there was no response at all: the connection may be dead.
    pub const fn is_silence(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Silent(_))
    }

    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(status) if status.is_not_found())
    }

    /// Whether an object of this name already exists.
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Self::Refused(status) if status.is_already_exists())
    }

    /// Whether the object's UID or version differs from the one in the request.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused(status) if status.is_conflict())
    }

    /// Whether the object in the request failed validation.
    pub fn is_invalid(&self) -> bool {
        matches!(self, Self::Refused(status) if status.is_invalid())
    }

    /// Whether this node lacks the permission.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == FORBIDDEN)
    }

    /// Whether the server no longer has the changes since the requested resource version.
    pub fn is_expired(&self) -> bool {
        let Self::Refused(status) = self else {
            return false;
        };
        status.code == GONE || matches!(&*status.reason, "Expired" | "Gone")
    }

    /// Whether the server does not have the requested resource version yet.
    pub fn is_version_too_large(&self) -> bool {
        let (Self::Unable(status) | Self::Refused(status)) = self else {
            return false;
        };
        let mut causes = status.details.iter().flat_map(|details| &details.causes);
        causes.any(|cause| cause.reason == "ResourceVersionTooLarge")
    }

    /// The delay that the server asked for, if any.
    pub fn retry_after(&self) -> Option<Duration> {
        let Self::Unable(status) = self else {
            return None;
        };
        let seconds = status.details.as_ref()?.retry_after_seconds;
        let wanted = Duration::from_secs(u64::from(seconds));
        (seconds > 0).then(|| wanted.min(LONGEST_RETRY_AFTER))
    }
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code < 500 && status.code != TOO_MANY_REQUESTS => {
                Self::Refused(status)
            }
            kube::Error::Api(status) => Self::Unable(status),
            kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => {
                Self::Unreachable(error)
            }
            _ => Self::Unusable(error),
        }
    }
}

/// Makes a request with the default deadline.
///
/// # Errors
/// The request failed.
pub async fn ask<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ApiError> {
    ask_within(TIMEOUT, request).await
}

/// Like [`ask`], with another deadline.
///
/// # Errors
/// As [`ask`].
pub async fn ask_within<T>(
    limit: Duration,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ApiError> {
    match time::timeout(limit, request).await {
        Ok(answer) => answer.map_err(ApiError::from),
        Err(_) => Err(ApiError::Silent(limit)),
    }
}

/// Deletes the pod of this name and UID without a grace period. Returns whether it existed.
///
/// # Errors
/// The pod may still exist.
pub async fn delete_at_once(api: &Api<Pod>, name: &str, uid: &str) -> Result<bool, ApiError> {
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match ask(api.delete(name, &params)).await {
        Ok(_) => Ok(true),
        // A conflict means that another pod has this name now.
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(false),
        Err(error) => Err(error),
    }
}

/// The API server's message.
fn words(status: &Status) -> String {
    match (status.message.as_str(), status.reason.as_str()) {
        ("", "") => format!("status {}", status.code),
        ("", reason) => reason.to_owned(),
        (message, _) => message.to_owned(),
    }
}

/// The error with its causes.
fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_apart() {
        let api = |code, reason: &str| {
            let status = Status::failure("no", reason).with_code(code).boxed();
            ApiError::from(kube::Error::Api(status))
        };
        assert!(api(409, "AlreadyExists").is_already_exists());
        assert!(!api(409, "AlreadyExists").is_conflict());
        assert!(api(409, "Conflict").is_conflict());
        assert!(api(404, "NotFound").is_not_found());
        assert!(api(403, "Forbidden").is_forbidden());
        assert_eq!(api(403, "Forbidden").to_string(), "no");
        for code in [410, 400] {
            assert!(api(code, "Expired").is_expired());
        }
        let lost = ApiError::from(kube::Error::Service("connection refused".into()));
        assert!(lost.is_unreachable() && lost.is_away());
        assert!(lost.to_string().contains("connection refused"));
        for code in [429, 500, 503] {
            let busy = api(code, "");
            assert!(busy.is_away() && !busy.is_unreachable());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_not_waited_for_for_ever() {
        let silent = std::future::pending::<Result<(), kube::Error>>();
        let error = ask(silent).await.unwrap_err();
        assert!(error.is_away());
        assert_eq!(
            error.to_string(),
            "the API server did not answer within 30s"
        );
    }
}
