//! TLS without verification: a probe does not know which certificates to trust.

use std::sync::{Arc, LazyLock};

use kubelet_http::unverified;
use tokio_rustls::rustls::{self, ClientConfig, client::Resumption};

/// A configuration that accepts any certificate and offers HTTP/2 and HTTP/1.1.
pub(super) fn config() -> Result<Arc<ClientConfig>, rustls::Error> {
    static CONFIG: LazyLock<Result<Arc<ClientConfig>, rustls::Error>> = LazyLock::new(new_config);
    CONFIG.clone()
}

fn new_config() -> Result<Arc<ClientConfig>, rustls::Error> {
    let mut config = unverified::client_config()?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // A resumed session would skip part of the handshake that the probe tests.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}
