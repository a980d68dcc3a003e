//! HTTP messages: their headers and bodies, and the responses of the server.

use std::io;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{
    Response, StatusCode,
    body::Body,
    header::{CONTENT_TYPE, HeaderMap, HeaderValue},
};
use serde_json::Value;

use super::errors::ApiError;

/// The body of a response.
pub(super) type ResponseBody = UnsyncBoxBody<Bytes, io::Error>;

/// The size limit of a request body: 3 MiB, as upstream.
const LARGEST_BODY: usize = 3 * 1024 * 1024;

/// Reads a body, up to the size limit.
pub(super) async fn read<B>(body: B) -> Result<Bytes, ApiError>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display,
{
    let collected = body
        .collect()
        .await
        .map_err(|error| ApiError::bad_request(format!("cannot read the body: {error}")))?;
    let bytes = collected.to_bytes();
    if bytes.len() > LARGEST_BODY {
        let message = format!("limit is {LARGEST_BODY}");
        return Err(ApiError::new(413, "RequestEntityTooLarge", message));
    }
    Ok(bytes)
}

/// The text of a header; empty if it is missing or not text.
pub(super) fn header(headers: &HeaderMap, name: &str) -> String {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}

/// A response with this status, content type and body.
pub(super) fn answer(
    status: StatusCode,
    content_type: &str,
    body: ResponseBody,
) -> Result<Response<ResponseBody>, ApiError> {
    Response::builder()
        .status(status)
        .header(CONTENT_TYPE, content_type)
        .body(body)
        .map_err(ApiError::internal)
}

/// A body with this content.
pub(super) fn whole(bytes: impl Into<Bytes>) -> ResponseBody {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A response with an object.
pub(super) fn success(status: StatusCode, object: &Value) -> Response<ResponseBody> {
    let mut response = Response::new(whole(object.to_string()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// A response with an error.
pub(super) fn failure(error: &ApiError) -> Response<ResponseBody> {
    let status = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = success(status, &error.status());
    if error.code == 429 || error.code == 503 {
        let soon = HeaderValue::from_static("1");
        response.headers_mut().insert("Retry-After", soon);
    }
    response
}
