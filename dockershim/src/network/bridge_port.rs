//! The two ends of a sandbox's connection to the engine's bridge.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The network devices of the shim's network namespace, which must be the engine's.
pub(super) const DEVICES: &str = "/sys/class/net";
/// A sandbox's network devices, below the `/proc/<pid>` of its process.
pub(super) const DEVICES_INSIDE: &str = "root/sys/class/net";
const LOOPBACK: &str = "lo";

/// Why a sandbox's bridge port was not found.
#[derive(Debug, thiserror::Error)]
pub(super) enum BridgePortError {
    /// No device in the shim's network namespace is a peer of the sandbox's devices.
    #[error(
        "no bridge port here belongs to the sandbox: the shim must run in the engine's network \
         namespace, with its /sys"
    )]
    NoPort,
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
}

/// A sandbox's connection to the bridge.
#[derive(Debug, PartialEq)]
pub(super) struct Ends {
    /// The directory of the bridge port.
    pub(super) port: PathBuf,
    /// The directory of the sandbox's device.
    pub(super) inside: PathBuf,
}

/// The bridge port whose peer is in the sandbox: each device has the other's index in `iflink`.
pub(super) fn find(inside: &Path, here: &Path) -> Result<Ends, BridgePortError> {
    let ends = devices(inside)?.into_iter();
    let ends = ends.filter(|device| !device.ends_with(LOOPBACK));
    let ends: Vec<_> = ends
        .filter_map(|device| Some((indexes(&device)?, device)))
        .collect();
    let ports = devices(here)?.into_iter();
    ports
        .filter(|device| device.join("brport").is_dir())
        .find_map(|port| {
            let (index, other) = indexes(&port)?;
            let mut ends = ends.iter();
            let (_, inside) = ends.find(|(end, _)| *end == (other, index))?;
            let inside = inside.clone();
            Some(Ends { port, inside })
        })
        .ok_or(BridgePortError::NoPort)
}

fn devices(directory: &Path) -> Result<Vec<PathBuf>, BridgePortError> {
    let failed = |source| BridgePortError::File {
        path: directory.to_owned(),
        source,
    };
    let entries = fs::read_dir(directory).map_err(failed)?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

/// The index of a device and of its peer.
fn indexes(device: &Path) -> Option<(u32, u32)> {
    let number = |name| {
        let text = fs::read_to_string(device.join(name)).ok()?;
        text.trim().parse().ok()
    };
    Some((number("ifindex")?, number("iflink")?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn device(directory: &Path, name: &str, index: u32, other: u32) -> PathBuf {
        let device = directory.join(name);
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("ifindex"), format!("{index}\n")).unwrap();
        fs::write(device.join("iflink"), format!("{other}\n")).unwrap();
        device
    }

    #[test]
    fn both_ends_of_the_connection_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, here) = (dir.path().join("inside"), dir.path().join("here"));
        device(&inside, "lo", 1, 1);
        device(&inside, "tun0", 3, 3);
        let end = device(&inside, "eth0", 2, 7);
        device(&here, "veth5", 5, 2);
        let port = device(&here, "veth7", 7, 2);
        let error = find(&inside, &here).unwrap_err();
        assert!(matches!(error, BridgePortError::NoPort), "{error}");
        fs::create_dir_all(port.join("brport")).unwrap();
        assert_eq!(find(&inside, &here).unwrap(), Ends { port, inside: end });
    }
}
