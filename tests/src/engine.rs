//! A Docker engine of a test's own: its own data, socket and network namespace,
//! so that tests run side by side and may restart it.

use std::{
    path::{Path, PathBuf},
    process::Output,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use bollard::{API_DEFAULT_VERSION, Docker};
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::{
    containerd_shims::{Containerd, kill_containers, processes_and_parents, unmount_below},
    network_namespace::NetworkNamespace,
    process::{Process, park, signal},
};

/// How long an engine may take to answer after its start.
const STARTUP: Duration = Duration::from_secs(60);

/// How long killed containers may take to be gone.
const CONTAINERS_END: Duration = Duration::from_secs(10);

/// A running engine, in a network namespace that lives as long as this value.
#[derive(Debug)]
pub struct Engine {
    dir: PathBuf,
    // Dropped first: it lives in the namespace that the other holds.
    dockerd: Option<Process>,
    netns: NetworkNamespace,
    /// Further flags of `dockerd`.
    flags: Vec<String>,
}

impl Engine {
    /// Starts an engine that keeps everything under `dir`.
    ///
    /// # Errors
    /// When no `dockerd` is installed or it does not answer: tests on a real
    /// engine fail then, they are not skipped.
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

    /// The engine's API as an endpoint: `unix://...`.
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

    /// A process in whose network namespace the engine and its pods live.
    pub fn netns(&self) -> u32 {
        self.netns.pid()
    }

    /// The network namespace in which the engine and its pods live.
    pub const fn namespace(&self) -> &NetworkNamespace {
        &self.netns
    }

    /// Runs a command in the engine's network namespace.
    pub fn in_net(&self, command: &[&str]) -> Result<Output> {
        self.netns.run(command)
    }

    /// Whether anything listens on this TCP port (IPv4) in the network namespace.
    pub fn listens(&self, port: u16) -> Result<bool> {
        self.netns.listens(port)
    }

    /// Stops the engine; its containers end with it.
    pub fn stop(&mut self) -> Result<()> {
        self.kill_containers();
        if let Some(dockerd) = self.dockerd.take() {
            dockerd.stop()?;
        }
        Ok(())
    }

    /// `kill -9` of the engine; its containers run on until it is started again.
    pub fn kill(&mut self) -> Result<()> {
        let dockerd = self.dockerd.take().context("the engine does not run")?;
        let pid = dockerd.pid();
        let children = processes_and_parents()
            .into_iter()
            .filter(|(_, parent)| *parent == pid);
        let children: Vec<u32> = children.map(|(child, _)| child).collect();
        dockerd.kill()?;
        // Its containerd ends with it, but not at once; the next engine would take the one
        // that ends for one that runs, and wait for it.
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

    /// [`Self::start_again`] with further flags, from now on.
    pub async fn start_again_with(&mut self, flags: &[&str]) -> Result<()> {
        self.flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        self.start_dockerd().await
    }

    /// SIGSTOP: the engine hangs, its socket still takes connections.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT after [`Self::pause`].
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Kills what runs in containers and waits until the engine has seen it, if it runs.
    /// The engine would end them too, but only after the ten seconds that each program
    /// has for its SIGTERM; and what it has not seen when it ends leaves a process.
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
        // A paused engine would not see its SIGTERM.
        if self.dockerd.is_some() {
            let _ = self.resume();
        }
        self.kill_containers();
        drop(self.dockerd.take());
        // The engine leaves mounts behind, and a directory with one is not removed.
        unmount_below(&self.dir);
    }
}
