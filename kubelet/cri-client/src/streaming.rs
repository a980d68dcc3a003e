//! Calls that hand out URLs of the runtime's streaming server, and checkpoints.

use std::time::Duration;

use cri_proto::runtime::v1::{
    AttachRequest, CheckpointContainerRequest, ExecRequest, PortForwardRequest,
};

use super::{CriClient, CriError, incomplete};

impl CriClient {
    /// The URL of a command's streams.
    ///
    /// # Errors
    /// The call failed.
    pub async fn exec(&self, request: ExecRequest) -> Result<String, CriError> {
        const VERB: &str = "Exec";
        let id = request.container_id.clone();
        let mut client = self.runtime.clone();
        let answer = self.call(VERB, &id, client.exec(request)).await?;
        url(VERB, &id, answer.url)
    }

    /// The URL of the streams of a container's first process.
    ///
    /// # Errors
    /// The call failed.
    pub async fn attach(&self, request: AttachRequest) -> Result<String, CriError> {
        const VERB: &str = "Attach";
        let id = request.container_id.clone();
        let mut client = self.runtime.clone();
        let answer = self.call(VERB, &id, client.attach(request)).await?;
        url(VERB, &id, answer.url)
    }

    /// The URL of connections to ports of a sandbox.
    ///
    /// # Errors
    /// The call failed.
    pub async fn port_forward(&self, request: PortForwardRequest) -> Result<String, CriError> {
        const VERB: &str = "PortForward";
        let id = request.pod_sandbox_id.clone();
        let mut client = self.runtime.clone();
        let answer = self.call(VERB, &id, client.port_forward(request)).await?;
        url(VERB, &id, answer.url)
    }

    /// Writes a checkpoint of a running container to the request's location. Its timeout
    /// (seconds) replaces the usual deadline if it is longer; the runtime gets the one that applies.
    ///
    /// # Errors
    /// The call failed.
    pub async fn checkpoint_container(
        &self,
        mut request: CheckpointContainerRequest,
    ) -> Result<(), CriError> {
        let id = request.container_id.clone();
        let wanted = Duration::from_secs(u64::try_from(request.timeout).unwrap_or_default());
        let deadline = wanted.max(self.timeout);
        request.timeout = i64::try_from(deadline.as_secs()).unwrap_or(i64::MAX);
        let mut client = self.runtime.clone();
        let call = client.checkpoint_container(request);
        self.within(deadline, "CheckpointContainer", &id, call)
            .await
            .map(drop)
    }
}

fn url(verb: &'static str, object: &str, url: String) -> Result<String, CriError> {
    if url.is_empty() {
        return Err(incomplete(verb, object, "url"));
    }
    Ok(url)
}
