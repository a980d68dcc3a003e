//! Small file systems of a test's own, so that a test can fill a disk without harm.

use std::{fs::File, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

/// The file systems of a node, in MiB. A directory without one is on the machine's disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disks {
    /// That of the kubelet's root directory.
    pub kubelet: Option<u64>,
    /// That of the runtime: its images and writable layers.
    pub runtime: Option<u64>,
}

/// An ext4 file system in a file. It is unmounted when dropped.
#[derive(Debug)]
pub(crate) struct SmallDisk {
    mount_point: std::path::PathBuf,
}

impl SmallDisk {
    /// Makes a file system in the file `image`, and mounts it.
    pub(crate) fn mount(image: &Path, mount_point: &Path, mebibytes: u64) -> Result<Self> {
        File::create_new(image)?.set_len(mebibytes << 20)?;
        std::fs::create_dir_all(mount_point)?;
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(image))?;
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(image)
            .arg(mount_point))?;
        Ok(Self {
            mount_point: mount_point.to_owned(),
        })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A process that ends at the moment may still use it.
        let _ = Command::new("umount")
            .arg("-l")
            .arg(&self.mount_point)
            .status();
    }
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().context("no e2fsprogs or mount")?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {text}");
    Ok(())
}
