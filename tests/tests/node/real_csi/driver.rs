//! The driver and its registrar as processes of a node, and the driver's record of its volumes.

use std::{
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use e2e::node::Node;
use serde::Deserialize;
use test_run::process::Process;
use tokio::time::{Instant, sleep};

use super::{controller::Controller, programs::Programs};

/// The driver's name.
pub(crate) const NAME: &str = "hostpath.csi.k8s.io";
/// The driver's ID of the node.
pub(crate) const NODE_ID: &str = "node";
/// The time until the driver listens after its start.
const STARTUP: Duration = Duration::from_secs(30);

/// The driver with its registrar. Dropping it ends both, and detaches the driver's loop devices.
#[derive(Debug)]
pub(crate) struct Driver {
    programs: Programs,
    attaches: bool,
    /// The directory for their files, below the node's directory.
    dir: PathBuf,
    registration: PathBuf,
    driver: Option<Process>,
    registrar: Option<Process>,
}

/// A volume in the driver's state.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct DriverVolume {
    /// The driver's ID of the volume.
    #[serde(rename = "VolID")]
    pub id: String,
    /// The paths where it is staged.
    #[serde(default)]
    pub staged: Option<Vec<String>>,
    /// The paths where it is published.
    #[serde(default)]
    pub published: Option<Vec<String>>,
    /// Whether it is deleted with its pod.
    #[serde(default)]
    pub ephemeral: bool,
}

impl DriverVolume {
    /// Whether the driver considers it staged or published.
    pub(crate) fn is_used(&self) -> bool {
        let is_somewhere = |paths: &Option<Vec<String>>| paths.iter().any(|all| !all.is_empty());
        is_somewhere(&self.staged) || is_somewhere(&self.published)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct State {
    volumes: Option<Vec<DriverVolume>>,
}

impl Driver {
    /// Starts both with sockets where the node's kubelet expects them. With `attaches`, the driver
    /// requires volumes to be attached first.
    pub(crate) async fn start(node: &Node, programs: Programs, attaches: bool) -> Result<Self> {
        let mut driver = Self {
            programs,
            attaches,
            dir: node.path("csi"),
            registration: node.path("kubelet/plugins_registry"),
            driver: None,
            registrar: None,
        };
        fs::create_dir_all(&driver.dir)?;
        driver.start_driver().await?;
        driver.start_registrar()?;
        Ok(driver)
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("csi.sock")
    }

    fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join("driver.log")
    }

    /// Starts the driver, and waits until it listens.
    pub(crate) async fn start_driver(&mut self) -> Result<()> {
        let flags = [
            format!("--drivername={NAME}"),
            format!("--nodeid={NODE_ID}"),
            format!("--endpoint=unix://{}", self.socket().display()),
            format!("--statedir={}", self.state().display()),
            format!("--enable-attach={}", self.attaches),
            "--check-volume-lifecycle".to_owned(),
            "--v=5".to_owned(),
        ];
        let log = self.log_path();
        let mut driver = start("driver", &self.programs.driver, &flags, &log)?;
        let deadline = Instant::now() + STARTUP;
        while self.controller().await.is_err() {
            driver.check_runs()?;
            if Instant::now() > deadline {
                bail!("the driver does not listen:\n{}", driver.output());
            }
            sleep(Duration::from_millis(10)).await;
        }
        self.driver = Some(driver);
        Ok(())
    }

    /// Starts the registrar; the driver must be listening.
    pub(crate) fn start_registrar(&mut self) -> Result<()> {
        let socket = self.socket();
        let flags = [
            format!("--csi-address={}", socket.display()),
            format!("--kubelet-registration-path={}", socket.display()),
            format!("--plugin-registration-path={}", self.registration.display()),
            // The driver may answer slowly on a busy machine.
            "--timeout=30s".to_owned(),
        ];
        let log = self.dir.join("registrar.log");
        self.registrar = Some(start("registrar", &self.programs.registrar, &flags, &log)?);
        Ok(())
    }

    /// `kill -9` of the driver.
    pub(crate) fn kill_driver(&mut self) -> Result<()> {
        self.driver.take().context("no driver runs")?.kill()
    }

    /// `kill -9` of the registrar.
    pub(crate) fn kill_registrar(&mut self) -> Result<()> {
        self.registrar.take().context("no registrar runs")?.kill()
    }

    /// Restarts the registrar if it has ended: it exits if the kubelet failed to register the
    /// driver, and relies on a restart.
    ///
    /// # Errors
    /// The driver has exited; the error contains its output.
    pub(crate) fn keep_running(&mut self) -> Result<()> {
        if let Some(driver) = &mut self.driver {
            driver.check_runs()?;
        }
        let registrar = self.registrar.as_mut();
        if registrar.is_some_and(|registrar| registrar.check_runs().is_err()) {
            self.start_registrar()?;
        }
        Ok(())
    }

    /// A client of its controller service.
    pub(crate) async fn controller(&self) -> Result<Controller> {
        Controller::at(&self.socket()).await
    }

    /// The volumes in the driver's state.
    pub(crate) fn volumes(&self) -> Result<Vec<DriverVolume>> {
        let Ok(text) = fs::read_to_string(self.state().join("state.json")) else {
            return Ok(Vec::new());
        };
        let state: State = serde_json::from_str(&text).with_context(|| text.clone())?;
        Ok(state.volumes.unwrap_or_default())
    }

    /// The size of its log in bytes.
    pub(crate) fn log_end(&self) -> u64 {
        fs::metadata(self.log_path()).map_or(0, |log| log.len())
    }

    /// Its log from this byte on.
    pub(crate) fn log_from(&self, start: u64) -> Result<String> {
        let mut log = File::open(self.log_path())?;
        log.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        log.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The driver's loop devices.
    pub(crate) fn loop_devices(&self) -> Vec<PathBuf> {
        let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let behind = |device: &fs::DirEntry| {
            let file = fs::read_to_string(device.path().join("loop/backing_file"));
            file.is_ok_and(|file| Path::new(file.trim_end()).starts_with(self.state()))
        };
        let own = devices.filter(behind);
        own.map(|device| Path::new("/dev").join(device.file_name()))
            .collect()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // On SIGTERM the driver would wait until the kubelet closes its connection.
        let running = [self.registrar.take(), self.driver.take()];
        for process in running.into_iter().flatten() {
            let _ = process.kill();
        }
        for device in self.loop_devices() {
            let _ = Command::new("losetup").arg("-d").arg(device).status();
        }
    }
}

fn start(name: &str, program: &Path, flags: &[String], log: &Path) -> Result<Process> {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Process::start(name, None, program, &flags, log)
}
