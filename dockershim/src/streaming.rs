//! The streaming server for exec, attach and port-forward, which calls each verb's `run`.

use std::sync::Arc;

use cri_streaming::{
    Attach, Connection, Exec, Exit, Runtime, RuntimeError, Server, ServerError, Streams,
};

use crate::{Shim, container, metrics::BoundMetrics, sandbox};

/// The server of prepared streams.
pub type Streaming = Server<Shim>;

/// Listens on the configured address.
///
/// # Errors
/// [`ServerError`].
pub async fn bind(shim: &Arc<Shim>) -> Result<Arc<Streaming>, ServerError> {
    let config = shim.config.streaming.clone();
    let server = Server::bind(config, Arc::clone(shim)).await?;
    if let Some(metrics) = &shim.metrics {
        metrics.register_collector(BoundMetrics::streaming(server.bounds()));
    }
    tracing::info!(
        url = server.base_url(),
        "serving exec, attach and port-forward"
    );
    Ok(Arc::new(server))
}

impl Runtime for Shim {
    async fn exec(&self, exec: Exec, streams: Streams) -> Result<Exit, RuntimeError> {
        Ok(container::exec::run(self, exec, streams).await?)
    }

    async fn attach(&self, attach: Attach, streams: Streams) -> Result<(), RuntimeError> {
        Ok(container::attach::run(self, attach, streams).await?)
    }

    async fn port_forward(
        &self,
        sandbox_id: &str,
        port: u16,
        connection: Connection,
    ) -> Result<(), RuntimeError> {
        Ok(sandbox::port_forward::run(self, sandbox_id, port, connection).await?)
    }
}
