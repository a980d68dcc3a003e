//! `vol_data.json`: the record of a volume, written before its driver is called. It suffices to
//! remove the volume when nothing else is known about it. It has upstream's keys, and a few that
//! upstream ignores.

use std::{collections::BTreeMap, fs, io, path::Path};

use atomic_file::Durability;
use kubelet_host::mount_info;
use serde::{Deserialize, Serialize};

use super::source::unique_name;
use crate::{VolumeError, mount};

const FILE: &str = "vol_data.json";
/// Changes with each boot of the node.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The record of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct VolumeData {
    /// Name of the driver.
    pub(super) driver_name: String,
    /// The driver's handle of the volume.
    pub(super) volume_handle: String,
    /// Name of the persistent volume, or of the volume in the pod's spec.
    #[serde(rename = "specVolID", skip_serializing_if = "String::is_empty")]
    pub(super) spec_vol_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) node_name: String,
    /// Name of the `VolumeAttachment` of the volume and the node.
    #[serde(rename = "attachmentID", skip_serializing_if = "String::is_empty")]
    pub(super) attachment_id: String,
    /// `Ephemeral` or `Persistent`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) volume_lifecycle_mode: String,
    /// SELinux label that the volume is mounted with.
    #[serde(
        rename = "seLinuxMountContext",
        skip_serializing_if = "String::is_empty"
    )]
    pub(super) selinux_label: String,
    /// Boot id at the time when the driver reported that the volume is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    ready_since_boot: Option<String>,
    /// Device that was mounted at the path then, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    ready_as_mount: Option<String>,
    /// Keys of later versions.
    #[serde(flatten)]
    rest: BTreeMap<String, String>,
}

impl VolumeData {
    /// A record with only the driver and its handle of the volume.
    pub(super) fn new(driver: &str, handle: &str) -> Self {
        Self {
            driver_name: driver.to_owned(),
            volume_handle: handle.to_owned(),
            ..Self::default()
        }
    }

    /// Whether this is the record of a volume.
    pub(super) fn is_of(&self, driver: &str, handle: &str) -> bool {
        self.driver_name == driver && self.volume_handle == handle
    }

    /// Unique name under which the node's status lists the volume, if a controller attached it. The
    /// record does not tell whether the driver requires that.
    pub(super) fn attachment(&self) -> Option<String> {
        let is_known = !self.driver_name.is_empty() && !self.volume_handle.is_empty();
        is_known.then(|| unique_name(&self.driver_name, &self.volume_handle))
    }

    /// The record in a directory, if any.
    pub(super) fn load(dir: &Path) -> Result<Option<Self>, VolumeError> {
        let Some(text) = read(dir)? else {
            return Ok(None);
        };
        let data = serde_json::from_str(&text)
            .map_err(|error| VolumeError::io("understand", &dir.join(FILE), error.into()))?;
        Ok(Some(data))
    }

    /// As [`load`](Self::load), for callers that can write a new record: a partial file, as
    /// upstream leaves one if it is killed while writing, counts as missing.
    pub(super) fn load_whole(dir: &Path) -> Result<Option<Self>, VolumeError> {
        let text = read(dir)?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// Writes the record atomically, even if the machine crashes.
    pub(super) fn save(&self, dir: &Path) -> Result<(), VolumeError> {
        let path = dir.join(FILE);
        let failed = |error| VolumeError::io("write", &path, error);
        let text = serde_json::to_string(self).map_err(|error| failed(error.into()))?;
        atomic_file::replace(&path, (text + "\n").as_bytes(), 0o644, Durability::Synced)
            .map_err(failed)
    }

    /// Removes the record, the mount point, which the driver was asked to release, and their
    /// directory. If the mount point has contents or is still mounted, nothing is removed.
    pub(super) fn remove(dir: &Path, mount_point: &Path) -> Result<(), VolumeError> {
        if mount::is_mounted(mount_point)? {
            let busy = io::Error::other("something is still mounted there");
            return Err(VolumeError::io("remove", mount_point, busy));
        }
        mount::remove_mount_point(mount_point)?;
        let file = dir.join(FILE);
        for file in [atomic_file::temporary(&file), file] {
            mount::remove_mount_point(&file)?;
        }
        mount::remove_mount_point(dir)
    }

    /// Records that the driver has made the volume ready at a path.
    pub(super) fn note_ready(&mut self, path: &Path) -> Result<(), VolumeError> {
        self.ready_since_boot = Some(boot_id()?);
        self.ready_as_mount = mounted(path)?;
        Ok(())
    }

    /// Records that the volume is not ready: its driver is about to be asked to remove it, and may
    /// remove it in part even if that fails. Returns whether the volume was ready before.
    pub(super) fn note_unready(&mut self) -> bool {
        self.ready_as_mount = None;
        self.ready_since_boot.take().is_some()
    }

    /// Whether the volume is still ready at a path, as recorded.
    pub(super) fn is_ready(&self, path: &Path) -> Result<bool, VolumeError> {
        let noted = self.ready_since_boot.is_some();
        if !noted || self.ready_since_boot != Some(boot_id()?) {
            return Ok(false);
        }
        match &self.ready_as_mount {
            Some(device) => Ok(mounted(path)?.as_ref() == Some(device)),
            None => Ok(fs::symlink_metadata(path).is_ok()),
        }
    }
}

/// As [`VolumeData::attachment`], of the record in a directory.
pub(super) fn attachment_on_disk(dir: &Path) -> Option<String> {
    VolumeData::load_whole(dir).ok()??.attachment()
}

fn read(dir: &Path) -> Result<Option<String>, VolumeError> {
    let path = dir.join(FILE);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(VolumeError::io("read", &path, error)),
    }
}

