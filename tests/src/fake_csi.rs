//! A CSI driver in memory, with its registration: it mounts nothing, but writes a file
//! where a volume is staged or published, or makes a device that nothing is behind; it
//! records every call, and fails at a test's will.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use cri_proto::{
    csi::v1::{
        self as csi,
        identity_server::{Identity, IdentityServer},
        node_server::{Node, NodeServer},
        node_service_capability::{self as capability, rpc::Type as Capability},
        volume_capability::AccessType,
    },
    pluginregistration::{
        InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
        registration_server::{Registration, RegistrationServer},
    },
};
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status, transport::Server};

/// Name of the file that the driver writes into what it publishes; it holds the volume's
/// id.
pub const PUBLISHED: &str = "published";
/// As [`PUBLISHED`], in what it stages.
pub const STAGED: &str = "staged";

/// A call that changes something, as the driver got it.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// `NodeStageVolume`.
    Stage(csi::NodeStageVolumeRequest),
    /// `NodePublishVolume`.
    Publish(csi::NodePublishVolumeRequest),
    /// `NodeUnpublishVolume`.
    Unpublish(csi::NodeUnpublishVolumeRequest),
    /// `NodeUnstageVolume`.
    Unstage(csi::NodeUnstageVolumeRequest),
    /// `NodeExpandVolume`.
    Expand(csi::NodeExpandVolumeRequest),
}

impl Call {
    /// Short name of the verb: `Stage`.
    pub const fn verb(&self) -> &'static str {
        match self {
            Self::Stage(_) => "Stage",
            Self::Publish(_) => "Publish",
            Self::Unpublish(_) => "Unpublish",
            Self::Unstage(_) => "Unstage",
            Self::Expand(_) => "Expand",
        }
    }
}

/// The driver. Clones are one.
#[derive(Clone)]
pub struct FakeCsi(Arc<Inner>);

struct Inner {
    info: Mutex<PluginInfo>,
    capabilities: Mutex<Vec<Capability>>,
    calls: Mutex<Vec<Call>>,
    /// Verbs that fail, with what.
    faults: Mutex<Vec<(&'static str, Status)>>,
    statuses: Mutex<Vec<RegistrationStatus>>,
}

/// The driver's sockets; they go with it.
#[derive(Debug)]
pub struct Serving {
    _server: AbortOnDropHandle<()>,
    registration: PathBuf,
    endpoint: PathBuf,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.registration);
        let _ = fs::remove_file(&self.endpoint);
    }
}

impl FakeCsi {
    /// A driver that stages, expands and publishes.
    pub fn new(name: &str) -> Self {
        Self(Arc::new(Inner {
            info: Mutex::new(PluginInfo {
                r#type: "CSIPlugin".to_owned(),
                name: name.to_owned(),
                endpoint: String::new(),
                supported_versions: vec!["1.0.0".to_owned()],
            }),
            capabilities: Mutex::new(vec![
                Capability::StageUnstageVolume,
                Capability::ExpandVolume,
            ]),
            calls: Mutex::default(),
            faults: Mutex::default(),
            statuses: Mutex::default(),
        }))
    }

    /// Serves the registration and the driver on two sockets, of which it makes the
    /// directories.
    pub fn serve(&self, registration: &Path, endpoint: &Path) -> io::Result<Serving> {
        self.0.info.lock().endpoint = endpoint.to_string_lossy().into_owned();
        let driver = Server::builder()
            .add_service(IdentityServer::new(self.clone()))
            .add_service(NodeServer::new(self.clone()))
            .serve_with_incoming(listen(endpoint)?);
        let registrar = Server::builder()
            .add_service(RegistrationServer::new(self.clone()))
            .serve_with_incoming(listen(registration)?);
        let server = tokio::spawn(async move {
            if let Err(error) = tokio::try_join!(driver, registrar) {
                panic!("the fake driver's server ended: {error}");
            }
        });
        Ok(Serving {
            _server: AbortOnDropHandle::new(server),
            registration: registration.to_owned(),
            endpoint: endpoint.to_owned(),
        })
    }

    /// Changes what the driver says of itself.
    pub fn set_info(&self, change: impl FnOnce(&mut PluginInfo)) {
        change(&mut self.0.info.lock());
    }

    /// Sets what the driver can do.
    pub fn set_capabilities(&self, capabilities: &[Capability]) {
        capabilities.clone_into(&mut self.0.capabilities.lock());
    }

    /// Lets every call of a verb fail until [`Self::clear_faults`]. The failing calls are
    /// recorded too.
    pub fn fail(&self, verb: &'static str, status: Status) {
        self.0.faults.lock().push((verb, status));
    }

