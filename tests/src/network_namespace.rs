//! A network namespace per test.

use std::{
    fs::File,
    os::fd::AsFd as _,
    path::Path,
    process::{Command, Output},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use test_run::process::Process;
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, sleep},
};

/// The deadline for the creation of a network namespace.
const STARTUP: Duration = Duration::from_secs(60);

/// The node's address in the network namespace.
pub const NODE_IP: &str = "192.0.2.10";

/// A network namespace with loopback up and a node address. It lives as long as this value and the
/// processes that were started in it.
#[derive(Debug)]
pub struct NetworkNamespace(Process);

impl NetworkNamespace {
    /// Creates a network namespace. The process that holds it logs into `dir`.
    pub async fn new(dir: &Path) -> Result<Self> {
        let holder = Process::start(
            "network namespace",
            None,
            Path::new("unshare"),
            &["--net", "--", "sleep", "infinity"],
            &dir.join("netns.log"),
        )?;
        let namespace = Self(holder);
        namespace.await_made().await?;
        namespace.run(&["ip", "link", "set", "lo", "up"])?;
        for command in [
            ["link", "add", "node0", "type", "bridge"].as_slice(),
            &["addr", "add", &format!("{NODE_IP}/24"), "dev", "node0"],
            &["link", "set", "node0", "up"],
        ] {
            let done = namespace.run(&[&["ip"], command].concat())?;
            if !done.status.success() {
                bail!("ip {command:?}: {}", String::from_utf8_lossy(&done.stderr));
            }
        }
        Ok(namespace)
    }

    /// Waits until `unshare` has created the namespace, before other processes enter it.
    async fn await_made(&self) -> Result<()> {
        let own = std::fs::read_link("/proc/self/ns/net")?;
        let theirs = format!("/proc/{}/ns/net", self.pid());
        let deadline = Instant::now() + STARTUP;
        while std::fs::read_link(&theirs).map_or(true, |ns| ns == own) {
            if Instant::now() > deadline {
                bail!("no network namespace: {}", self.0.output());
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// The id of a process in the namespace.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// The command line prefix that runs a command in the namespace.
    pub fn enter(&self) -> Vec<String> {
        let pid = self.pid().to_string();
        ["nsenter", "--target", &pid, "--net", "--"]
            .map(str::to_owned)
            .into()
    }

    /// Runs a command in the namespace.
    pub fn run(&self, command: &[&str]) -> Result<Output> {
        let enter = self.enter();
        Command::new(&enter[0])
            .args(&enter[1..])
            .args(command)
            .output()
            .with_context(|| format!("cannot run {command:?}"))
    }

    /// A runtime whose threads, and so their sockets, are in the namespace.
    pub fn runtime(&self) -> Result<Runtime> {
        let namespace = File::open(format!("/proc/{}/ns/net", self.pid()))?;
        let enter = move || {
            let kind = Some(LinkNameSpaceType::Network);
            if let Err(error) = move_into_link_name_space(namespace.as_fd(), kind) {
                panic!("cannot enter the network namespace: {error}");
            }
        };
        Ok(Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .on_thread_start(enter)
            .build()?)
    }

    /// Whether a process listens on this TCP port (IPv4) in the namespace.
    pub fn listens(&self, port: u16) -> Result<bool> {
        let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", self.pid()))?;
        let port = format!(":{port:04X}");
        // Columns: number, local address, remote address, state (0A: LISTEN).
        Ok(table.lines().any(|line| {
            let columns: Vec<_> = line.split_whitespace().collect();
            matches!(columns[..], [_, local, _, "0A", ..] if local.ends_with(&port))
        }))
    }
}
