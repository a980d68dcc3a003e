//! Options of the CRI client.

use std::time::Duration;

/// The endpoints of the CRI services, and the deadline of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriOptions {
    /// `unix://` endpoint of the runtime service (`containerRuntimeEndpoint`).
    pub runtime_endpoint: String,
    /// `unix://` endpoint of the image service (`imageServiceEndpoint`); the runtime's when
    /// empty.
    pub image_endpoint: String,
    /// Deadline of calls without their own (`runtimeRequestTimeout`).
    pub request_timeout: Duration,
    /// Whether lists are read as streams where the runtime has them (`CRIListStreaming`).
    pub list_streaming: bool,
}

impl Default for CriOptions {
    /// Upstream's defaults: containerd, which serves images too.
    fn default() -> Self {
        Self {
            runtime_endpoint: "unix:///run/containerd/containerd.sock".to_owned(),
            image_endpoint: String::new(),
            request_timeout: Duration::from_secs(120),
            list_streaming: false,
        }
    }
}
