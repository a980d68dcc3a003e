//! Connections, and what one client can take of the kubelet.

use std::{sync::Arc, time::Duration};

use axum::{Router, serve::Listener};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Semaphore,
    time,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::debug;

/// Connections at the same time, of each server; more wait in the backlog.
const CONNECTIONS: usize = 64;
/// Bytes of a request's head. Bodies are never read.
const HEAD_BYTES: usize = 16 * 1024;
/// Headers of a request.
const HEADERS: usize = 64;
/// How long a request's head may take, idling between requests included.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// How long a connection may last where anybody may connect, so that nobody
/// holds one by reading slowly.
pub(super) const LIFETIME: Duration = Duration::from_secs(300);
/// How long the last request of a connection may take after that.
const FAREWELL: Duration = Duration::from_secs(5);

/// Serves `routes` to whoever connects, for `lifetime` each, until `cancel`.
pub(super) async fn serve<L: Listener>(
    mut listener: L,
    routes: Router,
    lifetime: Duration,
    cancel: CancellationToken,
) {
    let connections = TaskTracker::new();
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let next = async {
            let slot = slots.clone().acquire_owned().await;
            (slot, listener.accept().await.0)
        };
        let (slot, stream) = tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            next = next => next,
        };
        let (routes, cancel) = (routes.clone(), cancel.clone());
        connections.spawn(async move {
            serve_connection(stream, routes, lifetime, cancel).await;
            drop(slot);
        });
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    routes: Router,
    lifetime: Duration,
    cancel: CancellationToken,
) {
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME)
            .max_buf_size(HEAD_BYTES)
            .max_headers(HEADERS)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes))
    );
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => Some(ended),
        () = cancel.cancelled() => None,
        () = time::sleep(lifetime) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            time::timeout(FAREWELL, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        debug!(%error, "A connection ended early");
    }
}
