//! A shim on the fake engine, in the test's process.

use std::sync::Arc;

use clap::Parser as _;
use cri_proto::runtime::v1::{
    ContainerConfig, ContainerMetadata, CreateContainerRequest, ImageSpec, ListPodSandboxRequest,
    PodSandboxConfig, PodSandboxMetadata, PodSandboxState, RunPodSandboxRequest, StatusRequest,
    runtime_service_server::RuntimeService as _,
};
use dockershim::{Config, Shim, cli::Cli, service::Service, streaming};
use tokio_util::sync::CancellationToken;
use tonic::Request;

use super::{FakeEngine, eventually};

/// A shim on a fake engine; it stops when dropped.
pub(crate) struct Node {
    pub shim: Arc<Shim>,
    pub service: Service,
    stop: CancellationToken,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Node {
    /// Starts a shim, without waiting until it is in sync.
    pub(crate) async fn start(engine: &FakeEngine) -> Self {
        Self::start_with(engine, &["--network-plugin=docker".to_owned()]).await
    }

    async fn start_with(engine: &FakeEngine, flags: &[String]) -> Self {
        let endpoint = format!("--docker-endpoint=unix://{}", engine.socket.display());
        let root = format!(
            "--root-directory={}",
            engine.socket.with_extension("root").display()
        );
        let own = ["dockershim".to_owned(), endpoint, root];
        let flags = own.iter().chain(flags);
        let config = Config::try_from(&Cli::parse_from(flags)).unwrap();
        let stop = CancellationToken::new();
        let shim = Shim::start(config, stop.clone());
        let streaming = streaming::bind(&shim).await.unwrap();
        let service = Service::new(Arc::clone(&shim), streaming);
        Self {
            shim,
            service,
            stop,
        }
    }

    /// A shim in sync, with the engine's own network.
    pub(crate) async fn synced(engine: &FakeEngine) -> Self {
        Self::synced_with(engine, &["--network-plugin=docker".to_owned()]).await
    }

    /// A shim in sync with these flags, which include the network plugin.
    pub(crate) async fn synced_with(engine: &FakeEngine, flags: &[String]) -> Self {
        let node = Self::start_with(engine, flags).await;
        eventually("the shim is in sync", || node.shim.model.in_step()).await;
        node
    }

    pub(crate) async fn list(&self) -> Result<Vec<(String, PodSandboxState)>, tonic::Status> {
        let request = Request::new(ListPodSandboxRequest::default());
        let items = self
            .service
            .list_pod_sandbox(request)
            .await?
            .into_inner()
            .items;
        Ok(items
            .into_iter()
            .map(|s| (s.id.clone(), s.state()))
            .collect())
    }

    pub(crate) fn states(&self) -> Vec<(String, PodSandboxState)> {
        let snapshot = self.shim.model.snapshot();
        snapshot
            .sandboxes()
            .map(|s| (s.id().to_owned(), s.status.state()))
            .collect()
    }

    pub(crate) async fn run(&self, pod: &str) -> Result<String, tonic::Status> {
        let request = Request::new(run_request(pod));
        Ok(self
            .service
            .run_pod_sandbox(request)
            .await?
            .into_inner()
            .pod_sandbox_id)
    }

    pub(crate) async fn create(
        &self,
        sandbox: &str,
        name: &str,
        image: &str,
    ) -> Result<String, tonic::Status> {
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox.into(),
            config: Some(ContainerConfig {
                metadata: Some(ContainerMetadata {
                    name: name.into(),
                    attempt: 0,
                }),
                image: Some(ImageSpec {
                    image: image.into(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            sandbox_config: None,
        };
        let created = self.service.create_container(Request::new(request));
        Ok(created.await?.into_inner().container_id)
    }

    /// Whether the runtime is ready, and the reason.
    pub(crate) async fn ready(&self) -> (bool, String) {
        let request = Request::new(StatusRequest::default());
        let status = self
            .service
            .status(request)
            .await
            .unwrap()
            .into_inner()
            .status
            .unwrap();
        let runtime = status
            .conditions
            .into_iter()
            .find(|c| c.r#type == "RuntimeReady")
            .unwrap();
        (runtime.status, runtime.reason)
    }
}

fn run_request(pod: &str) -> RunPodSandboxRequest {
    RunPodSandboxRequest {
        config: Some(PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: pod.into(),
                uid: "uid".into(),
                namespace: "default".into(),
                attempt: 0,
            }),
            ..Default::default()
        }),
        runtime_handler: String::new(),
    }
}