/// Device of the mount at a path.
fn mounted(path: &Path) -> Result<Option<String>, VolumeError> {
    let mount = mount_info::at(path)
        .map_err(|error| VolumeError::io("check for mounts at", path, error))?;
    Ok(mount.map(|mount| mount.device))
}

fn boot_id() -> Result<String, VolumeError> {
    let path = Path::new(BOOT_ID);
    let id = fs::read_to_string(path).map_err(|error| VolumeError::io("read", path, error))?;
    Ok(id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_upstream_writes_it() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(VolumeData::load(dir.path()).unwrap(), None);
        let text = r#"{"attachmentID":"csi-1","driverName":"d.example.com","nodeName":"n",
            "specVolID":"pv","volumeHandle":"h","volumeLifecycleMode":"Persistent","new":"x"}"#;
        fs::write(dir.path().join(FILE), text).unwrap();
        let data = VolumeData::load(dir.path()).unwrap().unwrap();
        assert_eq!(data.driver_name, "d.example.com");
        assert_eq!(
            (data.volume_handle.as_str(), data.spec_vol_id.as_str()),
            ("h", "pv")
        );
        data.save(dir.path()).unwrap();
        let again = fs::read_to_string(dir.path().join(FILE)).unwrap();
        let (text, again): (serde_json::Value, serde_json::Value) = (
            serde_json::from_str(text).unwrap(),
            serde_json::from_str(&again).unwrap(),
        );
        assert_eq!(again, text);
    }

    #[test]
    fn what_was_ready_is_not_after_the_node_started_anew() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("mount");
        let mut data = VolumeData::default();
        assert!(!data.is_ready(&target).unwrap());
        fs::create_dir(&target).unwrap();
        assert!(!data.is_ready(&target).unwrap());
        data.note_ready(&target).unwrap();
        data.save(dir.path()).unwrap();
        let mut data = VolumeData::load(dir.path()).unwrap().unwrap();
        assert!(data.is_ready(&target).unwrap());
        data.ready_as_mount = Some("0:1".to_owned());
        assert!(!data.is_ready(&target).unwrap());
        data.ready_as_mount = None;
        assert!(data.is_ready(&target).unwrap());
        data.ready_since_boot = Some("earlier".to_owned());
        assert!(!data.is_ready(&target).unwrap());
        // A volume that is being removed is not ready either.
        data.note_ready(&target).unwrap();
        assert!(data.note_unready());
        assert!(!data.is_ready(&target).unwrap());
        assert!(!data.note_unready());
    }

    #[test]
    fn half_a_file_tells_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for half in ["", "{\"driverName\":\"d"] {
            fs::write(dir.path().join(FILE), half).unwrap();
            assert_eq!(VolumeData::load_whole(dir.path()).unwrap(), None);
            // Without a record, a volume cannot be removed.
            let error = VolumeData::load(dir.path()).unwrap_err();
            assert!(error.to_string().contains(FILE), "{error}");
        }
    }

    #[test]
    fn data_in_a_volume_is_never_removed() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("pv");
        let target = volume.join("mount");
        fs::create_dir_all(&target).unwrap();
        VolumeData::default().save(&volume).unwrap();
        fs::write(target.join("precious"), "x").unwrap();
        VolumeData::remove(&volume, &target).unwrap_err();
        assert!(VolumeData::load(&volume).unwrap().is_some());
        fs::remove_file(target.join("precious")).unwrap();
        VolumeData::remove(&volume, &target).unwrap();
        assert!(!volume.exists());
        VolumeData::remove(&volume, &target).unwrap();
    }
}
