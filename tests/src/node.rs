//! A node per test: an engine, the shim and the kubelet, with temporary directories and sockets, in
//! one network namespace.

mod pods;
mod reboot;
mod runtime_images;
mod shim;

use std::{
    env,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use bollard::Docker;
use cri_proto::runtime::v1::{
    image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient,
};
use tempfile::TempDir;
use test_run::{mounts::unmount_below, process::Process};
use tokio::time::{Instant, sleep};
use tonic::transport::{Channel, Endpoint};

pub use self::pods::is_ready;
use crate::{
    cgroup_root::CgroupRoot,
    containerd::Containerd,
    engine::Engine,
    images,
    network_namespace::{NODE_IP, NetworkNamespace},
    small_disk::{Disks, SmallDisk},
};

/// The deadline for the shim or the kubelet to answer after its start.
const STARTUP: Duration = Duration::from_secs(30);

/// A node. When it is dropped, also by a panic, all its processes end and its directory is removed.
#[derive(Debug)]
pub struct Node {
    // In the order in which they must end.
    kubelet: Option<Process>,
    shim: Option<Process>,
    runtime: Runtime,
    /// The cgroup of the pods.
    pub cgroups: CgroupRoot,
    _disks: Vec<SmallDisk>,
    dir: TempDir,
}

/// The container runtime of a node.
#[derive(Debug)]
enum Runtime {
    /// A Docker engine with the shim in front of it.
    Docker { engine: Engine, network: Network },
    /// containerd's own CRI plugin.
    Containerd(Containerd),
}

/// The pod network of a node with a Docker engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Network {
    /// The engine's own bridge.
    Docker,
    /// Debian's CNI plugins.
    Cni,
}

const NO_ENGINE: &str = "this node runs on containerd, without an engine and the shim";

/// The directory of Debian's CNI plugins.
const CNI_PLUGINS: &str = "/usr/lib/cni";

impl Node {
    /// A node with an engine that has the test image, and the shim in front of it.
    pub async fn with_shim() -> Result<Self> {
        Self::new(Network::Docker, Disks::default()).await
    }

    /// [`Self::with_shim`] with file systems of its own.
    pub async fn with_shim_on(disks: Disks) -> Result<Self> {
        Self::new(Network::Docker, disks).await
    }

    /// [`Self::with_shim`] with a CNI pod network. The plugins are Debian's and those in the
    /// directory `cni/bin`, the configuration is in `cni/net.d` and the cache in `cni/cache`.
    pub async fn with_cni() -> Result<Self> {
        let bridge = Path::new(CNI_PLUGINS).join("bridge");
        if !bridge.is_file() {
            bail!(
                "no {}: apt-get install containernetworking-plugins",
                bridge.display()
            );
        }
        Self::new(Network::Cni, Disks::default()).await
    }

    /// [`Self::with_shim`] with additional flags for the shim.
    pub async fn with_shim_and(flags: &[&str]) -> Result<Self> {
        let mut node = Self::with_shim().await?;
        node.stop_shim().await?;
        node.start_shim_with(flags).await?;
        Ok(node)
    }

    /// A node with a containerd that has the test image, without the shim.
    pub async fn with_containerd() -> Result<Self> {
        Self::with_containerd_on(Disks::default()).await
    }

    /// [`Self::with_containerd`] with file systems of its own.
    pub async fn with_containerd_on(disks: Disks) -> Result<Self> {
        let dir = directory()?;
        let disks = mount(disks, &dir, "containerd")?;
        let containerd = Containerd::start(&dir.path().join("containerd")).await?;
        let node = Self {
            kubelet: None,
            shim: None,
            runtime: Runtime::Containerd(containerd),
            cgroups: cgroup_root(&dir)?,
            _disks: disks,
            dir,
        };
        fs::create_dir_all(node.manifests())?;
        Ok(node)
    }

    async fn new(network: Network, disks: Disks) -> Result<Self> {
        let dir = directory()?;
        let disks = mount(disks, &dir, "engine")?;
        let engine = Engine::start(&dir.path().join("engine")).await?;
        images::load_busybox(&engine.client()?).await?;
        let mut node = Self {
            kubelet: None,
            shim: None,
            runtime: Runtime::Docker { engine, network },
            cgroups: cgroup_root(&dir)?,
            _disks: disks,
            dir,
        };
        fs::create_dir_all(node.manifests())?;
        for directory in ["cni/bin", "cni/net.d"] {
            fs::create_dir_all(node.path(directory))?;
        }
        node.start_shim().await?;
        Ok(node)
    }

    /// [`Self::with_shim`] with a kubelet, whose manifest directory is empty.
    pub async fn with_kubelet() -> Result<Self> {
        let mut node = Self::with_shim().await?;
        node.start_kubelet().await?;
        Ok(node)
    }

    // === components ===

