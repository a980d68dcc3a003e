//! Registration of device plugins: on the kubelet's socket, and by the plugin watcher.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _},
    path::{Component, Path, PathBuf},
};

use cri_proto::{
    deviceplugin::v1beta1::{
        Empty, RegisterRequest,
        registration_server::{Registration, RegistrationServer},
    },
    server::Incoming,
};
use futures::future::BoxFuture;
use kubelet_host::unix_socket;
use kubelet_plugin_manager::{Plugin, PluginHandler, message::shortened};
use kubelet_pod_spec::resources;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, async_trait, transport::Server};
use tracing::{error, info, warn};

use crate::{manager::DeviceManager, plugin::DevicePlugin};

/// The version of the API.
const VERSION: &str = "v1beta1";
/// The name of the kubelet's socket.
const SOCKET: &str = "kubelet.sock";

impl DeviceManager {
    /// Listens for registrations. Removes the sockets of plugins, which register again when they see
    /// that. Blocks briefly.
    ///
    /// # Errors
    /// The directory or the socket cannot be created.
    pub fn bind(&self) -> io::Result<UnixListener> {
        let dir = &self.0.dir;
        let mut dirs = fs::DirBuilder::new();
        dirs.recursive(true).mode(0o750).create(dir)?;
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_socket() {
                match fs::remove_file(entry.path()) {
                    // Its plugin was faster.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    removed => removed?,
                }
            }
        }
        unix_socket::bind(&dir.join(SOCKET))
    }

    /// Serves registrations until cancelled. Then plugins are disconnected.
    pub async fn serve(self, listener: UnixListener, cancel: CancellationToken) {
        let _ends = self.0.cancel.clone().drop_guard();
        let server = Server::builder().add_service(RegistrationServer::new(self));
        let incoming = Incoming::from(listener);
        let stopped = cancel.cancelled();
        if let Err(error) = server.serve_with_incoming_shutdown(incoming, stopped).await {
            error!(%error, "the server for the registration of device plugins failed");
        }
    }

    /// Whether plugins can register.
    ///
    /// # Errors
    /// The server has ended.
    pub fn health(&self) -> Result<(), String> {
        if self.0.cancel.is_cancelled() {
            let what =
                "device plugin registration gRPC server failed and no device plugins can register";
            return Err(what.to_owned());
        }
        Ok(())
    }

    /// Connects to a plugin, and follows its reports.
    async fn connect(&self, resource: &str, path: &Path) -> Result<(), String> {
        let ends = self.0.cancel.child_token();
        let plugin = DevicePlugin::connect(resource, path, ends).await?;
        let replaced = self.ledger().connected(resource, plugin.clone());
        if let Some(replaced) = replaced {
            replaced.end();
        }
        info!(resource, socket = %path.display(), "registered device plugin");
        self.note_plugins();
        tokio::spawn(self.clone().follow(plugin));
        Ok(())
    }

    async fn follow(self, plugin: DevicePlugin) {
        let reports = async {
            let mut devices = plugin.devices().await?;
            while let Some(report) = devices.message().await? {
                self.reported(&plugin, &report);
                self.save_soon().await;
            }
            Ok::<(), Status>(())
        };
        let ended = plugin.until_end(reports).await;
        self.disconnected(&plugin, ended.and_then(Result::err));
        self.save_soon().await;
    }

    fn disconnected(&self, plugin: &DevicePlugin, status: Option<Status>) {
        if self.0.cancel.is_cancelled() || !self.ledger().disconnected(plugin) {
            return;
        }
        let resource = plugin.resource();
        let reason = status.map(|status| status.message().to_owned());
        warn!(
            resource,
            reason, "device plugin is gone; its devices are not given to containers"
        );
        self.note_plugins();
    }
}

fn check_version(versions: &[String]) -> Result<(), String> {
    if versions.iter().any(|version| version == VERSION) {
        return Ok(());
    }
    Err(format!(
        "requested API version {versions:?} is not supported by kubelet. Supported version is \
         [{VERSION:?}]"
    ))
}

fn check_name(resource: &str) -> Result<(), String> {
    match resources::is_extended(resource) {
        true => Ok(()),
        false => Err(format!("the ResourceName {resource:?} is invalid")),
    }
}

/// The path of a socket below the plugins' directory; as upstream, it may begin with `/` or `./`.
fn below(endpoint: &str) -> Option<PathBuf> {
    let mut path = PathBuf::new();
    for part in Path::new(endpoint).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    (!path.as_os_str().is_empty()).then_some(path)
}

#[async_trait]
impl Registration for DeviceManager {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let RegisterRequest {
            version,
            endpoint,
            resource_name,
            ..
        } = request.into_inner();
        let refused = |message: String| {
            let message = shortened(message);
            let resource = shortened(resource_name.clone());
            warn!(resource, message, "refused a device plugin");
            Status::unknown(message)
        };
        check_version(&[version]).map_err(refused)?;
        check_name(&resource_name).map_err(refused)?;
        let Some(path) = below(&endpoint) else {
            let message =
                format!("endpoint: {endpoint:?} is no path below the kubelet's directory");
            return Err(refused(message));
        };
        let label = [resource_name.clone().into()];
        self.0.metrics.registrations.with(label).increment();
        let connected = self.connect(&resource_name, &self.0.dir.join(path)).await;
        connected.map_err(refused)?;
        Ok(Response::new(Empty {}))
    }
}

impl PluginHandler for DeviceManager {
    fn validate(&self, plugin: &Plugin) -> Result<(), String> {
        if check_version(&plugin.versions).is_err() {
            return Err(format!(
                "manager version, {VERSION}, is not among plugin supported versions {:?}",
                plugin.versions
            ));
        }
        check_name(&plugin.name)
            .map_err(|error| format!("invalid name of device plugin socket: {error}"))
    }

    fn register<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(self.connect(&plugin.name, &plugin.endpoint))
    }

    fn deregister(&self, plugin: &Plugin) {
        let known = {
            let ledger = self.ledger();
            let resource = ledger.resources.get(&plugin.name);
            resource.and_then(|resource| resource.plugin()).cloned()
        };
        // Another one may have taken its place.
        if let Some(known) = known.filter(|known| known.path() == plugin.endpoint) {
            known.end();
            self.disconnected(&known, None);
        }
    }
}
