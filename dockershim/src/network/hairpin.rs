//! Hairpin mode on the engine's own bridge. When a pod reaches itself through a Service address,
//! the bridge must send its packets back to the port that they came from.

use std::{
    fmt, fs, io,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::bridge_port::{self, BridgePortError};
use crate::process::{ProcessError, Processes};

/// The promiscuous flag of a device (`netdevice(7)`).
const PROMISCUOUS: u32 = 0x100;

/// How a pod's packets to itself are returned: the flag `--hairpin-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HairpinMode {
    /// The sandbox's bridge port sends packets back to where they came from.
    HairpinVeth,
    /// The bridge is promiscuous, so it also accepts these packets.
    PromiscuousBridge,
    /// Not set up by the shim.
    None,
}

/// Sets up hairpin mode.
#[derive(Debug)]
pub struct Hairpin {
    mode: HairpinMode,
    processes: Arc<Processes>,
    warned: AtomicBool,
}

/// Why hairpin mode could not be set up.
#[derive(Debug, thiserror::Error)]
enum HairpinError {
    #[error(transparent)]
    Port(#[from] BridgePortError),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error("panicked: this is a bug")]
    Panicked,
}

impl FromStr for HairpinMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "hairpin-veth" => Ok(Self::HairpinVeth),
            "promiscuous-bridge" => Ok(Self::PromiscuousBridge),
            "none" => Ok(Self::None),
            other => Err(format!(
                "{other:?}; allowed: promiscuous-bridge, hairpin-veth, none"
            )),
        }
    }
}

impl fmt::Display for HairpinMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HairpinVeth => "hairpin-veth",
            Self::PromiscuousBridge => "promiscuous-bridge",
            Self::None => "none",
        })
    }
}

impl Hairpin {
    /// Creates the setup for `mode`.
    pub fn new(mode: HairpinMode, processes: Arc<Processes>) -> Self {
        Self {
            mode,
            processes,
            warned: AtomicBool::new(false),
        }
    }

    /// Sets up hairpin mode for a sandbox whose first process is `pid`. The sandbox can run without
    /// it, so a failure is only logged as a warning, once.
    pub async fn set(&self, sandbox_id: &str, pid: i64) {
        let mode = self.mode;
        if mode == HairpinMode::None {
            return;
        }
        let (id, processes) = (sandbox_id.to_owned(), Arc::clone(&self.processes));
        let task = tokio::task::spawn_blocking(move || set(mode, &processes, &id, pid));
        if let Err(error) = task.await.unwrap_or(Err(HairpinError::Panicked))
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(sandbox_id, %error, "--hairpin-mode={mode} has no effect");
        }
    }
}

fn set(
    mode: HairpinMode,
    processes: &Processes,
    sandbox_id: &str,
    pid: i64,
) -> Result<(), HairpinError> {
    let process = processes.open(sandbox_id, pid)?;
    let inside = process.open(bridge_port::DEVICES_INSIDE);
    let inside = inside.map_err(|source| ProcessError::File { pid, source })?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", inside.as_raw_fd()));
    match mode {
        HairpinMode::HairpinVeth => hairpin_veth(&path, Path::new(bridge_port::DEVICES)),
        HairpinMode::PromiscuousBridge => {
            promiscuous_bridge(&path, Path::new(bridge_port::DEVICES))
        }
        HairpinMode::None => Ok(()),
    }
}

fn hairpin_veth(inside: &Path, here: &Path) -> Result<(), HairpinError> {
    let port = bridge_port::find(inside, here)?.port;
    write(&port.join("brport/hairpin_mode"), "1")
}

fn promiscuous_bridge(inside: &Path, here: &Path) -> Result<(), HairpinError> {
    let path = bridge_port::find(inside, here)?.port.join("master/flags");
    let text = read(&path)?;
    let flags = u32::from_str_radix(text.trim_start_matches("0x"), 16);
    let flags = flags.map_err(|error| HairpinError::File {
        path: path.clone(),
        source: io::Error::other(error),
    })?;
    write(&path, &format!("{:#x}", flags | PROMISCUOUS))
}

fn read(path: &Path) -> Result<String, HairpinError> {
    let text = fs::read_to_string(path).map_err(|source| HairpinError::File {
        path: path.to_owned(),
        source,
    })?;
    Ok(text.trim().to_owned())
}

fn write(path: &Path, text: &str) -> Result<(), HairpinError> {
    fs::write(path, text).map_err(|source| HairpinError::File {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::{super::bridge_port::tests::device, *};

    #[test]
    fn the_port_of_the_sandbox_and_no_other_is_set() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, here) = (dir.path().join("inside"), dir.path().join("here"));
        device(&inside, "lo", 1, 1);
        device(&inside, "eth0", 2, 7);
        // A device of another sandbox whose peer has the same index.
        let other = device(&here, "veth5", 5, 2);
        let own = device(&here, "veth7", 7, 2);
        device(&here, "lo", 1, 1);
        for port in [&other, &own] {
            fs::create_dir_all(port.join("brport")).unwrap();
            fs::create_dir_all(port.join("master")).unwrap();
            fs::write(port.join("master/flags"), "0x1003\n").unwrap();
        }
        hairpin_veth(&inside, &here).unwrap();
        assert!(own.join("brport/hairpin_mode").exists());
        assert!(!other.join("brport/hairpin_mode").exists());
        promiscuous_bridge(&inside, &here).unwrap();
        let flags = fs::read_to_string(own.join("master/flags")).unwrap();
        assert_eq!(flags, "0x1103");

        fs::remove_dir_all(&own).unwrap();
        let error = hairpin_veth(&inside, &here).unwrap_err();
        assert!(
            matches!(error, HairpinError::Port(BridgePortError::NoPort)),
            "{error}"
        );
    }
}
