//! A Docker engine per test. It has its own data, socket and network namespace, so tests can run in
//! parallel and can restart it.

use std::{
    path::{Path, PathBuf},
    process::Output,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use bollard::{API_DEFAULT_VERSION, Docker};
use rustix::process::Signal;
use test_run::{
    mounts::unmount_below,
    process::{Process, park, signal},
};
use tokio::time::{Instant, sleep};

use crate::{
    containerd_shims::{Containerd, kill_containers, processes_and_parents},
    network_namespace::NetworkNamespace,
};

/// The deadline for an engine to answer after its start.
const STARTUP: Duration = Duration::from_secs(60);

/// The deadline for killed containers to end.
const CONTAINERS_END: Duration = Duration::from_secs(10);

/// A running engine. Its network namespace lives as long as this value.
#[derive(Debug)]
pub struct Engine {
    dir: PathBuf,
    // Dropped first, because it runs in the network namespace of the next field.
    dockerd: Option<Process>,
    netns: NetworkNamespace,
    /// Additional flags of `dockerd`.
    flags: Vec<String>,
}

impl Engine {
    /// Starts an engine that keeps all its files under `dir`.
    ///
    /// # Errors
    /// `dockerd` is not installed or does not answer. Tests that need an engine fail then; they are
    /// not skipped.
    pub async fn start(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let mut engine = Self {
            dir: dir.to_owned(),
            dockerd: None,
            netns: NetworkNamespace::new(dir).await?,
            flags: Vec::new(),
        };
        engine.start_dockerd().await?;
        Ok(engine)
    }

    async fn start_dockerd(&mut self) -> Result<()> {
        let path = |name: &str| self.dir.join(name).display().to_string();
        let namespace = self.containerd_namespace();
        let (endpoint, plugins) = (self.endpoint(), format!("{namespace}-plugins"));
        let paths = [path("data"), path("exec"), path("dockerd.pid")];
        let own = [
            "--data-root",
            &paths[0],
            "--exec-root",
            &paths[1],
            "--pidfile",
            &paths[2],
            "--host",
            &endpoint,
            "--shutdown-timeout",
            "1",
            "--containerd-namespace",
            &namespace,
            "--containerd-plugins-namespace",
            &plugins,
        ];
        let flags = own.into_iter().chain(self.flags.iter().map(String::as_str));
        let dockerd = Process::start(
            "dockerd",
            Some(self.netns.pid()),
            Path::new("dockerd"),
            &flags.collect::<Vec<_>>(),
            &self.dir.join("dockerd.log"),
        )
        .context("tests need a Docker engine: apt-get install docker.io")?;
        self.dockerd = Some(dockerd);
        let deadline = Instant::now() + STARTUP;
        loop {
            if let Ok(docker) = self.client()
                && docker.ping().await.is_ok()
            {
                return Ok(());
            }
            if let Some(dockerd) = &mut self.dockerd {
                dockerd.check_runs().context("no engine")?;
                if Instant::now() > deadline {
                    bail!("the engine does not answer:\n{}", dockerd.output());
                }
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// The endpoint of the engine's API: `unix://...`.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// The socket of the engine's API.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("docker.sock")
    }

    /// A client of the engine's API.
    pub fn client(&self) -> Result<Docker> {
        let endpoint = self.endpoint();
        Ok(Docker::connect_with_unix(
            &endpoint,
            120,
            API_DEFAULT_VERSION,
        )?)
    }

    /// The id of a process in the network namespace of the engine and its pods.
    pub fn netns(&self) -> u32 {
        self.netns.pid()
    }

    /// The network namespace of the engine and its pods.
    pub const fn namespace(&self) -> &NetworkNamespace {
        &self.netns
    }

    /// Runs a command in the engine's network namespace.
    pub fn in_net(&self, command: &[&str]) -> Result<Output> {
        self.netns.run(command)
    }

    /// Whether a process listens on this TCP port (IPv4) in the network namespace.
    pub fn listens(&self, port: u16) -> Result<bool> {
        self.netns.listens(port)
    }

    /// Stops the engine and its containers.
    pub fn stop(&mut self) -> Result<()> {
        self.kill_containers();
        if let Some(dockerd) = self.dockerd.take() {
            dockerd.stop()?;
        }
        Ok(())
    }

    /// `kill -9` of the engine. Its containers run on until it is started again.
    pub fn kill(&mut self) -> Result<()> {
        let dockerd = self.dockerd.take().context("the engine does not run")?;
        let pid = dockerd.pid();
        let children = processes_and_parents()
            .into_iter()
            .filter(|(_, parent)| *parent == pid);
        let children: Vec<u32> = children.map(|(child, _)| child).collect();
        dockerd.kill()?;
        // The engine's containerd ends with it, but not at once. A new engine would take the one
        // that is ending for a running one and wait for it.
        let deadline = std::time::Instant::now() + CONTAINERS_END;
        let runs = |pid: &u32| Path::new(&format!("/proc/{pid}")).exists();
        while children.iter().any(runs) && std::time::Instant::now() < deadline {
            park(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Starts the engine after [`Self::stop`] or [`Self::kill`].
    pub async fn start_again(&mut self) -> Result<()> {
        self.start_dockerd().await
    }

    /// [`Self::start_again`] with additional flags, which later starts keep.
    pub async fn start_again_with(&mut self, flags: &[&str]) -> Result<()> {
        self.flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        self.start_dockerd().await
    }

    /// SIGSTOP: the engine hangs, but its socket still accepts connections.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT after [`Self::pause`].
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Kills the containers and, if the engine runs, waits until it has noticed. The engine would
    /// end them itself, but only after the stop timeout of ten seconds per container; and a
    /// container whose end it has not noticed when it stops leaves a process behind.
    fn kill_containers(&self) {
        let containerd = if self.dockerd.is_some() {
            Containerd::Sees
        } else {
            Containerd::IsGone
        };
        kill_containers(&self.containerd_namespace(), containerd);
    }

    fn containerd_namespace(&self) -> String {
        format!("e2e-{}", self.netns.pid())
    }

    fn signal(&self, what: Signal) -> Result<()> {
        let dockerd = self.dockerd.as_ref().context("the engine does not run")?;
        Ok(signal(dockerd.pid(), what)?)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A paused engine does not handle SIGTERM.
        if self.dockerd.is_some() {
            let _ = self.resume();
        }
        self.kill_containers();
        drop(self.dockerd.take());
        // The engine leaves mounts behind, which prevent the removal of the directory.
        unmount_below(&self.dir);
    }
}
