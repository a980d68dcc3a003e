//! A CSI driver in memory, with its plugin registration. It records every call, and tests can make
//! calls fail. It mounts nothing unless it is given a directory for data; otherwise it writes a
//! file where a volume is staged or published. A block volume is a node of one of the machine's
//! block devices.

#![forbid(unsafe_code)]

mod fault;
mod node;
mod volumes;

use std::{
    fs,
    future::pending,
    io,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use cri_proto::{
    csi::v1::{
        self as csi,
        identity_server::{Identity, IdentityServer},
        node_server::NodeServer,
        node_service_capability::rpc::Type as Capability,
    },
    pluginregistration::{
        InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
        registration_server::{Registration, RegistrationServer},
    },
};
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status, transport::Server};

pub use self::fault::Fault;
use self::{
    fault::{Connections, HANG, listen},
    volumes::Volumes,
};

/// The name of the file that the driver writes into a published volume. It holds the volume's id.
pub const PUBLISHED: &str = "published";
/// Like [`PUBLISHED`], for a staged volume.
pub const STAGED: &str = "staged";

/// A call that changes a volume, as the driver received it.
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
    /// The short name of the verb, such as `Stage`.
    pub const fn verb(&self) -> &'static str {
        match self {
            Self::Stage(_) => "Stage",
            Self::Publish(_) => "Publish",
            Self::Unpublish(_) => "Unpublish",
            Self::Unstage(_) => "Unstage",
            Self::Expand(_) => "Expand",
        }
    }

    /// The id of the volume.
    pub fn volume(&self) -> &str {
        match self {
            Self::Stage(request) => &request.volume_id,
            Self::Publish(request) => &request.volume_id,
            Self::Unpublish(request) => &request.volume_id,
            Self::Unstage(request) => &request.volume_id,
            Self::Expand(request) => &request.volume_id,
        }
    }

    /// The path at which the call stages, publishes or expands the volume, or removes it.
    fn path(&self) -> &str {
        match self {
            Self::Stage(request) => &request.staging_target_path,
            Self::Publish(request) => &request.target_path,
            Self::Unpublish(request) => &request.target_path,
            Self::Unstage(request) => &request.staging_target_path,
            Self::Expand(request) => &request.volume_path,
        }
    }
}

/// The fake driver. Clones share their state.
#[derive(Clone)]
pub struct FakeCsi(Arc<Inner>);

