//! Errors of requests to the API server.

use std::error::Error as _;

/// Whether a request failed because the API server did not answer at all. The
/// transport says so in the log, once for all requests: whoever made this one keeps
/// quiet and tries again.
pub const fn is_unreachable(error: &kube::Error) -> bool {
    matches!(
        error,
        kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_)
    )
}

/// The HTTP status of an answer that refuses a request; `None` for other errors.
pub fn status_code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// Whether the API server has no such object.
pub fn is_not_found(error: &kube::Error) -> bool {
    status_code(error) == Some(404)
}

/// Whether an object of that name is there already, not only a newer version of it.
pub fn is_already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}

/// Whether an update was made from an older version of the object.
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason != "AlreadyExists")
}

/// The error for people: the API server's own words, or what broke with its causes.
pub fn text(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return match (status.message.as_str(), status.reason.as_str()) {
            ("", "") => format!("status {}", status.code),
            ("", reason) => reason.to_owned(),
            (message, _) => message.to_owned(),
        };
    }
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
    use kube::core::Status;

    #[test]
    fn answers_are_told_apart() {
        let api = |code, reason: &str| {
            kube::Error::Api(Status::failure("no", reason).with_code(code).boxed())
        };
        assert!(is_already_exists(&api(409, "AlreadyExists")));
        assert!(!is_conflict(&api(409, "AlreadyExists")));
        assert!(is_conflict(&api(409, "Conflict")));
        assert!(is_not_found(&api(404, "NotFound")));
        assert_eq!(text(&api(403, "Forbidden")), "no");
        let lost = kube::Error::Service("connection refused".into());
        assert!(is_unreachable(&lost) && !is_unreachable(&api(500, "")));
        assert!(text(&lost).contains("connection refused"));
    }
}
