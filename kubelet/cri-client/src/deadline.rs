//! Deadlines and metrics for every call to the runtime.

use std::{future::Future, time::Duration};

use tonic::{Response, Status};

use super::{CriClient, CriError};

impl CriClient {
    pub(super) fn call<T>(
        &self,
        verb: &'static str,
        object: &str,
        call: impl Future<Output = Result<Response<T>, Status>> + Send,
    ) -> impl Future<Output = Result<T, CriError>> + Send {
        self.within(self.timeout, verb, object, call)
    }

    pub(super) fn within<T>(
        &self,
        after: Duration,
        verb: &'static str,
        object: &str,
        call: impl Future<Output = Result<Response<T>, Status>> + Send,
    ) -> impl Future<Output = Result<T, CriError>> + Send {
        // Boxed: the future is large, and each layer around it would add its size again.
        let call = within(after, verb, object, Box::pin(call));
        self.metrics.measure(verb, call)
    }
}

async fn within<T>(
    after: Duration,
    verb: &'static str,
    object: &str,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, CriError> {
    match tokio::time::timeout(after, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(failed(verb, object, status)),
        Err(_) => Err(CriError::Deadline {
            verb,
            object: object.to_owned(),
            after,
        }),
    }
}

pub(super) fn failed(verb: &'static str, object: &str, status: Status) -> CriError {
    CriError::Status {
        verb,
        object: object.to_owned(),
        status: Box::new(status),
    }
}