    /// Nothing fails any more.
    pub fn clear_faults(&self) {
        self.0.faults.lock().clear();
    }

    /// Every call that changes something, in order.
    pub fn calls(&self) -> Vec<Call> {
        self.0.calls.lock().clone()
    }

    /// The verbs of [`Self::calls`].
    pub fn verbs(&self) -> Vec<&'static str> {
        self.0.calls.lock().iter().map(Call::verb).collect()
    }

    /// What the driver was told of its registration.
    pub fn registrations(&self) -> Vec<RegistrationStatus> {
        self.0.statuses.lock().clone()
    }

    /// Records a call, and fails it when it is to fail.
    fn record(&self, call: Call) -> Result<(), Status> {
        let verb = call.verb();
        self.0.calls.lock().push(call);
        self.check(verb)
    }

    fn check(&self, verb: &str) -> Result<(), Status> {
        let faults = self.0.faults.lock();
        match faults.iter().find(|(of, _)| *of == verb) {
            Some((_, status)) => Err(status.clone()),
            None => Ok(()),
        }
    }
}

fn listen(socket: &Path) -> io::Result<UnixListenerStream> {
    if let Some(dir) = socket.parent() {
        fs::create_dir_all(dir)?;
    }
    Ok(UnixListenerStream::new(UnixListener::bind(socket)?))
}

/// Makes a block device by numbers that no driver of the kernel has.
fn make_device(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let status = Command::new("mknod")
        .arg(path)
        .args(["b", "240", "0"])
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("mknod: {status}")))
    }
}

fn answer<T: Default>(done: io::Result<()>) -> Result<Response<T>, Status> {
    match done {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Status::internal(error.to_string()))
        }
        _ => Ok(Response::new(T::default())),
    }
}

#[tonic::async_trait]
impl Registration for FakeCsi {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        self.check("GetInfo")?;
        Ok(Response::new(self.0.info.lock().clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        self.0.statuses.lock().push(request.into_inner());
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl Identity for FakeCsi {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        let name = self.0.info.lock().name.clone();
        Ok(Response::new(csi::GetPluginInfoResponse {
            name,
            vendor_version: "1".to_owned(),
            ..csi::GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<csi::GetPluginCapabilitiesResponse>, Status> {
        Ok(Response::new(csi::GetPluginCapabilitiesResponse::default()))
    }

    async fn probe(
        &self,
        _: Request<csi::ProbeRequest>,
    ) -> Result<Response<csi::ProbeResponse>, Status> {
        Ok(Response::new(csi::ProbeResponse::default()))
    }
}

#[tonic::async_trait]
impl Node for FakeCsi {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        self.record(Call::Stage(request.clone()))?;
        let path = Path::new(&request.staging_target_path);
        answer(fs::write(path.join(STAGED), request.volume_id))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        self.record(Call::Unstage(request.clone()))?;
        let path = Path::new(&request.staging_target_path);
        answer(fs::remove_file(path.join(STAGED)))
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.record(Call::Publish(request.clone()))?;
        let path = Path::new(&request.target_path);
        let capability = request.volume_capability.unwrap_or_default();
        if let Some(AccessType::Block(_)) = capability.access_type {
            return answer(make_device(path));
        }
        let made = fs::create_dir_all(path);
        answer(made.and_then(|()| fs::write(path.join(PUBLISHED), request.volume_id)))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.record(Call::Unpublish(request.clone()))?;
        let path = Path::new(&request.target_path);
        answer(if path.is_dir() {
            fs::remove_dir_all(path)
        } else {
            fs::remove_file(path)
        })
    }

    async fn node_get_volume_stats(
        &self,
        _: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        Err(Status::unimplemented("the fake driver has no figures"))
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        self.record(Call::Expand(request.clone()))?;
        let capacity_bytes = request.capacity_range.unwrap_or_default().required_bytes;
        Ok(Response::new(csi::NodeExpandVolumeResponse {
            capacity_bytes,
        }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        let capabilities = self.0.capabilities.lock();
        let capabilities = capabilities.iter().map(|kind| csi::NodeServiceCapability {
            r#type: Some(capability::Type::Rpc(capability::Rpc {
                r#type: (*kind).into(),
            })),
        });
        Ok(Response::new(csi::NodeGetCapabilitiesResponse {
            capabilities: capabilities.collect(),
        }))
    }

    async fn node_get_info(
        &self,
        _: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        self.check("GetNodeInfo")?;
        Ok(Response::new(csi::NodeGetInfoResponse {
            node_id: "fake-node".to_owned(),
            ..csi::NodeGetInfoResponse::default()
        }))
    }
}
