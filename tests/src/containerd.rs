//! A containerd per test, with its CRI plugin, for a kubelet without the shim.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use test_run::{mounts::unmount_below, process::Process};
use tokio::time::{Instant, sleep};

use crate::{
    containerd_shims::{self, kill_containers},
    images,
    network_namespace::NetworkNamespace,
};

/// The deadline for containerd to answer after its start.
const STARTUP: Duration = Duration::from_secs(60);
/// The directory of Debian's CNI plugins.
const CNI_PLUGINS: &str = "/usr/lib/cni";
/// The sandbox image: busybox that sleeps.
const PAUSE: &str = "e2e.local/pause:1";
/// The containerd namespace of the CRI plugin.
const NAMESPACE: &str = "k8s.io";

/// A running containerd. Its network namespace lives as long as this value.
#[derive(Debug)]
pub struct Containerd {
    dir: PathBuf,
    // Dropped first, because it runs in the network namespace of the next field.
    process: Option<Process>,
    namespace: NetworkNamespace,
}

impl Containerd {
    /// Starts a containerd that keeps all its files under `dir`, and imports the test image.
    ///
    /// # Errors
    /// containerd is not installed or does not answer. Tests that need it fail then; they are not
    /// skipped.
    pub async fn start(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir.join("net.d"))?;
        let mut containerd = Self {
            dir: dir.to_owned(),
            process: None,
            namespace: NetworkNamespace::new(dir).await?,
        };
        fs::write(dir.join("config.toml"), containerd.config())?;
        fs::write(dir.join("net.d/10-e2e.conflist"), containerd.network())?;
        containerd.start_process().await?;
        containerd.import(images::BUSYBOX, &["sh"])?;
        containerd.import(PAUSE, &["sleep", "infinity"])?;
        Ok(containerd)
    }

    async fn start_process(&mut self) -> Result<()> {
        let config = self.dir.join("config.toml").display().to_string();
        let process = Process::start(
            "containerd",
            Some(self.namespace.pid()),
            Path::new("containerd"),
            &["--config", &config],
            &self.dir.join("containerd.log"),
        );
        self.process =
            Some(process.context("tests on containerd need it: apt-get install containerd")?);
        self.await_answer().await
    }

    /// Kills containerd and all its containers, and unmounts their mounts.
    pub fn stop(&mut self) {
        // containerd goes first, because it starts a cleanup process for each shim that dies.
        if let Some(process) = self.process.take() {
            let _ = process.kill();
        }
        kill_containers(&self.socket(), containerd_shims::Containerd::IsGone);
        unmount_below(&self.dir);
    }

    /// Kills containerd and starts it again; its containers run on.
    pub async fn restart(&mut self) -> Result<()> {
        if let Some(process) = self.process.take() {
            process.kill()?;
        }
        self.start_process().await
    }

    /// Starts it after [`Self::stop`], without its state directory, as after a reboot.
    pub async fn start_again(&mut self) -> Result<()> {
        let _ = fs::remove_dir_all(self.dir.join("state"));
        self.start_process().await
    }

    fn config(&self) -> String {
        let path = |name: &str| self.dir.join(name).display().to_string();
        format!(
            r#"version = 2
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # This machine, like many others, does not permit lowering an oom_score_adj.
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_tcp_service = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{net_d}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"#,
            root = path("root"),
            state = path("state"),
            socket = path("containerd.sock"),
            net_d = path("net.d"),
        )
    }

    fn network(&self) -> String {
        let addresses = self.dir.join("ipam").display().to_string();
        json!({
            "cniVersion": "0.4.0",
            "name": "e2e",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": true,
                    "hairpinMode": true,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": "10.89.0.0/16"}]],
                        "dataDir": addresses,
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": true}},
            ],
        })
        .to_string()
    }

    async fn await_answer(&mut self) -> Result<()> {
        let deadline = Instant::now() + STARTUP;
        loop {
            let answer = self.ctr(&["version"])?;
            if answer.status.success() {
                return Ok(());
            }
            if let Some(process) = &mut self.process {
                process.check_runs().context("no containerd")?;
                if Instant::now() > deadline {
                    bail!("containerd does not answer:\n{}", process.output());
                }
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Imports a busybox image that runs this command.
    pub fn import(&self, reference: &str, command: &[&str]) -> Result<()> {
        self.import_of_size(reference, command, 0)
    }

    /// [`Self::import`] with a file of this size in the image.
    pub fn import_of_size(&self, reference: &str, command: &[&str], bytes: usize) -> Result<()> {
        let archive = self.dir.join("image.tar");
        let content = images::archive_of_size(reference, command, bytes)?;
        fs::write(&archive, content)?;
        let imported = self.ctr(&["images", "import", &archive.display().to_string()])?;
        if !imported.status.success() {
            bail!("{reference}: {}", String::from_utf8_lossy(&imported.stderr));
        }
        Ok(fs::remove_file(archive)?)
    }

    /// Pushes an image to a registry. It prints its own name, so that each image differs. `user` is
    /// `name:password`.
    pub fn push(&self, to: &str, user: &str) -> Result<()> {
        self.import(to, &["echo", to])?;
        let mut push = vec!["images", "push", "--plain-http"];
        if !user.is_empty() {
            push.extend(["--user", user]);
        }
        push.push(to);
        for args in [push.as_slice(), &["images", "remove", "--sync", to]] {
            let done = self.namespace.run(
                &self
                    .ctr_command(args)
                    .iter()
                    .map(String::as_str)
                    .collect::<Vec<_>>(),
            )?;
            if !done.status.success() {
                bail!("{args:?}: {}", String::from_utf8_lossy(&done.stderr));
            }
        }
        Ok(())
    }

    fn ctr_command(&self, args: &[&str]) -> Vec<String> {
        let socket = self.socket();
        ["ctr", "--address", &socket, "--namespace", NAMESPACE]
            .iter()
            .chain(args)
            .map(|&arg| arg.to_owned())
            .collect()
    }

    fn ctr(&self, args: &[&str]) -> Result<std::process::Output> {
        let command = self.ctr_command(args);
        Command::new(&command[0])
            .args(&command[1..])
            .output()
            .context("cannot run ctr")
    }

    fn socket(&self) -> String {
        self.dir.join("containerd.sock").display().to_string()
    }

    /// The endpoint of the CRI services: `unix://...`.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket())
    }

    /// The network namespace of containerd and its pods.
    pub const fn namespace(&self) -> &NetworkNamespace {
        &self.namespace
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        self.stop();
    }
}
