//! A device plugin in memory. It records every call, and tests can change its devices and answers. It
//! gives each container the IDs of its devices in the variable `DEVICES`.

#![forbid(unsafe_code)]

use std::{
    fs, io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
};

use cri_proto::{
    deviceplugin::v1beta1::{
        AllocateRequest, AllocateResponse, ContainerAllocateResponse,
        ContainerPreferredAllocationResponse, Device, DevicePluginOptions, Empty,
        ListAndWatchResponse, NumaNode, PreStartContainerRequest, PreStartContainerResponse,
        PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest, TopologyInfo,
        device_plugin_server::{DevicePlugin, DevicePluginServer},
        registration_client::RegistrationClient,
    },
    server::Incoming,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{mpsc, watch},
};
use tokio_stream::{
    Stream, StreamExt as _,
    wrappers::{ReceiverStream, WatchStream},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::AbortOnDropHandle,
};
use tonic::{
    Request, Response, Status, async_trait,
    transport::{Endpoint, Server},
};

/// The environment variable with the IDs of a container's devices, separated by commas.
pub const VARIABLE: &str = "DEVICES";

/// A call, with the IDs of the devices that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// `GetPreferredAllocation`: the devices to choose from, and those to include.
    Prefer(Vec<String>, Vec<String>),
    /// `Allocate`.
    Allocate(Vec<String>),
    /// `PreStartContainer`.
    PreStart(Vec<String>),
}

/// The plugin. Clones share their state.
#[derive(Clone)]
pub struct FakeDevicePlugin(Arc<Inner>);

struct Inner {
    resource: String,
    devices: watch::Sender<Vec<Device>>,
    /// Cancelled when the server stops: its connections outlive it.
    served: Mutex<CancellationToken>,
    /// What `GetDevicePluginOptions` returns, or fails with.
    options: Mutex<Result<DevicePluginOptions, String>>,
    /// What `GetPreferredAllocation` returns.
    preferred: Mutex<Vec<String>>,
    /// What `Allocate` returns beside the variable.
    response: Mutex<ContainerAllocateResponse>,
    /// What `Allocate` and `PreStartContainer` fail with.
    refusal: Mutex<Option<String>>,
    calls: Mutex<Vec<Call>>,
}

/// A plugin that is served. Dropping it stops the server and removes its socket.
#[derive(Debug)]
pub struct Serving {
    _server: AbortOnDropHandle<()>,
    _served: DropGuard,
    socket: PathBuf,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
    }
}

/// A healthy device on these NUMA nodes.
pub fn device(id: &str, nodes: &[i64]) -> Device {
    Device {
        id: id.to_owned(),
        health: "Healthy".to_owned(),
        topology: (!nodes.is_empty()).then(|| TopologyInfo {
            nodes: nodes.iter().map(|id| NumaNode { id: *id }).collect(),
        }),
    }
}

impl FakeDevicePlugin {
    /// A plugin of a resource, with these healthy devices.
    pub fn new(resource: &str, devices: &[&str]) -> Self {
        let devices = devices.iter().map(|id| device(id, &[]));
        Self(Arc::new(Inner {
            resource: resource.to_owned(),
            devices: watch::Sender::new(devices.collect()),
            served: Mutex::default(),
            options: Mutex::new(Ok(DevicePluginOptions::default())),
            preferred: Mutex::default(),
            response: Mutex::default(),
            refusal: Mutex::default(),
            calls: Mutex::default(),
        }))
    }

    /// Tells the kubelet these devices.
    pub fn set_devices(&self, devices: Vec<Device>) {
        self.0.devices.send_replace(devices);
    }

    /// Sets the health of a device.
    pub fn set_healthy(&self, id: &str, healthy: bool) {
        let health = if healthy { "Healthy" } else { "Unhealthy" };
        self.0.devices.send_modify(|devices| {
            for device in devices.iter_mut().filter(|device| device.id == id) {
                device.health = health.to_owned();
            }
        });
    }

    /// Sets what the plugin wants to be asked. Takes effect when it registers.
    pub fn set_options(&self, options: DevicePluginOptions) {
        *self.0.options.lock() = Ok(options);
    }

    /// Sets the devices that the plugin prefers.
    pub fn set_preferred(&self, ids: &[&str]) {
        *self.0.preferred.lock() = ids.iter().map(|&id| id.to_owned()).collect();
    }

