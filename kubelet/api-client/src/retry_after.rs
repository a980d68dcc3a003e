//! Copies the `Retry-After` header of an error response into the status object in its body, because
//! kube does not expose the header.

use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::{
    Request, Response, StatusCode,
    body::Body,
    header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};
use kubelet_pod_spec::json::from_slice;
use serde_json::{Map, Value, json};
use tower::{BoxError, Service};

/// Error bodies are short; of a longer one only the delay is kept.
const LONGEST: usize = 64 * 1024;

/// Puts the `Retry-After` header of an error response into its status
/// (`details.retryAfterSeconds`).
#[derive(Clone, Debug)]
pub(super) struct RetryAfterInStatus<S>(pub(super) S);

impl<S, R, B> Service<Request<R>> for RetryAfterInStatus<S>
where
    S: Service<Request<R>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Either<B, Full<Bytes>>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let asked = self.0.call(request);
        Box::pin(async move {
            let answer = asked.await?;
            Ok(match seconds(&answer) {
                Some(seconds) => told(answer, seconds).await,
                None => answer.map(Either::Left),
            })
        })
    }
}

fn seconds<B>(answer: &Response<B>) -> Option<u32> {
    let status = answer.status();
    let is_refusal = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
    let header = answer.headers().get(RETRY_AFTER).filter(|_| is_refusal)?;
    header.to_str().ok()?.parse().ok()
}

async fn told<B>(answer: Response<B>, seconds: u32) -> Response<Either<B, Full<Bytes>>>
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    let (mut head, body) = answer.into_parts();
    let text = match Limited::new(body, LONGEST).collect().await {
        Ok(text) => text.to_bytes(),
        Err(_) => Bytes::new(),
    };
    let mut status = match from_slice(&text) {
        Ok(Value::Object(status)) if status.get("kind") == Some(&json!("Status")) => status,
        _ => {
            let message = String::from_utf8_lossy(&text);
            let message = message.trim();
            Map::from_iter([
                ("kind".to_owned(), json!("Status")),
                ("status".to_owned(), json!("Failure")),
                ("code".to_owned(), json!(head.status.as_u16())),
                ("message".to_owned(), json!(message)),
            ])
        }
    };
    let details = status.entry("details").or_insert_with(|| json!({}));
    if !details.is_object() {
        *details = json!({});
    }
    details["retryAfterSeconds"] = json!(seconds);
    let text = Value::Object(status).to_string();
    head.headers.remove(CONTENT_LENGTH);
    let json = HeaderValue::from_static("application/json");
    head.headers.insert(CONTENT_TYPE, json);
    Response::from_parts(head, Either::Right(Full::new(Bytes::from(text))))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::Service as ServiceObject;
    use kube::{
        Api, Client,
        api::ListParams,
        client::{Body as ClientBody, ClientBuilder},
    };

    use super::*;
    use crate::request::{ApiError, ask};

    /// The error of a request that gets this response.
    async fn refused(code: u16, retry_after: &'static str, text: &'static str) -> ApiError {
        let service = tower::service_fn(move |_: Request<ClientBody>| async move {
            let answer = Response::builder().status(code);
            let answer = answer.header(RETRY_AFTER, retry_after);
            Ok::<_, BoxError>(answer.body(Full::new(Bytes::from(text))).unwrap())
        });
        let client: Client = ClientBuilder::new(RetryAfterInStatus(service), "default").build();
        let services: Api<ServiceObject> = Api::all(client);
        let listed = ask(services.list(&ListParams::default())).await;
        listed.unwrap_err()
    }

    #[tokio::test]
    async fn what_the_header_says_is_in_the_error() {
        let status = r#"{"kind": "Status", "code": 429, "message": "busy", "details": null}"#;
        for (code, header, text, wanted) in [
            (
                429,
                "7",
                "Too many requests, please try again later.\n",
                Some(7),
            ),
            (503, "7", status, Some(7)),
            (500, "Wed, 21 Oct 2015 07:28:00 GMT", status, None),
            (403, "7", status, None),
            (429, "4000000000", status, Some(600)),
        ] {
            let error = refused(code, header, text).await;
            let wanted = wanted.map(Duration::from_secs);
            assert_eq!(error.retry_after(), wanted, "{code} {header}: {error}");
        }
        let error = refused(429, "7", "Too many requests, please try again later.\n").await;
        let text = "the API server cannot handle the request now: Too many requests, please \
                    try again later.";
        assert_eq!(error.to_string(), text);
    }
}
