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

/// The session with a portal of a target.
fn with(kernel: &Kernel, iqn: &str, portal: &str) -> Result<Option<Session>, VolumeError> {
    for session in all(kernel, iqn)? {
        for (connection, dir) in children(&session.dir)? {
            if !connection.starts_with("connection") {
                continue;
            }
            let dir = dir.join("iscsi_connection").join(&connection);
            let is_at = |address: &str, port: &str| {
                let address = text(&dir.join(address));
                let at = address.zip(text(&dir.join(port)));
                at.is_some_and(|(address, port)| {
                    let address = match address.contains(':') {
                        true => format!("[{address}]"),
                        false => address,
                    };
                    portal == format!("{address}:{port}")
                })
            };
            if is_at("address", "port") || is_at("persistent_address", "persistent_port") {
                return Ok(Some(session));
            }
        }
    }
    Ok(None)
}

/// Number of the SCSI host of the session with a portal of a target.
pub(super) fn host(kernel: &Kernel, iqn: &str, portal: &str) -> Result<Option<u32>, VolumeError> {
    Ok(with(kernel, iqn, portal)?.map(|session| session.host))
}

/// The block device of a logical unit, by the session with a portal. The links of udev are not
/// used: they may still lead to a device that had the name before.
pub(super) fn device(
    kernel: &Kernel,
    portal: &str,
    iqn: &str,
    lun: &str,
) -> Result<Option<PathBuf>, VolumeError> {
    let Some(session) = with(kernel, iqn, portal)? else {
        return Ok(None);
    };
    Ok(session
        .devices(kernel, lun)?
        .into_iter()
        .find(|device| device.exists()))
}

/// The block devices of a logical unit: one for each session.
pub(super) fn devices(kernel: &Kernel, iqn: &str, lun: &str) -> Result<Vec<PathBuf>, VolumeError> {
    let mut devices = Vec::new();
    for session in all(kernel, iqn)? {
        devices.extend(session.devices(kernel, lun)?);
    }
    Ok(devices)
}

impl Session {
    fn devices(&self, kernel: &Kernel, lun: &str) -> Result<Vec<PathBuf>, VolumeError> {
        let host = self.host;
        let unit = format!("target{host}:0:0/{host}:0:0:{lun}/block");
        let names = children(&self.dir.join(unit))?.into_iter();
        Ok(names.map(|(name, _)| kernel.dev.join(name)).collect())
    }
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
            ..Kernel::default()
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
}
