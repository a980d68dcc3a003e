//! Errors as `metav1.Status`, with upstream's reasons, codes and messages.

use serde_json::{Value, json};

use super::resources::Resource;

/// A refusal, sent as a `Status` object.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The HTTP status code.
    pub code: u16,
    /// The machine-readable reason, such as `NotFound`.
    pub reason: &'static str,
    /// The reason for people.
    pub message: String,
    /// `Status.details`.
    pub details: Option<Value>,
}

/// One field that a validation refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// The field's path, such as `spec.containers[0].image`.
    pub field: String,
    /// Upstream's reason, such as `FieldValueForbidden`.
    pub reason: &'static str,
    /// What is wrong, as upstream puts it: `Forbidden: …`.
    pub message: String,
}

impl Cause {
    /// A field that may not be there or may not change.
    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, "FieldValueForbidden", format!("Forbidden: {detail}"))
    }

    /// A field that must be there.
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        let message = if detail.is_empty() {
            "Required value".to_owned()
        } else {
            format!("Required value: {detail}")
        };
        Self::new(field, "FieldValueRequired", message)
    }

    /// A field with a value that it cannot have.
    pub fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Self::new(
            field,
            "FieldValueInvalid",
            format!("Invalid value: {value}: {detail}"),
        )
    }

    /// A field with a value outside the allowed ones.
    pub fn unsupported(field: impl Into<String>, value: &Value, allowed: &[&str]) -> Self {
        let allowed: Vec<_> = allowed.iter().map(|one| format!("{one:?}")).collect();
        Self::new(
            field,
            "FieldValueNotSupported",
            format!(
                "Unsupported value: {value}: supported values: {}",
                allowed.join(", ")
            ),
        )
    }

    fn new(field: impl Into<String>, reason: &'static str, message: String) -> Self {
        Self {
            field: field.into(),
            reason,
            message,
        }
    }
}

impl ApiError {
    /// A refusal without details.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
        }
    }

    fn about(mut self, resource: &Resource, name: &str) -> Self {
        self.details = Some(json!({
            "name": name, "group": resource.group, "kind": resource.plural,
        }));
        self
    }

    /// 404: no such object.
    pub fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} not found", resource.qualified());
        Self::new(404, "NotFound", message).about(resource, name)
    }

    /// 404: no such path.
    pub fn no_such_path() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(404, "NotFound", message)
    }

    /// 409: the name is taken.
    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", resource.qualified());
        Self::new(409, "AlreadyExists", message).about(resource, name)
    }

    /// 409: the object is another one than the caller believes, or another version of it;
    /// said of its kind.
    pub fn other_object(resource: &Resource, name: &str, why: &str) -> Self {
        let kind = resource.kind;
        let message = format!("Operation cannot be fulfilled on {kind} {name:?}: {why}");
        let mut error = Self::new(409, "Conflict", message);
        error.details = Some(json!({"name": name, "group": resource.group, "kind": kind}));
        error
    }

    /// 409: the object is not as the caller believes.
    pub fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: {why}",
            resource.qualified()
        );
        Self::new(409, "Conflict", message).about(resource, name)
    }

    /// 409: the resource version sent is not the newest.
    pub fn modified(resource: &Resource, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 422: fields that cannot be so.
    pub fn invalid(resource: &Resource, name: &str, causes: &[Cause]) -> Self {
        Self::invalid_kind(resource.group, resource.kind, name, causes)
    }

    /// 422: what is stored nowhere, by its group and kind, cannot be so.
    pub fn invalid_kind(group: &str, kind: &str, name: &str, causes: &[Cause]) -> Self {
        let each: Vec<_> = causes
            .iter()
            .map(|cause| format!("{}: {}", cause.field, cause.message))
            .collect();
        let all = match each.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let qualified = if group.is_empty() {
            kind.to_owned()
        } else {
            format!("{kind}.{group}")
        };
        let message = format!("{qualified} {name:?} is invalid: {all}");
        let mut error = Self::new(422, "Invalid", message);
        let causes: Vec<_> = causes
            .iter()
            .map(|cause| {
                json!({"reason": cause.reason, "message": cause.message, "field": cause.field})
            })
            .collect();
        error.details = Some(json!({
            "name": name, "group": group, "kind": kind, "causes": causes,
        }));
        error
    }

    /// 400: a request that makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 401: nobody knows the caller.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403: the caller, or admission, may not.
    pub fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!("{} {name:?} is forbidden: {why}", resource.qualified());
        Self::new(403, "Forbidden", message).about(resource, name)
    }

    /// 410: the resource version is older than what is kept.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 405: the resource has no such verb.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message)
    }

    /// 415: a body of a kind that is not read.
    pub fn unsupported_media_type(kind: &str) -> Self {
        let message =
            format!("the body of the request was in an unknown format - {kind:?} is not accepted");
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// 429: try later.
    pub fn too_many_requests(message: impl Into<String>) -> Self {
        let mut error = Self::new(429, "TooManyRequests", message);
        error.details = Some(json!({"retryAfterSeconds": 1}));
        error
    }

    /// 503: no answer now.
    pub fn unavailable() -> Self {
        let message = "apiserver is shutting down";
        Self::new(503, "ServiceUnavailable", message)
    }

    /// 500: something that should work does not.
    pub fn internal(message: impl std::fmt::Display) -> Self {
        let message = format!("Internal error occurred: {message}");
        Self::new(500, "InternalError", message)
    }

    /// The `Status` object to send.
    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let (Some(details), Some(fields)) = (&self.details, status.as_object_mut()) {
            let mut details = details.clone();
            if let Some(told) = details.as_object_mut() {
                told.retain(|_, value| value != "");
            }
            fields.insert("details".to_owned(), details);
        }
        status
    }
}
