//! Responses in the formats that upstream's clients expect.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

/// A plain text response.
pub(super) fn text(status: StatusCode, body: String) -> Response {
    let headers = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        ),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
    ];
    (status, headers, body).into_response()
}

/// A response with serialized JSON.
pub(super) fn json(body: impl Into<Body>) -> Response {
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], body.into()).into_response()
}

/// An error in the format of Go's `http.Error`: the text and a newline.
pub(super) fn error(status: StatusCode, reason: impl std::fmt::Display) -> Response {
    text(status, format!("{reason}\n"))
}
