//! The sessions with iSCSI targets, as the kernel shows them. Everything here blocks.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{VolumeError, entries::children, scsi::kernel::Kernel};

/// A session with a target.
struct Session {
    /// Number of its SCSI host.
    host: u32,
    dir: PathBuf,
}

/// The sessions with a target.
fn all(kernel: &Kernel, iqn: &str) -> Result<Vec<Session>, VolumeError> {
    let mut found = Vec::new();
    for (name, path) in children(&kernel.sys.join("class/iscsi_host"))? {
        let number = name.strip_prefix("host").and_then(|n| n.parse().ok());
        let Some(host) = number else {
            continue;
        };
        for (session, dir) in children(&path.join("device"))? {
            if !session.starts_with("session") {
                continue;
            }
            let target = dir.join("iscsi_session").join(&session).join("targetname");
            // Sessions end at any time.
            if text(&target).is_some_and(|name| name == iqn) {
                found.push(Session { host, dir });
            }
        }
    }
    Ok(found)
}

/// Number of the SCSI host of the session with a portal of a target.
pub(super) fn host(kernel: &Kernel, iqn: &str, portal: &str) -> Result<Option<u32>, VolumeError> {
    for session in all(kernel, iqn)? {
        for (connection, dir) in children(&session.dir)? {
            if !connection.starts_with("connection") {
                continue;
            }
            let dir = dir.join("iscsi_connection").join(&connection);
            let is_at = |address: &str, port: &str| {
                let address = text(&dir.join(address));
                address
                    .zip(text(&dir.join(port)))
                    .is_some_and(|(address, port)| {
                        let address = match address.contains(':') {
                            true => format!("[{address}]"),
                            false => address,
                        };
                        portal == format!("{address}:{port}")
                    })
            };
            if is_at("address", "port") || is_at("persistent_address", "persistent_port") {
                return Ok(Some(session.host));
            }
        }
    }
    Ok(None)
}

/// The block devices of a logical unit: one for each session.
pub(super) fn devices(kernel: &Kernel, iqn: &str, lun: &str) -> Result<Vec<PathBuf>, VolumeError> {
    let mut devices = Vec::new();
    for Session { host, dir } in all(kernel, iqn)? {
        let unit = format!("target{host}:0:0/{host}:0:0:{lun}/block");
        let names = children(&dir.join(unit))?.into_iter();
        devices.extend(names.map(|(name, _)| kernel.dev.join(name)));
    }
    Ok(devices)
}

/// The link that udev makes to a logical unit of a portal.
pub(super) fn path(
    kernel: &Kernel,
    portal: &str,
    iqn: &str,
    lun: &str,
) -> Result<Option<PathBuf>, VolumeError> {
    // Without the brackets of IPv6 addresses.
    let address = portal.replace(['[', ']'], "");
    let name = format!("ip-{address}-iscsi-{iqn}-lun-{lun}");
    let is_path = |link: &str| {
        // With other transports than TCP, it begins with the PCI address of the adapter.
        let adapter = link.strip_suffix(&name);
        adapter.is_some_and(|a| a.is_empty() || a.starts_with("pci-") && a.ends_with('-'))
    };
    let mut links = kernel.links("by-path")?.into_iter();
    Ok(links.find(|(link, _)| is_path(link)).map(|(_, path)| path))
}

/// The contents of a file of sysfs.
fn text(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const IQN: &str = "iqn.2003-01.com.example:shop";

    #[test]
    fn the_kernel_tells_the_sessions_of_a_target() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel {
            sys: dir.path().join("sys"),
            dev: dir.path().join("dev"),
        };
        assert_eq!(host(&kernel, IQN, "10.0.0.1:3260").unwrap(), None);
        let session = kernel.sys.join("class/iscsi_host/host7/device/session2");
        let connection = session.join("connection2:0/iscsi_connection/connection2:0");
        let named = session.join("iscsi_session/session2");
        fs::create_dir_all(&connection).unwrap();
        fs::create_dir_all(&named).unwrap();
        for (file, text) in [
            (connection.join("address"), "fd00::1\n"),
            (connection.join("port"), "3260\n"),
            (connection.join("persistent_address"), "10.0.0.1\n"),
            (connection.join("persistent_port"), "860\n"),
            (named.join("targetname"), "iqn.2003-01.com.example:shop\n"),
        ] {
            fs::write(file, text).unwrap();
        }
        let other = "iqn.2003-01.com.example:other";
        for portal in ["[fd00::1]:3260", "10.0.0.1:860"] {
            assert_eq!(host(&kernel, IQN, portal).unwrap(), Some(7), "{portal}");
            assert_eq!(host(&kernel, other, portal).unwrap(), None);
        }
        fs::create_dir_all(session.join("target7:0:0/7:0:0:3/block/sdq")).unwrap();
        let found = devices(&kernel, IQN, "3").unwrap();
        assert_eq!(found, [kernel.dev.join("sdq")]);
        assert_eq!(
            devices(&kernel, IQN, "4").unwrap(),
            [""; 0].map(PathBuf::from)
        );
    }

    #[test]
    fn a_disk_has_a_link_for_each_portal() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel {
            sys: dir.path().join("sys"),
            dev: dir.path().join("dev"),
        };
        let links = kernel.dev.join("disk/by-path");
        fs::create_dir_all(&links).unwrap();
        let tcp = format!("ip-fd00::1:3260-iscsi-{IQN}-lun-0");
        let card = format!("pci-0000:04:00.2-ip-10.0.0.1:860-iscsi-{IQN}-lun-1");
        for name in [&tcp, &card, &format!("{card}-part1")] {
            fs::write(links.join(name), "").unwrap();
        }
        let path = |portal: &str, lun| path(&kernel, portal, IQN, lun).unwrap();
        assert_eq!(path("[fd00::1]:3260", "0"), Some(links.join(&tcp)));
        assert_eq!(path("10.0.0.1:860", "1"), Some(links.join(&card)));
        assert_eq!(path("10.0.0.1:860", "11"), None);
        assert_eq!(path("0.0.0.1:860", "1"), None);
    }
}
