//! Pages compressed with gzip, for clients that accept it, such as Prometheus.

use std::io::Write as _;

use axum::{
    body::{Body, to_bytes},
    extract::Request,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::Next,
    response::Response,
};
use flate2::{Compression, write::GzEncoder};
use kubelet_host::repeatable::blocking;

use crate::response::error;

/// Compresses the response if the client accepts it.
pub(super) async fn compress(request: Request, next: Next) -> Response {
    let accepted = accepts(request.headers());
    let mut response = next.run(request).await;
    response
        .headers_mut()
        .insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    if !accepted || response.status() != StatusCode::OK {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    // The pages are complete in memory.
    let body = match to_bytes(body, usize::MAX).await {
        Ok(body) => body,
        Err(fault) => return error(StatusCode::INTERNAL_SERVER_ERROR, fault),
    };
    let compressed = blocking(move || {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&body)?;
        encoder.finish()
    });
    let body = match compressed.await {
        Ok(Ok(body)) => body,
        Ok(Err(fault)) => return error(StatusCode::INTERNAL_SERVER_ERROR, fault),
        Err(fault) => return error(StatusCode::INTERNAL_SERVER_ERROR, fault),
    };
    parts.headers.remove(header::CONTENT_LENGTH);
    parts
        .headers
        .insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    Response::from_parts(parts, Body::from(body))
}

/// Whether the client accepts gzip, which it may refuse by a weight of 0.
fn accepts(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).into_iter();
    let mut codings = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    codings.any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let weight = parts.find_map(|part| part.strip_prefix("q="));
        let refused = weight.is_some_and(|weight| weight.parse() == Ok(0.0));
        name.eq_ignore_ascii_case("gzip") && !refused
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_used_only_where_it_is_accepted() {
        for (value, accepted) in [
            ("gzip", true),
            ("deflate, GZIP;q=0.5", true),
            ("br , gzip", true),
            ("gzip;q=0", false),
            ("gzip; q=0.000", false),
            ("identity", false),
            ("x-gzip-like", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, value.parse().unwrap());
            assert_eq!(accepts(&headers), accepted, "{value}");
        }
        assert!(!accepts(&HeaderMap::new()));
    }
}
