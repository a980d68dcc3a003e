//! A Docker engine of a test's own: its own data, socket and network namespace,
//! so that tests run side by side and may restart it.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use bollard::{API_DEFAULT_VERSION, Docker};
use rustix::{
    mount::{UnmountFlags, unmount},
    process::Signal,
};
use tokio::time::{Instant, sleep};

use crate::process::{Process, park, signal};

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
    netns: Process,
}

impl Engine {
    /// Starts an engine that keeps everything under `dir`.
    ///
    /// # Errors
    /// When no `dockerd` is installed or it does not answer: tests on a real
    /// engine fail then, they are not skipped.
    pub async fn start(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let holder = Process::start(
            "network namespace",
            None,
            Path::new("unshare"),
            &["--net", "--", "sleep", "infinity"],
            &dir.join("netns.log"),
        )?;
        let mut engine = Self {
            dir: dir.to_owned(),
            dockerd: None,
            netns: holder,
        };
        engine.await_netns().await?;
        engine.in_net(&["ip", "link", "set", "lo", "up"])?;
        engine.start_dockerd().await?;
        Ok(engine)
    }

    /// Waits until `unshare` has made the namespace that others are to enter.
    async fn await_netns(&self) -> Result<()> {
        let own = std::fs::read_link("/proc/self/ns/net")?;
        let theirs = format!("/proc/{}/ns/net", self.netns.pid());
        let deadline = Instant::now() + STARTUP;
        while std::fs::read_link(&theirs).map_or(true, |ns| ns == own) {
            if Instant::now() > deadline {
                bail!("no network namespace: {}", self.netns.output());
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    async fn start_dockerd(&mut self) -> Result<()> {
        let path = |name: &str| self.dir.join(name).display().to_string();
        let namespace = self.containerd_namespace();
        let dockerd = Process::start(
            "dockerd",
            Some(self.netns.pid()),
            Path::new("dockerd"),
            &[
                "--data-root",
                &path("data"),
                "--exec-root",
                &path("exec"),
                "--pidfile",
                &path("dockerd.pid"),
                "--host",
                &self.endpoint(),
                "--shutdown-timeout",
                "1",
                "--containerd-namespace",
                &namespace,
                "--containerd-plugins-namespace",
                &format!("{namespace}-plugins"),
            ],
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
        format!("unix://{}", self.dir.join("docker.sock").display())
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

    /// Runs a command in the engine's network namespace.
    pub fn in_net(&self, command: &[&str]) -> Result<Output> {
        let netns = self.netns.pid().to_string();
        Command::new("nsenter")
            .args(["--target", &netns, "--net", "--"])
            .args(command)
            .output()
            .with_context(|| format!("cannot run {command:?}"))
    }

    /// Whether anything listens on this TCP port (IPv4) in the network namespace.
    pub fn listens(&self, port: u16) -> Result<bool> {
        let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", self.netns.pid()))?;
        let port = format!(":{port:04X}");
        // Columns: number, local address, remote address, state (0A: LISTEN).
        Ok(table.lines().any(|line| {
            let columns: Vec<_> = line.split_whitespace().collect();
            matches!(columns[..], [_, local, _, "0A", ..] if local.ends_with(&port))
        }))
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

    /// SIGSTOP: the engine hangs, its socket still takes connections.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT after [`Self::pause`].
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Kills what runs in containers and waits until the engine has seen it. The
    /// engine would end them too, but only after the ten seconds that each program
    /// has for its SIGTERM; and what it has not seen when it ends leaves a process.
    fn kill_containers(&self) {
        let deadline = std::time::Instant::now() + CONTAINERS_END;
        loop {
            let processes = processes_and_parents();
            let namespace = self.containerd_namespace();
            let shims: Vec<u32> = processes
                .iter()
                .map(|(pid, _)| *pid)
                .filter(|pid| is_shim_of(*pid, &namespace))
                .collect();
            if shims.is_empty() {
                return;
            }
            let late = std::time::Instant::now() > deadline;
            for (pid, parent) in processes {
                if shims.contains(&parent) || late && shims.contains(&pid) {
                    // It may have ended by itself.
                    let _ = signal(pid, Signal::KILL);
                }
            }
            if late {
                return;
            }
            park(Duration::from_millis(20));
        }
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
            self.kill_containers();
        }
        drop(self.dockerd.take());
        // The engine leaves mounts behind, and a directory with one is not removed.
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let below = mounts
            .lines()
            .filter_map(|line| line.split(' ').nth(1))
            .filter(|target| Path::new(target).starts_with(&self.dir));
        for target in below.collect::<Vec<_>>().into_iter().rev() {
            let _ = unmount(target, UnmountFlags::DETACH);
        }
    }
}

/// Whether a process is a containerd shim with this word in its command line.
fn is_shim_of(pid: u32, word: &str) -> bool {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = command.split(|byte| *byte == 0);
    let program = String::from_utf8_lossy(words.next().unwrap_or_default());
    program.contains("containerd-shim") && words.any(|w| w == word.as_bytes())
}

/// Every process with its parent.
fn processes_and_parents() -> Vec<(u32, u32)> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // The command, in parentheses, may hold anything.
            let (_, after) = stat.rsplit_once(") ")?;
            let parent = after.split(' ').nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect()
}
