//! The CRI client: the only way to the runtime. [`CriClient`] makes the calls, with deadlines,
//! metrics and limits on what it reads; the other modules interpret what the runtime reports.

#![forbid(unsafe_code)]

mod deadline;
mod error;
mod exec_output;
mod images;
pub mod labels;
mod lists;
mod metrics;
mod options;
pub mod pod_status;
pub mod readiness;
mod resources;
pub mod running_pods;
mod runtime_config;
mod stats;
mod streaming;

use std::{sync::Arc, time::Duration};

use cri_proto::runtime::v1::{
    ContainerConfig, ContainerEventResponse, ContainerStatus, ContainerStatusRequest,
    CreateContainerRequest, ExecSyncRequest, ExecSyncResponse, GetEventsRequest, PodSandboxConfig,
    PodSandboxStatus, PodSandboxStatusRequest, RemoveContainerRequest, RemovePodSandboxRequest,
    ReopenContainerLogRequest, RunPodSandboxRequest, StartContainerRequest, StatusRequest,
    StatusResponse, StopContainerRequest, StopPodSandboxRequest, VersionRequest, VersionResponse,
    image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient,
};
use kubelet_traces::TracedCalls;
use tonic::{
    Streaming,
    body::Body,
    codegen::{Service, StdError, http},
    transport::{Channel, Endpoint},
};
use tower::{ServiceExt as _, util::BoxCloneSyncService};

use self::{deadline::failed, exec_output::TruncatedBody, lists::ListStreams};
pub use self::{
    error::CriError, exec_output::KEPT as KEPT_OUTPUT, metrics::RuntimeMetrics, options::CriOptions,
};

/// The largest response that is accepted, as upstream.
const MAX_MESSAGE_SIZE: usize = 16 * 1024 * 1024;

/// Carries requests to a service and its responses back.
type Transport = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, TransportError>;

/// Why the transport failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct TransportError(#[source] StdError);

/// A client of both CRI services, cheap to clone. It connects at the first call, and reconnects
/// by itself after the runtime was away.
#[derive(Clone, Debug)]
pub struct CriClient {
    runtime: RuntimeServiceClient<Transport>,
    /// The client whose responses to `ExecSync` are truncated while they arrive.
    commands: RuntimeServiceClient<Transport>,
    image: ImageServiceClient<Transport>,
    timeout: Duration,
    metrics: Arc<RuntimeMetrics>,
    list_streams: Arc<ListStreams>,
}

impl CriClient {
    /// Creates a client of the services at the endpoints of `options`.
    ///
    /// # Errors
    /// [`CriError::Endpoint`]. A runtime that does not answer yet is not an error.
    pub async fn connect(options: &CriOptions) -> Result<Self, CriError> {
        let runtime = channel(&options.runtime_endpoint)?;
        let image = match options.image_endpoint.as_str() {
            "" => runtime.clone(),
            endpoint if endpoint == options.runtime_endpoint => runtime.clone(),
            endpoint => channel(endpoint)?,
        };
        let client = Self::from_channels(runtime, image, options.request_timeout);
        Ok(if options.list_streaming {
            client.with_list_streams()
        } else {
            client
        })
    }

    /// Creates a client over existing channels, or directly to services in the same process.
    pub fn from_channels<R, I>(runtime: R, image: I, timeout: Duration) -> Self
    where
        R: Service<http::Request<Body>, Response = http::Response<Body>>,
        R: Clone + Send + Sync + 'static,
        R::Future: Send,
        R::Error: Into<StdError>,
        I: Service<http::Request<Body>, Response = http::Response<Body>>,
        I: Clone + Send + Sync + 'static,
        I::Future: Send,
        I::Error: Into<StdError>,
    {
        let runtime = runtime.map_err(|error| TransportError(error.into()));
        let runtime = Transport::new(TracedCalls(runtime));
        let image = image.map_err(|error| TransportError(error.into()));
        let image = Transport::new(TracedCalls(image));
        let metrics = Arc::<RuntimeMetrics>::default();
        let bound = metrics.exec_output();
        let commands = runtime.clone().map_response(move |answer| {
            answer.map(|body| Body::new(TruncatedBody::new(body, Arc::clone(&bound))))
        });
        let runtime_client = |transport| {
            RuntimeServiceClient::new(transport).max_decoding_message_size(MAX_MESSAGE_SIZE)
        };
        Self {
            runtime: runtime_client(runtime),
            commands: runtime_client(Transport::new(commands)),
            image: ImageServiceClient::new(image).max_decoding_message_size(MAX_MESSAGE_SIZE),
            timeout,
            metrics,
            list_streams: Arc::default(),
        }
    }

