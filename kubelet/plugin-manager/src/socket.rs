//! gRPC channels to unix sockets at any path.

use std::{io, path::Path};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::{
    codegen::http::Uri,
    transport::{Channel, Endpoint, Error},
};
use tower::Service;

/// A channel that connects at first use.
pub fn channel(path: &Path) -> Channel {
    endpoint().connect_with_connector_lazy(connector(path))
}

/// A connected channel.
///
/// # Errors
/// No server listens on the socket.
pub async fn connect(path: &Path) -> Result<Channel, Error> {
    endpoint().connect_with_connector(connector(path)).await
}

/// Go servers reject an authority that is a path.
fn endpoint() -> Endpoint {
    Endpoint::from_static("http://localhost")
}

fn connector(
    path: &Path,
) -> impl Service<Uri, Response = TokioIo<UnixStream>, Error = io::Error, Future: Send> + Send + 'static
{
    let path = path.to_owned();
    tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    })
}
