//! A driver for dynamic resource allocation in memory. It records every call, and tests can change its
//! answers. Each claim gets one device, named after the claim, with the CDI device `DRIVER/claim=NAME`.

#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    fs, io,
    net::Shutdown,
    os::unix::net,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
};

use cri_proto::{
    dra::v1::{
        Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest,
        NodePrepareResourcesResponse, NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest,
        NodeUnprepareResourcesResponse,
        dra_plugin_server::{DraPlugin, DraPluginServer},
    },
    dra_health::v1alpha1::{
        DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesRequest,
        NodeWatchResourcesResponse,
        dra_resource_health_server::{DraResourceHealth, DraResourceHealthServer},
    },
    pluginregistration::{
        InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
        registration_server::{Registration, RegistrationServer},
    },
};
use parking_lot::Mutex;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::watch,
};
use tokio_stream::{
    Stream, StreamExt as _,
    wrappers::{UnixListenerStream, WatchStream},
};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status, async_trait, transport::Server};

/// The pool of all devices.
pub const POOL: &str = "pool";

/// A call, with the claims that it names, as `NAMESPACE/NAME/UID`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// `NodePrepareResources`.
    Prepare(Vec<String>),
    /// `NodeUnprepareResources`.
    Unprepare(Vec<String>),
}

/// The driver. Clones share their state.
#[derive(Clone)]
pub struct FakeDraDriver(Arc<Inner>);

struct Inner {
    name: String,
    versions: Mutex<Vec<String>>,
    health: watch::Sender<Vec<DeviceHealth>>,
    /// Answers of `NodePrepareResources` by the claim's name, instead of the usual one.
    answers: Mutex<BTreeMap<String, NodePrepareResourceResponse>>,
    /// What all calls fail with.
    refusal: Mutex<Option<Status>>,
    /// What `NodeUnprepareResources` says of each claim.
    stuck: Mutex<String>,
    calls: Mutex<Vec<Call>>,
    connections: Mutex<Vec<net::UnixStream>>,
}

/// A driver that is served. Dropping it is like killing the driver, and then removing its sockets.
pub struct Serving {
    driver: FakeDraDriver,
    _server: AbortOnDropHandle<()>,
    endpoint: PathBuf,
    /// None for a driver that is killed without removing it.
    registration: Option<AbortOnDropHandle<()>>,
    registration_path: PathBuf,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.driver.cut();
        let _ = fs::remove_file(&self.endpoint);
        if self.registration.is_some() {
            let _ = fs::remove_file(&self.registration_path);
        }
    }
}

impl Serving {
    /// Kills the driver; its registration socket stays.
    pub fn kill(mut self) {
        self.registration = None;
    }
}

impl FakeDraDriver {
    /// A driver that serves version 1.
    pub fn new(name: &str) -> Self {
        Self(Arc::new(Inner {
            name: name.to_owned(),
            versions: Mutex::new(vec!["v1.DRAPlugin".to_owned()]),
            health: watch::Sender::default(),
            answers: Mutex::default(),
            refusal: Mutex::default(),
            stuck: Mutex::default(),
            calls: Mutex::default(),
            connections: Mutex::default(),
        }))
    }

    /// Sets the services that the driver registers with.
    pub fn set_versions(&self, versions: &[&str]) {
        *self.0.versions.lock() = versions.iter().map(|&it| it.to_owned()).collect();
    }

    /// Reports the health of the device of a claim.
    pub fn set_health(&self, claim: &str, health: HealthStatus, message: &str) {
        self.0.health.send_replace(vec![DeviceHealth {
            device: Some(DeviceIdentifier {
                pool_name: POOL.to_owned(),
                device_name: claim.to_owned(),
            }),
            health: health.into(),
            message: message.to_owned(),
            ..DeviceHealth::default()
        }]);
    }

    /// Sets what the driver answers for a claim.
    pub fn set_answer(&self, claim: &str, answer: NodePrepareResourceResponse) {
        self.0.answers.lock().insert(claim.to_owned(), answer);
    }

    /// Makes all calls fail.
    pub fn refuse(&self, status: Option<Status>) {
        *self.0.refusal.lock() = status;
    }

    /// Makes `NodeUnprepareResources` fail for each claim with a message; not if it is empty.
    pub fn set_stuck(&self, message: &str) {
        message.clone_into(&mut self.0.stuck.lock());
    }

