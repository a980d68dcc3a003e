//! What the kubelet of a node serves about its pods.

use std::{path::Path, time::Duration};

use anyhow::{Result, bail};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    net::UnixStream,
    time::{Instant, sleep},
};

use super::Node;

impl Node {
    /// A page of the kubelet's read-only API.
    pub async fn page(&self, path: &str) -> Result<String> {
        let body = get(&self.path("kubelet").join("kubelet.sock"), path).await?;
        Ok(String::from_utf8(body)?)
    }

    /// The pods that the kubelet serves at `/pods`.
    pub async fn pods(&self) -> Result<Vec<Value>> {
        let mut list: Value = serde_json::from_str(&self.page("/pods").await?)?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            other => bail!("/pods has no items but {other}"),
        }
    }

    /// The static pod of this name, which does not include the suffix with the node's name.
    pub async fn pod(&self, name: &str) -> Result<Option<Value>> {
        let full = format!("{name}-node");
        let pods = self.pods().await?;
        Ok(pods.into_iter().find(|p| p["metadata"]["name"] == full))
    }

    /// Waits until the pod exists and `wanted` accepts it. The error after the deadline has the
    /// last state of the pod and the kubelet's log.
    pub async fn await_pod(
        &self,
        name: &str,
        within: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let deadline = Instant::now() + within;
        loop {
            let pod = self.pod(name).await?;
            if let Some(pod) = &pod
                && wanted(pod)
            {
                return Ok(pod.clone());
            }
            if Instant::now() > deadline {
                let log = self.kubelet_log();
                bail!("after {within:?} {name} is {pod:#?}\nkubelet:\n{log}");
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until the pod is running with all its containers ready.
    pub async fn await_running(&self, name: &str, within: Duration) -> Result<Value> {
        self.await_pod(name, within, is_ready).await
    }
}

/// Whether a pod is running with all its containers ready.
pub fn is_ready(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running"
        && pod["status"]["conditions"].as_array().is_some_and(|all| {
            all.iter()
                .any(|c| c["type"] == "Ready" && c["status"] == "True")
        })
}

/// The body of the response to a GET over a unix socket.
async fn get(socket: &Path, path: &str) -> Result<Vec<u8>> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = hyper::Request::get(path)
        .header("Host", "kubelet")
        .body(Empty::<bytes::Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    connection.abort();
    if !status.is_success() {
        bail!("GET {path}: {status}: {}", String::from_utf8_lossy(&body));
    }
    Ok(body.into())
}
