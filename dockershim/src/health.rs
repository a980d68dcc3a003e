//! The HTTP server for monitoring: `/metrics`, `/healthz` and `/readyz`.

use std::{io, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::State as Of,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{Shim, engine::ConnectionState, metrics};

/// The server cannot listen on the address.
#[derive(Debug, thiserror::Error)]
#[error("--metrics-bind-addr: cannot listen on {address}: {source}")]
pub struct HealthError {
    address: SocketAddr,
    source: io::Error,
}

#[derive(Clone)]
struct HealthState {
    shim: Arc<Shim>,
    stop: CancellationToken,
}

/// Listens on `address`.
///
/// # Errors
/// [`HealthError`].
pub async fn listen(address: SocketAddr) -> Result<TcpListener, HealthError> {
    let failed = |source| HealthError { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    tracing::info!(url = %format_args!("http://{bound}"), "serving /metrics, /healthz and /readyz");
    Ok(listener)
}

/// Serves until the process exits. After `stop`, `/readyz` reports that the shim is not ready.
pub async fn serve(listener: TcpListener, shim: Arc<Shim>, stop: CancellationToken) {
    let routes = Router::new()
        .route("/metrics", get(encode))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .with_state(HealthState { shim, stop });
    if let Err(error) = axum::serve(listener, routes).await {
        tracing::error!(%error, "the metrics and health server stopped");
    }
}

async fn encode(Of(state): Of<HealthState>) -> Response {
    let Some(metrics) = &state.shim.metrics else {
        return (StatusCode::NOT_FOUND, "metrics are disabled\n").into_response();
    };
    match metrics.encode() {
        Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn ready(Of(state): Of<HealthState>) -> (StatusCode, String) {
    let reason = if state.stop.is_cancelled() {
        Some("the shim is stopping".to_owned())
    } else {
        not_ready(&state.shim)
    };
    match reason {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

/// Why the shim cannot serve CRI verbs now; `None` if it can.
fn not_ready(shim: &Shim) -> Option<String> {
    match &*shim.engine.state() {
        ConnectionState::Connected(_) if shim.model.in_step() => None,
        ConnectionState::Connected(_) => Some("the engine's containers are being read".to_owned()),
        ConnectionState::Disconnected(why) => Some(format!(
            "not connected to the Docker engine: {}: {why}",
            shim.engine.endpoint()
        )),
    }
}
