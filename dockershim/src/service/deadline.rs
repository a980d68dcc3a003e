//! Enforces the client's deadline (`grpc-timeout`). tonic enforces it too, but reports `CANCELLED`,
//! while clients that check the code expect `DEADLINE_EXCEEDED`.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tonic::{
    Status,
    body::Body,
    codegen::{
        Service,
        http::{HeaderMap, Request, Response},
    },
};

const HEADER: &str = "grpc-timeout";
/// How much earlier this timer fires than tonic's, which has millisecond precision.
const MARGIN: Duration = Duration::from_millis(2);

/// A layer that ends each request at its deadline.
#[derive(Debug, Clone)]
pub struct Deadline<S>(S);

impl<S> Deadline<S> {
    /// Wraps `inner`.
    pub fn new(inner: S) -> Self {
        Self(inner)
    }
}

impl<S, B> Service<Request<B>> for Deadline<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let limit = limit(request.headers());
        let answer = self.0.call(request);
        Box::pin(async move {
            let Some(limit) = limit else {
                return answer.await;
            };
            let answered = tokio::time::timeout(limit.saturating_sub(MARGIN), answer).await;
            answered.unwrap_or_else(|_| {
                let status = Status::deadline_exceeded(format!("timed out after {limit:?}"));
                Ok(status.into_http())
            })
        })
    }
}

/// Parses the header: at most eight digits and a unit, as specified by gRPC over HTTP/2.
fn limit(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(HEADER)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use tonic::{Code, codegen::Service as _};

    use super::*;

    fn of(text: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, text.parse().unwrap());
        limit(&headers)
    }

    #[test]
    fn units() {
        assert_eq!(of("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(of("250m"), Some(Duration::from_millis(250)));
        assert_eq!(of("99999999n"), Some(Duration::from_nanos(99_999_999)));
        for bad in ["", "5", "S", "123456789S", "-1S", "1x", "1é"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[derive(Clone)]
    struct Slow;

    impl Service<Request<()>> for Slow {
        type Response = Response<Body>;
        type Error = std::convert::Infallible;
        type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<()>) -> Self::Future {
            Box::pin(async {
                tokio::time::sleep(Duration::from_secs(10)).await;
                Ok(Response::new(Body::empty()))
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_past_its_deadline_is_told_so() {
        for (timeout, code) in [("1S", Some(Code::DeadlineExceeded)), ("1M", None)] {
            let mut request = Request::new(());
            request
                .headers_mut()
                .insert(HEADER, timeout.parse().unwrap());
            let answer = Deadline::new(Slow).call(request).await.unwrap();
            let status = Status::from_header_map(answer.headers());
            assert_eq!(status.map(|status| status.code()), code);
        }
    }
}