    /// Sets what containers need beside the variable.
    pub fn set_response(&self, response: ContainerAllocateResponse) {
        *self.0.response.lock() = response;
    }

    /// Makes `Allocate` and `PreStartContainer` fail with a message.
    pub fn refuse(&self, message: Option<&str>) {
        *self.0.refusal.lock() = message.map(str::to_owned);
    }

    /// Makes `GetDevicePluginOptions` fail with a message.
    pub fn fail_options(&self, message: &str) {
        *self.0.options.lock() = Err(message.to_owned());
    }

    /// The calls since the last look.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.0.calls.lock())
    }

    /// Serves the plugin on a socket in the directory of the kubelet's.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub fn serve(&self, dir: &Path) -> io::Result<Serving> {
        let socket = dir.join(self.socket_name());
        let _ = fs::remove_file(&socket);
        let incoming = Incoming::from(UnixListener::bind(&socket)?);
        let server = Server::builder().add_service(DevicePluginServer::new(self.clone()));
        let served = tokio::spawn(async move {
            // Ends with the test.
            let _ = server.serve_with_incoming(incoming).await;
        });
        let token = CancellationToken::new();
        *self.0.served.lock() = token.clone();
        Ok(Serving {
            _server: AbortOnDropHandle::new(served),
            _served: token.drop_guard(),
            socket,
        })
    }

    /// Registers the plugin with the kubelet.
    ///
    /// # Errors
    /// The kubelet does not listen, or refuses.
    pub async fn register(&self, dir: &Path) -> Result<(), Status> {
        self.register_as("v1beta1", &self.socket_name(), dir).await
    }

    /// Registers the plugin with another version or socket.
    ///
    /// # Errors
    /// The kubelet does not listen, or refuses.
    pub async fn register_as(
        &self,
        version: &str,
        endpoint: &str,
        dir: &Path,
    ) -> Result<(), Status> {
        let path = dir.join("kubelet.sock");
        let connect = tower::service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let kubelet = Endpoint::from_static("http://localhost");
        let channel = kubelet.connect_with_connector(connect).await;
        let channel = channel.map_err(|error| Status::unavailable(error.to_string()))?;
        let request = RegisterRequest {
            version: version.to_owned(),
            endpoint: endpoint.to_owned(),
            resource_name: self.0.resource.clone(),
            options: None,
        };
        RegistrationClient::new(channel).register(request).await?;
        Ok(())
    }

    fn socket_name(&self) -> String {
        format!("{}.sock", self.0.resource.replace('/', "-"))
    }

    fn called(&self, call: Call) {
        self.0.calls.lock().push(call);
    }

    fn check(&self) -> Result<(), Status> {
        let refusal = self.0.refusal.lock().clone();
        refusal.map_or(Ok(()), |message| Err(Status::internal(message)))
    }
}

type Devices = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

#[async_trait]
impl DevicePlugin for FakeDevicePlugin {
    type ListAndWatchStream = Devices;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        let options = self.0.options.lock().clone();
        options.map(Response::new).map_err(Status::unknown)
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Devices>, Status> {
        let mut devices = WatchStream::new(self.0.devices.subscribe());
        let served = self.0.served.lock().clone();
        let (told, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            while let Some(Some(devices)) = served.run_until_cancelled(devices.next()).await {
                let response = ListAndWatchResponse { devices };
                if told.send(Ok(response)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let requests = request.into_inner().container_requests;
        let responses = requests.into_iter().map(|request| {
            self.called(Call::Prefer(
                request.available_device_i_ds,
                request.must_include_device_i_ds,
            ));
            ContainerPreferredAllocationResponse {
                device_i_ds: self.0.preferred.lock().clone(),
            }
        });
        Ok(Response::new(PreferredAllocationResponse {
            container_responses: responses.collect(),
        }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let requests = request.into_inner().container_requests;
        let responses = requests.into_iter().map(|request| {
            let ids = request.devices_ids;
            let mut response = self.0.response.lock().clone();
            response.envs.insert(VARIABLE.to_owned(), ids.join(","));
            self.called(Call::Allocate(ids));
            response
        });
        let container_responses = responses.collect();
        self.check()?;
        Ok(Response::new(AllocateResponse {
            container_responses,
        }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        self.called(Call::PreStart(request.into_inner().devices_ids));
        self.check()?;
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
