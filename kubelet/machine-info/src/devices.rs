//! Disks and network devices.

use std::collections::BTreeMap;

use super::{
    format::{Disk, NetworkDevice},
    machine_files::MachineFiles,
};

const DISKS: &str = "sys/block";
const NETWORK: &str = "sys/class/net";
/// Beginnings of the names of block devices that are no disks, as upstream.
const NO_DISKS: [&str; 3] = ["loop", "ram", "sr"];
/// Beginnings of the names of network devices that are not the machine's, as upstream.
const NOT_THE_MACHINES: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];
const SECTOR_BYTES: u64 = 512;

/// Disks by device numbers.
pub(super) fn disks(files: &MachineFiles) -> BTreeMap<String, Disk> {
    let names = files.names(DISKS).into_iter();
    let disks = names.filter(|name| !begins_with(name, &NO_DISKS));
    disks.filter_map(|name| disk(name, files)).collect()
}

fn disk(name: String, files: &MachineFiles) -> Option<(String, Disk)> {
    let path = |file: &str| format!("{DISKS}/{name}/{file}");
    // A path of a multipath device, which has no file in /dev.
    if files.text(&path("hidden")).as_deref() == Some("1") {
        return None;
    }
    let numbers = files.text(&path("dev"))?;
    let (major, minor) = numbers.split_once(':')?;
    let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
    let sectors: u64 = files.value(&path("size"))?;
    let schedulers = files.text(&path("queue/scheduler")).unwrap_or_default();
    let disk = Disk {
        major,
        minor,
        size: sectors.saturating_mul(SECTOR_BYTES),
        scheduler: chosen(&schedulers).unwrap_or("none").to_owned(),
        name,
    };
    Some((numbers, disk))
}

/// The scheduler in brackets: `none [mq-deadline] kyber`.
fn chosen(schedulers: &str) -> Option<&str> {
    let (_, rest) = schedulers.split_once('[')?;
    rest.split_once(']').map(|(chosen, _)| chosen)
}

/// Network devices by name, without those of pods.
pub(super) fn network_devices(files: &MachineFiles) -> Vec<NetworkDevice> {
    let names = files.names(NETWORK).into_iter();
    let devices = names.filter(|name| {
        let is_device = || files.is_dir(&format!("{NETWORK}/{name}"));
        !begins_with(name, &NOT_THE_MACHINES) && is_device()
    });
    devices
        .map(|name| {
            let path = |file: &str| format!("{NETWORK}/{name}/{file}");
            NetworkDevice {
                mac_address: files.text(&path("address")).unwrap_or_default(),
                // The kernel refuses to read the speed of some devices.
                speed: files.value(&path("speed")).unwrap_or_default(),
                mtu: files.value(&path("mtu")).unwrap_or_default(),
                name,
            }
        })
        .collect()
}

fn begins_with(name: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}
