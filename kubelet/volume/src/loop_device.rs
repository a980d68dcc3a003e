//! Loop devices, with which other kubelets keep the block devices of pods open. Everything here
//! blocks.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{VolumeError, entries, mount};

/// Directory of the block devices in sysfs.
const BLOCK: &str = "/sys/block";

/// Detaches the loop device that is backed by a file, if there is one.
pub(super) fn detach(file: &Path) -> Result<(), VolumeError> {
    // A path without a file identifies no device.
    if !file.exists() {
        return Ok(());
    }
    let Some(device) = device_of(Path::new(BLOCK), file)? else {
        return Ok(());
    };
    let mut command = Command::new("losetup");
    // The device is the value of the option, not an operand.
    command.arg("-d").arg(device);
    mount::run(command).map(drop)
}

/// The loop device that is backed by a file.
fn device_of(block: &Path, file: &Path) -> Result<Option<PathBuf>, VolumeError> {
    let real = fs::canonicalize(file).map_err(|error| VolumeError::io("inspect", file, error))?;
    let behind = |dir: &Path| {
        let path = fs::read_to_string(dir.join("loop/backing_file")).unwrap_or_default();
        let path = path.trim_end();
        let path = Path::new(path.strip_suffix("(deleted)").unwrap_or(path).trim_end());
        path == file || path == real
    };
    let mut devices = entries::children(block)?.into_iter();
    let found = devices.find(|(name, dir)| name.starts_with("loop") && behind(dir));
    Ok(found.map(|(name, _)| Path::new("/dev").join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_of_a_file_is_the_one_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let (block, file) = (dir.path().join("block"), dir.path().join("file"));
        fs::write(&file, "").unwrap();
        assert_eq!(device_of(&block, &file).unwrap(), None);
        for (name, backing) in [("loop0", "/other"), ("loop1", ""), ("sda", "x")] {
            fs::create_dir_all(block.join(name).join("loop")).unwrap();
            fs::write(block.join(name).join("loop/backing_file"), backing).unwrap();
        }
        assert_eq!(device_of(&block, &file).unwrap(), None);
        for suffix in ["\n", " (deleted)\n"] {
            let text = format!("{}{suffix}", file.display());
            fs::write(block.join("loop1/loop/backing_file"), text).unwrap();
            let found = device_of(&block, &file).unwrap();
            assert_eq!(found.as_deref(), Some(Path::new("/dev/loop1")));
        }
        detach(&dir.path().join("none")).unwrap();
    }
}
