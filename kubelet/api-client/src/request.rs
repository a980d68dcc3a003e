//! Requests to the API server, and why one was not done.

use std::{error::Error, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, Preconditions},
    core::Status,
};
use tokio::time;

/// A request that was not answered by then is made again.
const TIMEOUT: Duration = Duration::from_secs(30);

const FORBIDDEN: u16 = 403;
const GONE: u16 = 410;
const TOO_MANY_REQUESTS: u16 = 429;
/// Longer than this is waited for nobody.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(600);

/// Why the API server did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// It cannot be reached; to be asked again. The transport says so in the log, once
    /// for all requests: whoever made this one keeps quiet.
    #[error("the API server cannot be reached: {}", causes(.0))]
    Unreachable(kube::Error),
    /// It did not answer in time; to be asked again.
    #[error("the API server did not answer within {0:?}")]
    Silent(Duration),
    /// It cannot do it now; to be asked again.
    #[error("the API server cannot do it now: {}", words(.0))]
    Unable(Box<Status>),
    /// It does not want to.
    #[error("{}", words(.0))]
    Refused(Box<Status>),
    /// The request cannot be sent, or the answer not be read.
    #[error("{}", causes(.0))]
    Unusable(kube::Error),
}

impl ApiError {
    /// Whether the log says already why nothing is done.
    pub const fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable(_))
    }

    /// Whether the server may do it when it is asked again later.
    pub const fn is_away(&self) -> bool {
        matches!(
            self,
            Self::Unreachable(_) | Self::Silent(_) | Self::Unable(_)
        )
    }

    /// Whether nothing came back at all: the connection may be dead.
    pub const fn is_silence(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Silent(_))
    }

    /// Whether there is no such object.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(status) if status.is_not_found())
    }

    /// Whether there is an object of that name already.
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Self::Refused(status) if status.is_already_exists())
    }

    /// Whether the object is another one, or another version of it, than the request
    /// was for.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused(status) if status.is_conflict())
    }

    /// Whether the object may not be as the request has it.
    pub fn is_invalid(&self) -> bool {
        matches!(self, Self::Refused(status) if status.is_invalid())
    }

    /// Whether this node may not ask for it.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == FORBIDDEN)
    }

    /// Whether the server no longer knows the changes since the version that it was
    /// asked for.
    pub fn is_expired(&self) -> bool {
        let Self::Refused(status) = self else {
            return false;
        };
        status.code == GONE || matches!(&*status.reason, "Expired" | "Gone")
    }

    /// Whether the server does not have the version yet that it was asked for.
    pub fn is_version_too_large(&self) -> bool {
        let (Self::Unable(status) | Self::Refused(status)) = self else {
            return false;
        };
        let mut causes = status.details.iter().flat_map(|details| &details.causes);
        causes.any(|cause| cause.reason == "ResourceVersionTooLarge")
    }

    /// How long the server wants to be left alone, if it says so.
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

/// Makes a request.
///
/// # Errors
/// It was not done.
pub async fn ask<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ApiError> {
    ask_within(TIMEOUT, request).await
}

/// As [`ask`], for those who do not want to wait as long.
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

/// Has the pod of this name and UID deleted at once; whether there was one.
///
/// # Errors
/// It may still be there.
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
        // Another one of that name is not meant.
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(false),
        Err(error) => Err(error),
    }
}

/// The API server's own words.
fn words(status: &Status) -> String {
    match (status.message.as_str(), status.reason.as_str()) {
        ("", "") => format!("status {}", status.code),
        ("", reason) => reason.to_owned(),
        (message, _) => message.to_owned(),
    }
}

/// What broke, with its causes.
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