    /// The calls since the last look.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.0.calls.lock())
    }

    /// Breaks all connections.
    pub fn cut(&self) {
        for connection in self.0.connections.lock().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Serves the driver, and its registration in `plugins_registry` of the kubelet's root directory.
    ///
    /// # Errors
    /// A socket cannot be created.
    pub fn serve(&self, root_dir: &Path) -> io::Result<Serving> {
        let endpoint = self.endpoint(root_dir);
        let registry = root_dir.join("plugins_registry");
        let registration_path = registry.join(format!("{}-reg.sock", self.0.name));
        let service = Server::builder()
            .add_service(DraPluginServer::new(self.clone()))
            .add_service(DraResourceHealthServer::new(self.clone()))
            .serve_with_incoming(self.accept(&endpoint)?);
        let registration = FakeRegistration {
            driver: self.clone(),
            endpoint: endpoint.clone(),
        };
        let registration = Server::builder()
            .add_service(RegistrationServer::new(registration))
            .serve_with_incoming(listen(&registration_path)?);
        let spawn = |server: Pin<Box<dyn Future<Output = _> + Send>>| {
            AbortOnDropHandle::new(tokio::spawn(async move {
                let ended: Result<(), tonic::transport::Error> = server.await;
                drop(ended);
            }))
        };
        Ok(Serving {
            driver: self.clone(),
            _server: spawn(Box::pin(service)),
            endpoint,
            registration: Some(spawn(Box::pin(registration))),
            registration_path,
        })
    }

    /// The socket of the driver's service.
    pub fn endpoint(&self, root_dir: &Path) -> PathBuf {
        let dir = root_dir.join("plugins").join(&self.0.name);
        dir.join("dra.sock")
    }

    fn accept(
        &self,
        socket: &Path,
    ) -> io::Result<impl Stream<Item = io::Result<UnixStream>> + use<>> {
        let driver = self.clone();
        Ok(listen(socket)?.map(move |stream| {
            let stream = stream?.into_std()?;
            driver.0.connections.lock().push(stream.try_clone()?);
            UnixStream::from_std(stream)
        }))
    }

    fn called(&self, call: Call) -> Result<(), Status> {
        self.0.calls.lock().push(call);
        let refusal = self.0.refusal.lock().clone();
        refusal.map_or(Ok(()), Err)
    }
}

fn listen(socket: &Path) -> io::Result<UnixListenerStream> {
    if let Some(dir) = socket.parent() {
        fs::create_dir_all(dir)?;
    }
    let _ = fs::remove_file(socket);
    Ok(UnixListenerStream::new(UnixListener::bind(socket)?))
}

fn names(claims: &[Claim]) -> Vec<String> {
    let mut names: Vec<String> = claims
        .iter()
        .map(|claim| format!("{}/{}/{}", claim.namespace, claim.name, claim.uid))
        .collect();
    names.sort_unstable();
    names
}

#[async_trait]
impl DraPlugin for FakeDraDriver {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        self.called(Call::Prepare(names(&claims)))?;
        let answers = self.0.answers.lock();
        let claims = claims.into_iter().map(|claim| {
            let usual = || NodePrepareResourceResponse {
                devices: vec![Device {
                    request_names: Vec::new(),
                    pool_name: POOL.to_owned(),
                    device_name: claim.name.clone(),
                    cdi_device_ids: vec![format!("{}/claim={}", self.0.name, claim.name)],
                    share_id: None,
                }],
                error: String::new(),
            };
            let answer = answers.get(&claim.name).cloned().unwrap_or_else(usual);
            (claim.uid, answer)
        });
        let claims = claims.collect();
        Ok(Response::new(NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        self.called(Call::Unprepare(names(&claims)))?;
        let error = self.0.stuck.lock().clone();
        let claims = claims.into_iter().map(|claim| {
            let error = error.clone();
            (claim.uid, NodeUnprepareResourceResponse { error })
        });
        let claims = claims.collect();
        Ok(Response::new(NodeUnprepareResourcesResponse { claims }))
    }
}

#[async_trait]
impl DraResourceHealth for FakeDraDriver {
    type NodeWatchResourcesStream =
        Pin<Box<dyn Stream<Item = Result<NodeWatchResourcesResponse, Status>> + Send>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let reports = WatchStream::new(self.0.health.subscribe());
        let reports = reports.map(|devices| Ok(NodeWatchResourcesResponse { devices }));
        Ok(Response::new(Box::pin(reports)))
    }
}

struct FakeRegistration {
    driver: FakeDraDriver,
    endpoint: PathBuf,
}

#[async_trait]
impl Registration for FakeRegistration {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: self.driver.0.name.clone(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: self.driver.0.versions.lock().clone(),
        }))
    }

    async fn notify_registration_status(
        &self,
        _: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
