//! Patches: JSON patch, merge patch, strategic merge patch, and server-side apply, implemented as a
//! strategic merge that keeps the fields of other managers.

pub(super) mod strategic;

use serde_json::Value;

use super::errors::ApiError;

/// A patch.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Patch {
    /// RFC 6902.
    Json(Value),
    /// RFC 7386.
    Merge(Value),
    /// Strategic merge patch: lists are merged by key.
    Strategic(Value),
    /// Server-side apply. Field ownership is not tracked: fields of an earlier apply are not
    /// removed, and there are no conflicts.
    Apply(Value),
}

impl Patch {
    /// Parses a patch according to its `Content-Type`.
    pub(super) fn parse(content_type: &str, body: &[u8]) -> Result<Self, ApiError> {
        let kind = content_type.split(';').next().unwrap_or_default().trim();
        let json = || {
            serde_json::from_slice(body)
                .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))
        };
        match kind {
            "application/json-patch+json" => Ok(Self::Json(json()?)),
            "application/merge-patch+json" => Ok(Self::Merge(json()?)),
            "application/strategic-merge-patch+json" => Ok(Self::Strategic(json()?)),
            // JSON is valid YAML, and faster to parse.
            "application/apply-patch+yaml" => json().or_else(|_| yaml(body)).map(Self::Apply),
            other => Err(ApiError::unsupported_media_type(other)),
        }
    }

    /// The patched object.
    pub(super) fn apply(&self, kind: &str, object: &Value) -> Result<Value, ApiError> {
        let mut next = object.clone();
        match self {
            Self::Json(operations) => {
                let operations: json_patch::Patch = serde_json::from_value(operations.clone())
                    .map_err(|error| {
                        ApiError::bad_request(format!("error decoding patch: {error}"))
                    })?;
                json_patch::patch(&mut next, &operations).map_err(|error| {
                    ApiError::new(
                        422,
                        "Invalid",
                        format!("the server rejected our request due to an error in our request: {error}"),
                    )
                })?;
            }
            Self::Merge(patch) => json_patch::merge(&mut next, patch),
            Self::Strategic(patch) | Self::Apply(patch) => {
                strategic::merge(kind, &mut next, patch)?;
            }
        }
        Ok(next)
    }
}

fn yaml(body: &[u8]) -> Result<Value, ApiError> {
    let text = str::from_utf8(body).map_err(|error| ApiError::bad_request(error.to_string()))?;
    serde_saphyr::from_str(text)
        .map_err(|error| ApiError::bad_request(format!("error decoding YAML: {error}")))
}
