//! Channels to servers at unix sockets, at any path that a file can have.

use std::{io, path::Path};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::{
    codegen::http::Uri,
    transport::{Channel, Endpoint, Error},
};
use tower::Service;

/// A channel that is connected when first used.
pub fn channel(path: &Path) -> Channel {
    endpoint().connect_with_connector_lazy(connector(path))
}

/// A channel that is connected.
pub(super) async fn connect(path: &Path) -> Result<Channel, Error> {
    endpoint().connect_with_connector(connector(path)).await
}

/// Servers in Go are particular about the authority, which a path is none for.
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
