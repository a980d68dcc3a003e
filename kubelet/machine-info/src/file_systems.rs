//! The mounted file systems that have a size.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::future::join_all;
use kubelet_host::{
    bounded_io::MEASUREMENTS,
    mount_info::{MountInfo, MountTable},
    repeatable::blocking,
};
use tokio::time::timeout;
use tracing::debug;

use super::format::FileSystem;

/// Most file systems to read.
const MOST: usize = 4096;
/// The time in which a file server has to answer.
const SERVER_TIME: Duration = Duration::from_secs(2);
/// Types whose sizes cAdvisor reads with statfs(2), besides those that begin with `ext` and `nfs`.
const TYPES: [&str; 18] = [
    "btrfs", "exfat", "f2fs", "fat", "hfs", "hfsplus", "iso9660", "jfs", "msdos", "ntfs",
    "overlay", "reiserfs", "squashfs", "tmpfs", "udf", "vfat", "xfs", "zfs",
];

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Partition {
    device_numbers: String,
    mount_point: PathBuf,
    is_remote: bool,
}

/// All file systems, by device. One that does not answer is left out.
pub(super) async fn read(root: PathBuf) -> Vec<FileSystem> {
    let mounts = {
        let root = root.clone();
        blocking(move || MountTable::of(&root).read()).await
    };
    let mounts = match mounts {
        Ok(Ok(mounts)) => mounts,
        Ok(Err(error)) => {
            debug!(%error, "cannot read the mount table");
            return Vec::new();
        }
        // It panicked, which is logged already.
        Err(_) => return Vec::new(),
    };
    let (remote, local): (Vec<_>, Vec<_>) = partitions(&mounts)
        .into_iter()
        .take(MOST)
        .partition(|(_, partition)| partition.is_remote);
    let local = blocking(move || {
        let sizes = local.into_iter();
        let sizes = sizes.filter_map(|(device, at)| size(device, &at.mount_point));
        sizes.collect::<Vec<_>>()
    });
    let mut found = local.await.unwrap_or_default();
    let remote = join_all(remote.into_iter().map(remote_size)).await;
    found.extend(remote.into_iter().flatten());
    found.sort_unstable_by(|one, other| one.device.cmp(&other.device));
    found
}

/// A dead server holds a thread until it answers, for measurements only.
async fn remote_size((device, at): (String, Partition)) -> Option<FileSystem> {
    let answer = async {
        let thread = MEASUREMENTS.acquire(&at.device_numbers).await;
        let work = thread.blocking(move || size(device, &at.mount_point));
        work.await.ok().flatten()
    };
    timeout(SERVER_TIME, answer).await.ok().flatten()
}

/// Blocks on the file system.
fn size(device: String, mount_point: &Path) -> Option<FileSystem> {
    let found = rustix::fs::statvfs(mount_point).ok()?;
    Some(FileSystem {
        device,
        capacity: found.f_blocks.saturating_mul(found.f_frsize),
        kind: "vfs",
        inodes: found.f_files,
        has_inodes: true,
    })
}

/// The first mount of each file system, by cAdvisor's names of devices.
fn partitions(mounts: &[MountInfo]) -> BTreeMap<String, Partition> {
    let mut partitions = BTreeMap::new();
    for mount in mounts {
        let kind = mount.fs_type.as_str();
        let is_remote = kind.starts_with("nfs");
        if !is_remote && !kind.starts_with("ext") && !TYPES.contains(&kind) {
            continue;
        }
        // The source of these is the same for all of them.
        let device = match kind {
            "tmpfs" => mount.mount_point.to_string_lossy().into_owned(),
            "overlay" => format!("{}_{}", mount.source, mount.device.replace(':', "-")),
            _ => mount.source.clone(),
        };
        partitions.entry(device).or_insert_with(|| Partition {
            device_numbers: mount.device.clone(),
            mount_point: mount.mount_point.clone(),
            is_remote,
        });
    }
    partitions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(lines: &str) -> Vec<MountInfo> {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("proc/self");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("mountinfo"), lines).unwrap();
        MountTable::of(root.path()).read().unwrap()
    }

    #[test]
    fn a_file_system_counts_once() {
        let mounts = table(
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
             2 1 8:1 /a /b rw - ext4 /dev/sda1 rw\n\
             3 1 0:5 / /proc rw - proc proc rw\n\
             4 1 0:6 / /run rw - tmpfs tmpfs rw\n\
             5 1 0:7 / /dev/shm rw - tmpfs tmpfs rw\n\
             6 1 0:8 / /merged rw - overlay overlay rw\n\
             7 1 0:9 / /mnt/x rw - nfs4 server:/x rw\n",
        );
        let found = partitions(&mounts);
        let devices: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(
            devices,
            ["/dev/sda1", "/dev/shm", "/run", "overlay_0-8", "server:/x"]
        );
        assert_eq!(found["/dev/sda1"].mount_point, Path::new("/"));
        assert!(found["server:/x"].is_remote && !found["/run"].is_remote);
    }

    #[tokio::test]
    async fn this_machines_file_systems_have_sizes() {
        let found = read("/".into()).await;
        assert!(found.iter().any(|one| one.capacity > 0), "{found:?}");
    }
}
