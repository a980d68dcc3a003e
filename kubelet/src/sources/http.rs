//! The URL source: pods from a document on a server.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use hyper::{
    HeaderMap,
    header::{HeaderName, HeaderValue},
};
use k8s_openapi::api::core::v1::Pod;
use kubelet_pod_spec::{
    identity::full_name,
    manifest::{ManifestError, decode},
};
use tokio::time;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    http_client::{FetchError, HttpClient},
    static_pod::{Origin, static_pod},
};
use crate::sources::pod_config::{Closed, PodSet, SourceHandle};

/// Consecutive failures that are logged as warnings.
const TOLD_FAILURES: u32 = 3;

/// Reads a URL periodically. After a failed request or with an invalid document, the pods of the
/// last valid content stay.
#[derive(Debug)]
pub struct UrlSource {
    /// The URL, `http` or `https`.
    pub url: String,
    /// Headers of the requests.
    pub headers: BTreeMap<String, Vec<String>>,
    /// Name of this node, which becomes part of the pods' names.
    pub node_name: String,
    /// Between two requests.
    pub check_frequency: Duration,
}

/// Why a URL provides no pods.
#[derive(Debug, thiserror::Error)]
enum UrlError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("invalid HTTP header {0:?}")]
    Header(String),
    #[error("zero-length data received")]
    Empty,
    #[error(transparent)]
    Manifest(Arc<ManifestError>),
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// The last content, and its validation error.
struct Content {
    bytes: Bytes,
    fault: Option<Arc<ManifestError>>,
}

impl UrlSource {
    /// Sends the pods to `mux` until `cancel`, or until the receiver is gone.
    pub async fn run(self, mux: SourceHandle, cancel: CancellationToken) {
        info!(url = self.url, "reading static pods from a URL");
        let read = async {
            let mut client = self.headers().map(HttpClient::new);
            let mut content = None;
            let mut failures = 0;
            loop {
                let done = match &mut client {
                    Ok(client) => self.read(client, &mut content, &mux).await,
                    Err(name) => Err(UrlError::Header(name.clone())),
                };
                match done {
                    Err(UrlError::Closed(_)) => return,
                    Err(error) => {
                        self.tell(&error, failures);
                        failures = failures.saturating_add(1);
                    }
                    Ok(()) if failures > 0 => {
                        info!(url = self.url, "Successfully read pods from URL");
                        failures = 0;
                    }
                    Ok(()) => {}
                }
                time::sleep(self.check_frequency).await;
            }
        };
        let _ = cancel.run_until_cancelled(read).await;
    }

    /// Logs the first consecutive failures as warnings, and later ones for debugging.
    fn tell(&self, error: &UrlError, failures: u32) {
        let url = &self.url;
        if failures < TOLD_FAILURES {
            warn!(url, %error, "Failed to read pods from URL");
        } else if failures == TOLD_FAILURES {
            warn!(
                url, %error,
                "Failed to read pods from URL; logging this only with -v=4 from now on"
            );
        } else {
            debug!(url, %error, "Failed to read pods from URL");
        }
    }

    fn headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        for (name, values) in &self.headers {
            for value in values {
                let header = HeaderName::try_from(name).ok();
                let value = HeaderValue::try_from(value).ok();
                let (header, value) = header.zip(value).ok_or_else(|| name.clone())?;
                headers.append(header, value);
            }
        }
        Ok(headers)
    }

    async fn read(
        &self,
        client: &mut HttpClient,
        content: &mut Option<Content>,
        mux: &SourceHandle,
    ) -> Result<(), UrlError> {
        let bytes = client.get(&self.url).await?;
        if bytes.is_empty() {
            // As upstream: the source is complete, without pods.
            *content = None;
            let nothing = PodSet {
                pods: Vec::new(),
                complete: true,
            };
            mux.set(nothing).await?;
            return Err(UrlError::Empty);
        }
        if let Some(content) = content.as_ref().filter(|content| content.bytes == bytes) {
            return match &content.fault {
                None => Ok(()),
                Some(fault) => Err(UrlError::Manifest(Arc::clone(fault))),
            };
        }
        let pods = self.pods(&bytes).map_err(Arc::new);
        let fault = pods.as_ref().err().cloned();
        *content = Some(Content { bytes, fault });
        let set = PodSet {
            pods: pods.map_err(UrlError::Manifest)?,
            complete: true,
        };
        Ok(mux.set(set).await?)
    }

    /// The pods of a document; none of them if one is invalid, as upstream.
    fn pods(&self, bytes: &[u8]) -> Result<Vec<Arc<Pod>>, ManifestError> {
        let manifest = match decode(bytes) {
            // An empty list is a valid document.
            Err(ManifestError::Empty) if is_list(bytes) => return Ok(Vec::new()),
            manifest => manifest?,
        };
        for warning in &manifest.warnings {
            warn!(url = self.url, "{warning}");
        }
        let mut pods = Vec::with_capacity(manifest.pods.len());
        for pod in manifest.pods {
            let pod = static_pod(pod, Origin::Url(&self.url), &self.node_name)?;
            info!(url = self.url, pod = full_name(&pod), "read a manifest");
            pods.push(Arc::new(pod));
        }
        Ok(pods)
    }
}

fn is_list(bytes: &[u8]) -> bool {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    kubelet_pod_spec::yaml::documents(text, kubelet_pod_spec::yaml::DuplicateKeys::LastWins)
        .is_ok_and(|documents| documents.iter().any(|object| object["items"].is_array()))
}
