//! `vol_data.json`: what is written down of a volume before its driver is asked for it, to
//! give it back by when nothing else is known of it. Its keys are upstream's, and a few
//! that upstream passes over.

use std::{collections::BTreeMap, fs, io, path::Path};

use serde::{Deserialize, Serialize};

use crate::volume::{VolumeError, mount, mount_info};

const FILE: &str = "vol_data.json";
const NEW_FILE: &str = ".vol_data.json.new";
/// Another one with each start of the node.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What is written down of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct VolumeData {
    /// The driver.
    pub(super) driver_name: String,
    /// What the driver knows the volume by.
    pub(super) volume_handle: String,
    /// Name of the persistent volume, or of the volume in the pod's spec.
    #[serde(rename = "specVolID", skip_serializing_if = "String::is_empty")]
    pub(super) spec_vol_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) node_name: String,
    /// Name of the object that says that the volume is attached to the node.
    #[serde(rename = "attachmentID", skip_serializing_if = "String::is_empty")]
    pub(super) attachment_id: String,
    /// `Ephemeral` or `Persistent`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) volume_lifecycle_mode: String,
    /// The driver said that it is ready: during this run of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    ready_since_boot: Option<String>,
    /// The driver mounted something there.
    #[serde(skip_serializing_if = "Option::is_none")]
    ready_as_mount: Option<String>,
    /// What later versions write.
    #[serde(flatten)]
    rest: BTreeMap<String, String>,
}

impl VolumeData {
    /// Of a volume that is known to its driver alone.
    pub(super) fn new(driver: &str, handle: &str) -> Self {
        Self {
            driver_name: driver.to_owned(),
            volume_handle: handle.to_owned(),
            ..Self::default()
        }
    }

    /// What is written down in a directory, if anything.
    pub(super) fn load(dir: &Path) -> Result<Option<Self>, VolumeError> {
        let path = dir.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(VolumeError::io("read", &path, error)),
        };
        let data = serde_json::from_str(&text)
            .map_err(|error| VolumeError::io("understand", &path, error.into()))?;
        Ok(Some(data))
    }

    /// Writes it down, whole or not at all.
    pub(super) fn save(&self, dir: &Path) -> Result<(), VolumeError> {
        let path = dir.join(FILE);
        let new = dir.join(NEW_FILE);
        let failed = |error| VolumeError::io("write", &path, error);
        let text = serde_json::to_string(self).map_err(|error| failed(error.into()))?;
        fs::write(&new, text + "\n").map_err(failed)?;
        fs::rename(&new, &path).map_err(failed)
    }

    /// Removes it with its directory and the mount point in there, of which the driver was
    /// asked to let go. What is in the mount point is left, and so is everything then.
    pub(super) fn remove(dir: &Path, mount_point: &Path) -> Result<(), VolumeError> {
        if mount::is_mounted(mount_point)? {
            let busy = io::Error::other("something is still mounted there");
            return Err(VolumeError::io("remove", mount_point, busy));
        }
        mount::remove_mount_point(mount_point)?;
        for file in [FILE, NEW_FILE] {
            mount::remove_mount_point(&dir.join(file))?;
        }
        mount::remove_mount_point(dir)
    }

    /// Notes that the driver has made the volume ready at a path.
    pub(super) fn note_ready(&mut self, path: &Path) -> Result<(), VolumeError> {
        self.ready_since_boot = Some(boot_id()?);
        self.ready_as_mount = mounted(path)?;
        Ok(())
    }

    /// Whether the volume is still ready at a path as it was noted.
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

/// The device of what is mounted at a path.
fn mounted(path: &Path) -> Result<Option<String>, VolumeError> {
    let mount =
        mount_info::at(path).map_err(|error| VolumeError::io("look for mounts at", path, error))?;
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
        data.ready_since_boot = Some("earlier".to_owned());
        assert!(!data.is_ready(&target).unwrap());
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
