//! Answers in the forms that upstream's clients know.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

/// Plain text.
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

/// JSON that is written already.
pub(super) fn json(body: impl Into<Body>) -> Response {
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], body.into()).into_response()
}

/// An error of Go's `http.Error`: the text and a line's end.
pub(super) fn error(status: StatusCode, reason: impl std::fmt::Display) -> Response {
    text(status, format!("{reason}\n"))
}
