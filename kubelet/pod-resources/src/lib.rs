//! The pod resources API: a gRPC server on a socket, which tells monitoring agents of the node what
//! its containers have for themselves.

#![forbid(unsafe_code)]

mod metrics;
mod service;
#[cfg(test)]
mod tests;
mod v1alpha1;

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use cri_proto::{
    podresources::{
        v1::pod_resources_lister_server::PodResourcesListerServer,
        v1alpha1::pod_resources_lister_server::PodResourcesListerServer as V1Alpha1Server,
    },
    server::Incoming,
};
use k8s_openapi::api::core::v1::{Container, Pod};
use kubelet_device_manager::DevicesPerNode;
use kubelet_dra_manager::DraManager;
use kubelet_host::unix_socket;
use kubelet_metrics::{Collector, Exposition};
use kubelet_pacing::token_bucket::TokenBucket;
use kubelet_pod_spec::identity::PodUid;
use kubelet_resource_managers::ResourceManagers;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tonic::{Status, transport::Server};
use tracing::error;

use self::{metrics::Metrics, service::Service};

/// Requests per second and at once, as upstream.
const RATE: u32 = 100;
const BURST: u32 = 10;

/// The pods of the node.
pub trait PodSource: fmt::Debug + Send + Sync + 'static {
    /// All pods that the node has, those that have ended too.
    fn pods(&self) -> Vec<Arc<Pod>>;

    /// The pods that version 1 lists.
    fn listed_pods(&self) -> Vec<Arc<Pod>>;

    /// A pod by namespace and name, if its containers run or will run.
    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>>;
}

/// The API of a node.
#[derive(Clone, Debug)]
pub struct PodResources(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    pods: Box<dyn PodSource>,
    managers: Arc<ResourceManagers>,
    dra: DraManager,
    metrics: Metrics,
    requests: TokenBucket,
}

impl Shared {
    /// Takes one of the requests that are allowed, of all versions together.
    fn take_request(&self) -> Result<(), Status> {
        if self.requests.try_take() {
            return Ok(());
        }
        Err(Status::resource_exhausted("rejected by rate limit"))
    }

    fn devices_of(
        &self,
        pod: &PodUid,
        container: &Container,
    ) -> Option<BTreeMap<String, DevicesPerNode>> {
        let manager = self.managers.devices()?;
        Some(manager.devices_of(pod, &container.name))
    }
}

impl PodResources {
    /// The API for these pods.
    pub fn new(pods: Box<dyn PodSource>, managers: Arc<ResourceManagers>, dra: DraManager) -> Self {
        Self(Arc::new(Shared {
            pods,
            managers,
            dra,
            metrics: Metrics::default(),
            requests: TokenBucket::new(RATE, BURST),
        }))
    }

    /// Serves the API until cancelled.
    pub async fn serve(self, listener: UnixListener, cancel: CancellationToken) {
        let old = V1Alpha1Server::new(v1alpha1::Service(self.0.clone()));
        let service = PodResourcesListerServer::new(Service(self.0));
        let server = Server::builder().add_service(service).add_service(old);
        let incoming = Incoming::from(listener);
        let stopped = cancel.cancelled();
        if let Err(error) = server.serve_with_incoming_shutdown(incoming, stopped).await {
            error!(%error, "the server of pod resources failed");
        }
    }
}

impl Collector for PodResources {
    fn collect(&self, page: &mut Exposition) {
        self.0.metrics.collect(page);
    }
}

/// The path of the API's socket of the kubelet with this root directory.
pub fn socket_path(root_dir: &Path) -> PathBuf {
    root_dir.join("pod-resources").join("kubelet.sock")
}

/// Listens on the API's socket. Blocks briefly.
///
/// # Errors
/// The directory or the socket cannot be created.
pub fn bind(root_dir: &Path) -> io::Result<UnixListener> {
    let path = socket_path(root_dir);
    if let Some(dir) = path.parent() {
        let mut dirs = fs::DirBuilder::new();
        dirs.recursive(true).mode(0o750).create(dir)?;
    }
    unix_socket::bind(&path)
}
