//! gRPC channels to unix sockets at any path.

use std::{io, path::Path};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio_util::{io::InspectReader, sync::CancellationToken};
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

/// A connected channel. Cancels `ended` when its connection ends.
///
/// # Errors
/// No server listens on the socket.
pub async fn connect_until(path: &Path, ended: CancellationToken) -> Result<Channel, Error> {
    let path = path.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let (path, ended) = (path.clone(), ended.clone());
        async move {
            let stream = UnixStream::connect(path).await?;
            let ends = ended.drop_guard();
            // The stream owns the guard.
            let stream = InspectReader::new(stream, move |_| {
                let _ = &ends;
            });
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    });
    endpoint().connect_with_connector(connector).await
}

/// The longest headers of an answer, in bytes. An error is in them, percent-encoded, and a server
/// resets the stream instead of sending more.
const LONGEST_HEADERS: u32 = 1 << 20;

/// Go servers reject an authority that is a path.
fn endpoint() -> Endpoint {
    Endpoint::from_static("http://localhost").http2_max_header_list_size(LONGEST_HEADERS)
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
