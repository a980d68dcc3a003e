//! Upgraded connections. Bytes are copied between the client and the kubelet until both have closed
//! the connection or the server becomes unavailable.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, header, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::{location::Location, relayed, switched};
use crate::{
    Server,
    errors::ApiError,
    http::{ResponseBody, whole},
};

/// A kubelet's upgrade: the headers of its response, and the connection.
pub(super) struct KubeletUpgrade {
    pub(super) headers: HeaderMap,
    pub(super) connection: OnUpgrade,
}

impl Server {
    /// Forwards an upgrade request, and then the bytes of the connection.
    pub(super) async fn upgrade<B>(
        self: &Arc<Self>,
        mut request: Request<B>,
        location: &Location,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let client = hyper::upgrade::on(&mut request);
        let (head, _) = request.into_parts();
        let switched_over = match self.ask(location, head.method, head.headers).await? {
            Ok(switched_over) => switched_over,
            Err(refused) => return Ok(refused),
        };
        let (server, kubelet) = (Arc::clone(self), switched_over.connection);
        tokio::spawn(server.while_available(async move {
            if let (Ok(client), Ok(kubelet)) = tokio::join!(client, kubelet) {
                let (mut client, mut kubelet) = (TokioIo::new(client), TokioIo::new(kubelet));
                let _ = copy_bidirectional(&mut client, &mut kubelet).await;
            }
        }));
        let body = whole(Bytes::new());
        let status = StatusCode::SWITCHING_PROTOCOLS;
        Ok(switched(status, switched_over.headers, body))
    }

    /// Requests an upgrade from a kubelet. Another response is returned for the client.
    pub(super) async fn ask(
        &self,
        location: &Location,
        method: Method,
        mut headers: HeaderMap,
    ) -> Result<Result<KubeletUpgrade, Response<ResponseBody>>, ApiError> {
        headers.remove(header::AUTHORIZATION);
        headers.remove(header::CONTENT_LENGTH);
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.method_mut() = method;
        *request.uri_mut() = location.uri()?;
        *request.headers_mut() = headers;
        let mut response = self
            .send(location, request)
            .await
            .map_err(|error| ApiError::new(500, "", format!("error dialing backend: {error}")))?;
        let status = response.status();
        if status == StatusCode::SWITCHING_PROTOCOLS {
            let connection = hyper::upgrade::on(&mut response);
            let headers = response.into_parts().0.headers;
            return Ok(Ok(KubeletUpgrade {
                headers,
                connection,
            }));
        }
        if status.as_u16() < 400 {
            let message = format!("invalid upgrade response: status code {}", status.as_u16());
            return Err(ApiError::new(500, "", message));
        }
        let (head, body) = relayed(response).into_parts();
        Ok(Err(switched(status, head.headers, body)))
    }

    /// Runs a future until it completes or the server becomes unavailable.
    pub(super) async fn while_available(self: Arc<Self>, doing: impl Future<Output = ()>) {
        let mut interruptions = self.interruptions.subscribe();
        let begun = interruptions.borrow_and_update().broken;
        tokio::select! {
            biased;
            _ = interruptions.wait_for(|interruptions| interruptions.broken != begun) => {}
            () = doing => {}
        }
    }
}