    /// Reads lists as streams (`CRIListStreaming`) where the runtime has them.
    #[must_use]
    pub fn with_list_streams(mut self) -> Self {
        self.list_streams = Arc::new(ListStreams::on());
        self
    }

    /// The metrics of this client and its clones.
    pub fn metrics(&self) -> &RuntimeMetrics {
        &self.metrics
    }

    /// Name and version of the runtime.
    ///
    /// # Errors
    /// The call failed.
    pub async fn version(&self) -> Result<VersionResponse, CriError> {
        let mut client = self.runtime.clone();
        let request = VersionRequest::default();
        self.call("Version", "", client.version(request)).await
    }

    /// The conditions and features of the runtime.
    ///
    /// # Errors
    /// The call failed.
    pub async fn status(&self) -> Result<StatusResponse, CriError> {
        let mut client = self.runtime.clone();
        let request = StatusRequest::default();
        self.call("Status", "", client.status(request)).await
    }

    /// Streams the events of all containers and sandboxes from now on. The call has no deadline: a
    /// runtime may accept it only with its first event.
    ///
    /// # Errors
    /// The call failed, or the runtime has no events ([`CriError::is_unimplemented`]).
    pub async fn container_events(&self) -> Result<Streaming<ContainerEventResponse>, CriError> {
        const VERB: &str = "GetContainerEvents";
        let mut client = self.runtime.clone();
        let call = client.get_container_events(GetEventsRequest {});
        let answer = async { call.await.map_err(|status| failed(VERB, "", status)) };
        let answer = self.metrics.measure(VERB, answer).await?;
        Ok(answer.into_inner())
    }