struct Inner {
    info: Mutex<PluginInfo>,
    capabilities: Mutex<Vec<Capability>>,
    max_volumes: AtomicI64,
    calls: Mutex<Vec<Call>>,
    /// The faults by verb.
    faults: Mutex<Vec<(&'static str, Fault)>>,
    volumes: Mutex<Volumes>,
    connections: Connections,
    statuses: Mutex<Vec<RegistrationStatus>>,
}

/// The driver's running servers. Dropping it stops them and removes their sockets.
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

/// The driver's mounts. Dropping it unmounts them, also when a test fails.
pub struct Mounts(FakeCsi);

impl Drop for Mounts {
    fn drop(&mut self) {
        self.0.0.volumes.lock().unmount();
    }
}

impl FakeCsi {
    /// A driver that supports staging and expansion.
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
            max_volumes: AtomicI64::new(0),
            calls: Mutex::default(),
            faults: Mutex::default(),
            volumes: Mutex::default(),
            connections: Connections::default(),
            statuses: Mutex::default(),
        }))
    }

    /// Serves the registration and the driver on two sockets; creates their directories.
    pub fn serve(&self, registration: &Path, endpoint: &Path) -> io::Result<Serving> {
        self.0.info.lock().endpoint = endpoint.to_string_lossy().into_owned();
        let driver = Server::builder()
            .add_service(IdentityServer::new(self.clone()))
            .add_service(NodeServer::new(self.clone()))
            .serve_with_incoming(self.0.connections.accept(endpoint)?);
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

    /// Changes the plugin info that the driver reports.
    pub fn set_info(&self, change: impl FnOnce(&mut PluginInfo)) {
        change(&mut self.0.info.lock());
    }

    /// Sets the driver's node service capabilities.
    pub fn set_capabilities(&self, capabilities: &[Capability]) {
        capabilities.clone_into(&mut self.0.capabilities.lock());
    }

    /// Sets how many volumes the node can have; 0 means any number.
    pub fn set_max_volumes(&self, count: i64) {
        self.0.max_volumes.store(count, Ordering::Relaxed);
    }

    /// Makes every call of a verb fail until [`Self::clear_faults`]. Failed calls are recorded too.
    pub fn fail(&self, verb: &'static str, status: Status) {
        self.fault(verb, Fault::Fail(status));
    }

    /// Like [`Self::fail`], with any fault.
    pub fn fault(&self, verb: &'static str, fault: Fault) {
        self.0.faults.lock().push((verb, fault));
    }

    /// Stores the data of each volume in a directory below `dir`, which the driver bind-mounts. The
    /// mounts last until the returned value is dropped.
    #[must_use]
    pub fn keep_data_in(&self, dir: &Path) -> Mounts {
        self.0.volumes.lock().data = Some(dir.to_owned());
        Mounts(self.clone())
    }

    /// The staged and published volumes and the calls in progress, for error messages.
    pub fn left(&self) -> Vec<String> {
        self.0.volumes.lock().left()
    }

    /// The calls that no kubelet may make, for error messages.
    pub fn wrongs(&self) -> Vec<String> {
        self.0.volumes.lock().wrongs.clone()
    }

    /// Sets whether a volume exists in the storage; by default all do. Every call for a volume that
    /// does not exist fails with `NOT_FOUND`.
    pub fn set_existing(&self, volume: &str, exists: bool) {
        let deleted = &mut self.0.volumes.lock().deleted;
        if exists {
            deleted.remove(volume);
        } else {
            deleted.insert(volume.to_owned());
        }
    }

    /// Sets the usage and the condition that the driver reports for a volume while it is published.
    pub fn set_stats(&self, volume: &str, stats: csi::NodeGetVolumeStatsResponse) {
        let mut volumes = self.0.volumes.lock();
        volumes.stats.insert(volume.to_owned(), stats);
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.0.faults.lock().clear();
    }

    /// Every call that changes a volume, in order.
    pub fn calls(&self) -> Vec<Call> {
        self.0.calls.lock().clone()
    }

    /// The verbs of [`Self::calls`].
    pub fn verbs(&self) -> Vec<&'static str> {
        self.0.calls.lock().iter().map(Call::verb).collect()
    }

    /// The registration statuses that the driver was notified of.
    pub fn registrations(&self) -> Vec<RegistrationStatus> {
        self.0.statuses.lock().clone()
    }

    /// Records a call and runs `work`, subject to the verb's fault.
    async fn answer<T: Default>(
        &self,
        call: Call,
        work: impl FnOnce(&mut Volumes) -> io::Result<()> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let fault = self.fault_of(call.verb());
        self.0.calls.lock().push(call.clone());
        if self.0.volumes.lock().deleted.contains(call.volume()) {
            return Err(Status::not_found("no such volume"));
        }
        let in_progress = PendingCall::begin(self, call.clone())?;
        match fault {
            None => done(in_progress.finish(work)),
            Some(Fault::Delay(time)) => {
                sleep(time).await;
                done(in_progress.finish(work))
            }
            Some(Fault::Fail(status)) => Err(status),
            Some(Fault::Hang) => {
                in_progress.hang();
                tokio::spawn(async move {
                    sleep(HANG).await;
                    in_progress.finish(work)
                });
                pending().await
            }
            Some(Fault::Disconnect) => {
                drop(in_progress);
                self.0.connections.cut();
                pending().await
            }
            Some(Fault::LoseAnswer) => {
                done::<T>(in_progress.finish(work))?;
                self.0.connections.cut();
                pending().await
            }
            Some(Fault::Forget) => done(in_progress.finish(move |volumes| {
                volumes.forget(call.volume(), Path::new(call.path()));
                Ok(())
            })),
        }
    }

    fn fault_of(&self, verb: &str) -> Option<Fault> {
        let faults = self.0.faults.lock();
        let fault = faults.iter().find(|(of, _)| *of == verb);
        fault.map(|(_, fault)| fault.clone())
    }

    /// Fails a read-only call if its verb has such a fault.
    fn check(&self, verb: &str) -> Result<(), Status> {
        match self.fault_of(verb) {
            Some(Fault::Fail(status)) => Err(status),
            _ => Ok(()),
        }
    }
}

/// A call in progress for a volume.
struct PendingCall {
    driver: FakeCsi,
    call: Call,
}

impl PendingCall {
    fn begin(driver: &FakeCsi, call: Call) -> Result<Self, Status> {
        let mut volumes = driver.0.volumes.lock();
        let begun = volumes.begin(call.volume(), call.verb(), call.path());
        begun.map_err(|other| Status::aborted(format!("{other} is being done")))?;
        Ok(Self {
            driver: driver.clone(),
            call,
        })
    }

    fn hang(&self) {
        let (call, mut volumes) = (&self.call, self.driver.0.volumes.lock());
        volumes.hang(call.volume(), call.verb(), call.path());
    }

    fn finish(self, work: impl FnOnce(&mut Volumes) -> io::Result<()>) -> io::Result<()> {
        work(&mut self.driver.0.volumes.lock())
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        let (call, mut volumes) = (&self.call, self.driver.0.volumes.lock());
        volumes.end(call.volume(), call.verb(), call.path());
    }
}

/// Creates a node of one of the machine's block devices.
fn make_device(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let devices = fs::read_dir("/sys/class/block")?.flatten();
    let names = devices.map(|device| device.file_name().to_string_lossy().into_owned());
    // Drives without a medium cannot be opened.
    let drives = |name: &String| !["fd", "sr"].iter().any(|drive| name.starts_with(drive));
    let mut names: Vec<String> = names.filter(drives).collect();
    // Other tests take loop devices, the first ones first.
    names.sort_unstable_by_key(|name| (name.starts_with("loop"), std::cmp::Reverse(name.clone())));
    let mut numbers = names.iter().filter_map(|name| {
        fs::File::open(Path::new("/dev").join(name)).ok()?;
        fs::read_to_string(Path::new("/sys/class/block").join(name).join("dev")).ok()
    });
    let numbers = numbers.next().ok_or(io::ErrorKind::NotFound)?;
    let (major, minor) = numbers.trim().split_once(':').unwrap_or_default();
    let status = Command::new("mknod")
        .arg(path)
        .args(["b", major, minor])
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("mknod: {status}")))
    }
}

fn done<T: Default>(done: io::Result<()>) -> Result<Response<T>, Status> {
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