    /// The engine.
    ///
    /// # Panics
    /// The node runs on containerd.
    pub fn engine(&self) -> &Engine {
        match &self.runtime {
            Runtime::Docker { engine, .. } => engine,
            Runtime::Containerd(_) => panic!("{NO_ENGINE}"),
        }
    }

    /// The engine, for stopping and starting it.
    ///
    /// # Panics
    /// The node runs on containerd.
    pub fn engine_mut(&mut self) -> &mut Engine {
        match &mut self.runtime {
            Runtime::Docker { engine, .. } => engine,
            Runtime::Containerd(_) => panic!("{NO_ENGINE}"),
        }
    }

    /// The network namespace of the runtime, the kubelet and the pods.
    pub fn namespace(&self) -> &NetworkNamespace {
        match &self.runtime {
            Runtime::Docker { engine, .. } => engine.namespace(),
            Runtime::Containerd(containerd) => containerd.namespace(),
        }
    }

    /// A client of the engine.
    pub fn docker(&self) -> Result<Docker> {
        self.engine().client()
    }

    /// Starts the kubelet and waits until it serves.
    pub async fn start_kubelet(&mut self) -> Result<()> {
        self.start_kubelet_with("", &[]).await
    }

    /// [`Self::start_kubelet`] with additional lines in its configuration and additional flags. The
    /// machine's disk, which is not the test's alone, may be as full as it is.
    pub async fn start_kubelet_with(&mut self, extra: &str, flags: &[&str]) -> Result<()> {
        let path = |name: &str| self.path(name).display().to_string();
        let config = self.path("kubelet.yaml");
        fs::write(
            &config,
            format!(
                "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                 evictionHard: {{memory.available: 1Mi}}\nimageGCHighThresholdPercent: 100\n\
                 staticPodPath: {}\npodLogsDir: {}\nreadOnlyPort: 10255\nfileCheckFrequency: 2s\n\
                 containerRuntimeEndpoint: {}\n{extra}",
                path("manifests"),
                path("logs"),
                self.cri_endpoint(),
            ),
        )?;
        let (config, root) = (config.display().to_string(), path("kubelet"));
        let (links, cgroups) = (path("containers"), self.cgroups.path());
        let drivers = self.volume_plugin_dir().display().to_string();
        let mut args = vec![
            "--cgroup-root",
            &cgroups,
            "--config",
            &config,
            "--root-dir",
            &root,
            "--container-logs-dir",
            &links,
            "--volume-plugin-dir",
            &drivers,
            "--hostname-override=node",
            "--node-ip",
            NODE_IP,
            "--set-kernel-tunables=false", // The kernel is the machine's.
        ];
        args.extend(flags);
        let programs = self.path("programs").display().to_string();
        let search = format!("PATH={programs}:{}", env::var("PATH")?);
        let binary = binary("kubelet")?.display().to_string();
        args.splice(0..0, [search.as_str(), &binary]);
        let kubelet = Process::start(
            "kubelet",
            Some(self.namespace().pid()),
            Path::new("env"),
            &args,
            &self.path("kubelet.log"),
        )?;
        self.kubelet = Some(kubelet);
        let deadline = Instant::now() + STARTUP;
        while self.pods().await.is_err() {
            alive(&mut self.kubelet, deadline, "the kubelet does not answer")?;
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Installs a shell script that replaces a program on the kubelet's `PATH`.
    pub fn replace_program(&self, name: &str, script: &str) -> Result<()> {
        let path = self.path("programs").join(name);
        fs::create_dir_all(self.path("programs"))?;
        fs::write(&path, format!("#!/bin/sh\n{script}\n"))?;
        Ok(fs::set_permissions(path, Permissions::from_mode(0o755))?)
    }

    /// Installs a shell script as a FlexVolume driver of `example.com`.
    pub fn install_driver(&self, name: &str, script: &str) -> Result<()> {
        let dir = self.volume_plugin_dir().join(format!("example.com~{name}"));
        fs::create_dir_all(&dir)?;
        let path = dir.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n"))?;
        Ok(fs::set_permissions(path, Permissions::from_mode(0o755))?)
    }

    fn volume_plugin_dir(&self) -> PathBuf {
        self.path("volume-plugins")
    }

    /// `kill -9` of the kubelet.
    pub fn kill_kubelet(&mut self) -> Result<()> {
        self.kubelet.take().context("no kubelet runs")?.kill()
    }

    /// Stops the kubelet with SIGTERM and waits until it has ended.
    pub fn stop_kubelet(&mut self) -> Result<()> {
        let status = self.kubelet.take().context("no kubelet runs")?.stop()?;
        anyhow::ensure!(status.success(), "the kubelet ended with {status}");
        Ok(())
    }

    /// The kubelet's process id.
    pub fn kubelet_pid(&self) -> Option<u32> {
        self.kubelet.as_ref().map(Process::pid)
    }

    /// The kubelet's log.
    pub fn kubelet_log(&self) -> String {
        fs::read_to_string(self.path("kubelet.log")).unwrap_or_default()
    }

    /// A path in the node's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    // === CRI ===

    /// The endpoint of the runtime: `unix://...`.
    pub fn cri_endpoint(&self) -> String {
        match &self.runtime {
            Runtime::Docker { .. } => format!("unix://{}", self.path("cri.sock").display()),
            Runtime::Containerd(containerd) => containerd.endpoint(),
        }
    }

    async fn channel(&self) -> Result<Channel> {
        Ok(Endpoint::new(self.cri_endpoint())?.connect().await?)
    }

    /// A connection to the kubelet's pod resources API.
    pub async fn pod_resources(&self) -> Result<Channel> {
        let socket = self.path("kubelet/pod-resources/kubelet.sock");
        let endpoint = Endpoint::new(format!("unix://{}", socket.display()))?;
        Ok(endpoint.connect().await?)
    }

    /// A client of the runtime's `RuntimeService`.
    pub async fn runtime(&self) -> Result<RuntimeServiceClient<Channel>> {
        Ok(RuntimeServiceClient::new(self.channel().await?))
    }

    /// A client of the runtime's `ImageService`.
    pub async fn images(&self) -> Result<ImageServiceClient<Channel>> {
        Ok(ImageServiceClient::new(self.channel().await?))
    }

    // === pods ===

    /// The directory of static pod manifests.
    pub fn manifests(&self) -> PathBuf {
        self.path("manifests")
    }

    /// Writes a manifest like an editor does: to a new file that is then renamed.
    pub fn write_manifest(&self, file: &str, manifest: &str) -> Result<()> {
        let new = self.path("manifest.new");
        fs::write(&new, manifest)?;
        Ok(fs::rename(new, self.manifests().join(file))?)
    }

    /// Deletes a manifest.
    pub fn remove_manifest(&self, file: &str) -> Result<()> {
        Ok(fs::remove_file(self.manifests().join(file))?)
    }

    /// Waits until `done` returns true. `what` describes the condition in the error after the
    /// deadline.
    pub async fn await_until<F>(&self, what: &str, within: Duration, done: F) -> Result<()>
    where
        F: AsyncFn(&Self) -> Result<bool>,
    {
        let deadline = Instant::now() + within;
        while !done(self).await? {
            if Instant::now() > deadline {
                let (kubelet, shim) = (self.kubelet_log(), self.shim_log());
                bail!("after {within:?} not yet: {what}\nkubelet:\n{kubelet}\nshim:\n{shim}");
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Runs a command in the network namespace of the node.
    pub fn in_net(&self, command: &[&str]) -> Result<Output> {
        self.namespace().run(command)
    }

    /// Runs a `kubelet` command with these arguments, beside the running kubelet.
    pub fn kubelet_command(&self, args: &[&str]) -> Result<Output> {
        let root = self.path("kubelet").display().to_string();
        Ok(Command::new(binary("kubelet")?)
            .args(args)
            .args(["--root-dir", &root])
            .output()?)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // They are killed because a graceful shutdown would wait for the test's connections, which
        // close only when this thread continues.
        for process in [self.kubelet.take(), self.shim.take()]
            .into_iter()
            .flatten()
        {
            let _ = process.kill();
        }
        // The mounts of pods would prevent the removal of the directory.
        unmount_below(&self.path("kubelet"));
    }
}

/// Mounts the file systems of a node.
fn mount(disks: Disks, dir: &TempDir, runtime: &str) -> Result<Vec<SmallDisk>> {
    let wanted = [("kubelet", disks.kubelet), (runtime, disks.runtime)];
    let wanted = wanted
        .into_iter()
        .filter_map(|(name, size)| Some((name, size?)));
    wanted
        .map(|(name, size)| {
            let image = dir.path().join(format!("{name}.img"));
            SmallDisk::mount(&image, &dir.path().join(name), size)
        })
        .collect()
}

fn directory() -> Result<TempDir> {
    Ok(tempfile::Builder::new().prefix("e2e-").tempdir()?)
}

/// Named after the directory of the node, which is unique.
fn cgroup_root(dir: &TempDir) -> Result<CgroupRoot> {
    let name = dir.path().file_name().context("no name")?;
    CgroupRoot::create(&name.to_string_lossy())
}

/// A binary of this workspace, from the build profile of the tests.
pub fn binary(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let profile = test.parent().and_then(Path::parent);
    let binary = profile.context("no target directory")?.join(name);
    if !binary.is_file() {
        bail!("{} is not built: make test", binary.display());
    }
    Ok(binary)
}

fn alive(process: &mut Option<Process>, deadline: Instant, problem: &str) -> Result<()> {
    let process = process.as_mut().context("nothing was started")?;
    process.check_runs()?;
    if Instant::now() > deadline {
        bail!("{problem}:\n{}", process.output());
    }
    Ok(())
}