    /// Status of one sandbox.
    ///
    /// # Errors
    /// The call failed, or there is no such sandbox ([`CriError::is_not_found`]).
    pub async fn pod_sandbox_status(&self, id: &str) -> Result<PodSandboxStatus, CriError> {
        const VERB: &str = "PodSandboxStatus";
        let mut client = self.runtime.clone();
        let call = client.pod_sandbox_status(PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
            verbose: false,
        });
        let answer = self.call(VERB, id, call).await?;
        answer.status.ok_or_else(|| incomplete(VERB, id, "status"))
    }

    /// Status of one container.
    ///
    /// # Errors
    /// The call failed, or there is no such container ([`CriError::is_not_found`]).
    pub async fn container_status(&self, id: &str) -> Result<ContainerStatus, CriError> {
        const VERB: &str = "ContainerStatus";
        let mut client = self.runtime.clone();
        let call = client.container_status(ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose: false,
        });
        let answer = self.call(VERB, id, call).await?;
        answer.status.ok_or_else(|| incomplete(VERB, id, "status"))
    }

    /// Creates and starts a sandbox and returns its ID. The deadline is twice the usual one,
    /// because the call includes setting up the network.
    ///
    /// # Errors
    /// The call failed.
    pub async fn run_pod_sandbox(
        &self,
        config: PodSandboxConfig,
        handler: &str,
    ) -> Result<String, CriError> {
        const VERB: &str = "RunPodSandbox";
        let name = config
            .metadata
            .as_ref()
            .map_or_else(String::new, |m| format!("{}/{}", m.namespace, m.name));
        let mut client = self.runtime.clone();
        let call = client.run_pod_sandbox(RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: handler.to_owned(),
        });
        let call = self.within(self.timeout * 2, VERB, &name, call);
        let id = self.metrics.sandbox(handler, call).await?.pod_sandbox_id;
        if id.is_empty() {
            return Err(incomplete(VERB, &name, "pod_sandbox_id"));
        }
        Ok(id)
    }

    /// Stops a sandbox with all its containers. A sandbox that no longer exists is not an error.
    ///
    /// # Errors
    /// The call failed.
    pub async fn stop_pod_sandbox(&self, id: &str) -> Result<(), CriError> {
        let mut client = self.runtime.clone();
        let call = client.stop_pod_sandbox(StopPodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        });
        gone_is_fine(self.call("StopPodSandbox", id, call).await)
    }

    /// Removes a sandbox. A sandbox that no longer exists is not an error.
    ///
    /// # Errors
    /// The call failed.
    pub async fn remove_pod_sandbox(&self, id: &str) -> Result<(), CriError> {
        let mut client = self.runtime.clone();
        let call = client.remove_pod_sandbox(RemovePodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        });
        gone_is_fine(self.call("RemovePodSandbox", id, call).await)
    }

    /// Creates a container in a sandbox and returns its ID.
    ///
    /// # Errors
    /// The call failed.
    pub async fn create_container(
        &self,
        sandbox_id: &str,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String, CriError> {
        const VERB: &str = "CreateContainer";
        let name = config
            .metadata
            .as_ref()
            .map_or_else(String::new, |m| m.name.clone());
        let mut client = self.runtime.clone();
        let call = client.create_container(CreateContainerRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        });
        let id = self.call(VERB, &name, call).await?.container_id;
        if id.is_empty() {
            return Err(incomplete(VERB, &name, "container_id"));
        }
        Ok(id)
    }

    /// Starts a created container.
    ///
    /// # Errors
    /// The call failed.
    pub async fn start_container(&self, id: &str) -> Result<(), CriError> {
        let mut client = self.runtime.clone();
        let call = client.start_container(StartContainerRequest {
            container_id: id.to_owned(),
        });
        self.call("StartContainer", id, call).await.map(drop)
    }

    /// Stops a container, and kills it after `grace` (whole seconds). A container that no longer
    /// exists is not an error.
    ///
    /// # Errors
    /// The call failed, or took longer than the grace period plus the usual deadline.
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), CriError> {
        let mut client = self.runtime.clone();
        let call = client.stop_container(StopContainerRequest {
            container_id: id.to_owned(),
            timeout: i64::try_from(grace.as_secs()).unwrap_or(i64::MAX),
        });
        let deadline = self.timeout.saturating_add(grace);
        gone_is_fine(self.within(deadline, "StopContainer", id, call).await)
    }

    /// Removes a container. A container that no longer exists is not an error.
    ///
    /// # Errors
    /// The call failed.
    pub async fn remove_container(&self, id: &str) -> Result<(), CriError> {
        let mut client = self.runtime.clone();
        let call = client.remove_container(RemoveContainerRequest {
            container_id: id.to_owned(),
        });
        gone_is_fine(self.call("RemoveContainer", id, call).await)
    }

    /// Makes the runtime reopen a container's log file after it was renamed.
    ///
    /// # Errors
    /// The call failed, or the container does not run.
    pub async fn reopen_container_log(&self, id: &str) -> Result<(), CriError> {
        let mut client = self.runtime.clone();
        let call = client.reopen_container_log(ReopenContainerLogRequest {
            container_id: id.to_owned(),
        });
        self.call("ReopenContainerLog", id, call).await.map(drop)
    }

    /// Runs a command in a container, with a time limit unless `limit` is zero. Keeps the first
    /// [`KEPT_OUTPUT`] bytes of stdout and of stderr; the rest is never held in memory.
    ///
    /// # Errors
    /// The call failed. A command that fails is not an error.
    pub async fn exec_sync(
        &self,
        id: &str,
        command: Vec<String>,
        limit: Duration,
    ) -> Result<ExecSyncResponse, CriError> {
        self.exec_sync_by(&self.commands, id, command, limit).await
    }

    /// Like [`Self::exec_sync`], with the complete output of up to 16 MiB.
    ///
    /// # Errors
    /// As [`Self::exec_sync`].
    pub async fn exec_sync_whole(
        &self,
        id: &str,
        command: Vec<String>,
        limit: Duration,
    ) -> Result<ExecSyncResponse, CriError> {
        self.exec_sync_by(&self.runtime, id, command, limit).await
    }

    async fn exec_sync_by(
        &self,
        client: &RuntimeServiceClient<Transport>,
        id: &str,
        command: Vec<String>,
        limit: Duration,
    ) -> Result<ExecSyncResponse, CriError> {
        let mut client = client.clone();
        let call = client.exec_sync(ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command,
            timeout: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        });
        let deadline = if limit.is_zero() {
            Duration::MAX
        } else {
            self.timeout.saturating_add(limit)
        };
        self.within(deadline, "ExecSync", id, call).await
    }
}

fn incomplete(verb: &'static str, object: &str, missing: &'static str) -> CriError {
    CriError::Incomplete {
        verb,
        object: object.to_owned(),
        missing,
    }
}

fn gone_is_fine<T>(result: Result<T, CriError>) -> Result<(), CriError> {
    match result {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

fn channel(endpoint: &str) -> Result<Channel, CriError> {
    let invalid = |reason: String| CriError::Endpoint {
        endpoint: endpoint.to_owned(),
        reason,
    };
    let path = match endpoint.split_once("://") {
        Some(("unix", path)) => path,
        Some((scheme, _)) => return Err(invalid(format!("scheme {scheme:?} is not supported"))),
        // Like upstream, a path without a scheme is a unix socket.
        None => endpoint,
    };
    if !path.starts_with('/') {
        return Err(invalid("the path of the socket is not absolute".to_owned()));
    }
    Ok(Endpoint::from_shared(format!("unix://{path}"))
        .map_err(|error| invalid(error.to_string()))?
        .connect_lazy())
}

#[cfg(test)]
mod tests;
