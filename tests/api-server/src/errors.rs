//! Errors as `metav1.Status`, with upstream's reasons, codes and messages.

use serde_json::{Value, json};

use super::resources::Resource;

/// A failed request, sent as a `Status` object.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The HTTP status code.
    pub code: u16,
    /// The machine-readable reason, such as `NotFound`.
    pub reason: &'static str,
    /// The message for users.
    pub message: String,
    /// `Status.details`.
    pub details: Option<Value>,
}

/// A field that fails validation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// The field's path, such as `spec.containers[0].image`.
    pub field: String,
    /// Upstream's reason, such as `FieldValueForbidden`.
    pub reason: &'static str,
    /// The error, in upstream's words: `Forbidden: …`.
    pub message: String,
}

impl Cause {
    /// A field that must not be set or changed.
    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, "FieldValueForbidden", format!("Forbidden: {detail}"))
    }

    /// A required field that is missing.
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        let message = if detail.is_empty() {
            "Required value".to_owned()
        } else {
            format!("Required value: {detail}")
        };
        Self::new(field, "FieldValueRequired", message)
    }

    /// A field with an invalid value.
    pub fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Self::new(
            field,
            "FieldValueInvalid",
            format!("Invalid value: {value}: {detail}"),
        )
    }

    /// A field whose value is not one of the allowed ones.
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
    /// An error without details.
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

    /// 404: the object does not exist.
    pub fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} not found", resource.qualified());
        Self::new(404, "NotFound", message).about(resource, name)
    }

    /// 404: the path does not exist.
    pub fn no_such_path() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(404, "NotFound", message)
    }

    /// 409: the name is already in use.
    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", resource.qualified());
        Self::new(409, "AlreadyExists", message).about(resource, name)
    }

    /// 409: a precondition on the UID or the resource version is not met. The message and the
    /// details name the kind, not the resource.
    pub fn other_object(resource: &Resource, name: &str, why: &str) -> Self {
        let kind = resource.kind;
        let message = format!("Operation cannot be fulfilled on {kind} {name:?}: {why}");
        let mut error = Self::new(409, "Conflict", message);
        error.details = Some(json!({"name": name, "group": resource.group, "kind": kind}));
        error
    }

    /// 409: the object is not in the state that the caller expects.
    pub fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: {why}",
            resource.qualified()
        );
        Self::new(409, "Conflict", message).about(resource, name)
    }

    /// 409: the resource version in the request is not the latest.
    pub fn modified(resource: &Resource, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 422: fields are invalid.
    pub fn invalid(resource: &Resource, name: &str, causes: &[Cause]) -> Self {
        Self::invalid_kind(resource.group, resource.kind, name, causes)
    }

    /// 422: fields of an object that is not stored are invalid. The error names its group and kind.
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

    /// 400: the request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 401: the caller cannot be authenticated.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403: authorization or admission denies the request.
    pub fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!("{} {name:?} is forbidden: {why}", resource.qualified());
        Self::new(403, "Forbidden", message).about(resource, name)
    }

    /// 410: the resource version has been compacted.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 405: the resource does not support the verb.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message)
    }

    /// 415: the body has an unsupported content type.
    pub fn unsupported_media_type(kind: &str) -> Self {
        let message =
            format!("the body of the request was in an unknown format - {kind:?} is not accepted");
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// 429: the caller must retry later.
    pub fn too_many_requests(message: impl Into<String>) -> Self {
        let mut error = Self::new(429, "TooManyRequests", message);
        error.details = Some(json!({"retryAfterSeconds": 1}));
        error
    }

    /// 503: the server is unavailable.
    pub fn unavailable() -> Self {
        let message = "apiserver is shutting down";
        Self::new(503, "ServiceUnavailable", message)
    }

    /// 500: an unexpected error.
    pub fn internal(message: impl std::fmt::Display) -> Self {
        let message = format!("Internal error occurred: {message}");
        Self::new(500, "InternalError", message)
    }

    /// The `Status` object of the response.
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
