//! File systems: the kubelet's own, and what images and writable layers use of the runtime's.

use std::{collections::HashMap, io, path::Path};

use cgroup_stats::DeviceNames;
use cri_proto::runtime::v1::{self, FilesystemUsage};
use jiff::Timestamp;
use kubelet_host::clock;

/// A file system. What is not known is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSystem {
    /// When it was measured.
    pub at: Timestamp,
    /// In bytes, like `available` and `used`.
    pub capacity: Option<u64>,
    /// What unprivileged users may still use.
    pub available: Option<u64>,
    /// What is used.
    pub used: Option<u64>,
    /// All inodes.
    pub inodes: Option<u64>,
    /// Inodes that are free.
    pub inodes_free: Option<u64>,
    /// Inodes that are used.
    pub inodes_used: Option<u64>,
    /// The path of the device, or its numbers.
    pub device: Option<String>,
}

/// What a container's writable layer uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WritableLayer {
    /// When it was measured, in nanoseconds since the epoch.
    pub at: i64,
    /// Bytes.
    pub used: Option<u64>,
    /// Inodes.
    pub inodes_used: Option<u64>,
}

/// The file systems of images and containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageFileSystems {
    /// Where the images are.
    pub images: FileSystem,
    /// Where the writable layers are.
    pub containers: FileSystem,
}

impl FileSystem {
    /// The file system of a path; blocking.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn of(path: &Path, devices: &mut DeviceNames) -> io::Result<Self> {
        let found = rustix::fs::statvfs(path)?;
        let device = rustix::fs::stat(path)?.st_dev;
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let bytes = |blocks: u64| Some(blocks.saturating_mul(found.f_frsize));
        Ok(Self {
            at: clock::now(),
            capacity: bytes(found.f_blocks),
            available: bytes(found.f_bavail),
            used: bytes(found.f_blocks.saturating_sub(found.f_bfree)),
            inodes: Some(found.f_files),
            inodes_free: Some(found.f_ffree),
            inodes_used: Some(found.f_files.saturating_sub(found.f_ffree)),
            device: Some(devices.path(&format!("{major}:{minor}")).to_owned()),
        })
    }

    /// What the runtime uses of a file system; blocking. Without the capacity if the file system is
    /// not on this machine.
    fn used_by_runtime(usage: &FilesystemUsage, devices: &mut DeviceNames) -> Self {
        let path = usage.fs_id.as_ref().map(|id| id.mountpoint.as_str());
        let whole = path.and_then(|path| Self::of(Path::new(path), devices).ok());
        let number = |value: &Option<v1::UInt64Value>| value.as_ref().map(|value| value.value);
        Self {
            at: Timestamp::from_nanosecond(usage.timestamp.into()).unwrap_or_default(),
            used: number(&usage.used_bytes),
            inodes_used: number(&usage.inodes_used),
            ..whole.unwrap_or_default()
        }
    }
}

impl ImageFileSystems {
    /// The file systems as a whole, whatever the runtime uses of them; blocking. `None` if the
    /// runtime reports none, or they are not on this machine.
    pub(crate) fn whole(reported: &v1::ImageFsInfoResponse) -> Option<Self> {
        let mut devices = DeviceNames::default();
        let mut whole = |usage: &FilesystemUsage| {
            let path = &usage.fs_id.as_ref()?.mountpoint;
            FileSystem::of(Path::new(path), &mut devices).ok()
        };
        let images = whole(reported.image_filesystems.first()?)?;
        let containers = match reported.container_filesystems.first() {
            Some(usage) => whole(usage)?,
            None => images.clone(),
        };
        Some(Self { images, containers })
    }

    /// Takes the first of each kind, as upstream; blocking. `None` if the runtime reports none.
    pub(crate) fn read(reported: &v1::ImageFsInfoResponse) -> Option<Self> {
        let mut devices = DeviceNames::default();
        let mut used = |usage| FileSystem::used_by_runtime(usage, &mut devices);
        let images = used(reported.image_filesystems.first()?);
        let containers = reported.container_filesystems.first();
        Some(Self {
            containers: containers.map_or_else(|| images.clone(), used),
            images,
        })
    }
}

/// The writable layers by container ID.
pub(crate) fn writable_layers(stats: &[v1::ContainerStats]) -> HashMap<String, WritableLayer> {
    let layers = stats.iter().filter_map(|stats| {
        let layer = writable_layer(stats)?;
        Some((stats.attributes.as_ref()?.id.clone(), layer))
    });
    layers.collect()
}

pub(crate) fn writable_layer(stats: &v1::ContainerStats) -> Option<WritableLayer> {
    let layer = stats.writable_layer.as_ref()?;
    Some(WritableLayer {
        at: layer.timestamp,
        used: layer.used_bytes.map(|value| value.value),
        inodes_used: layer.inodes_used.map(|value| value.value),
    })
}

#[cfg(test)]
mod tests {
    use cri_proto::runtime::v1::{FilesystemIdentifier, ImageFsInfoResponse, UInt64Value};

    use super::*;

    #[test]
    fn the_runtimes_usage_is_completed_by_the_file_systems_size() {
        let usage = |mountpoint: &str, bytes| FilesystemUsage {
            timestamp: 1_000_000_000,
            fs_id: Some(FilesystemIdentifier {
                mountpoint: mountpoint.to_owned(),
            }),
            used_bytes: Some(UInt64Value { value: bytes }),
            inodes_used: None,
        };
        let read = |images, containers| {
            ImageFileSystems::read(&ImageFsInfoResponse {
                image_filesystems: images,
                container_filesystems: containers,
            })
        };
        let whole = FileSystem::of(Path::new("/"), &mut DeviceNames::default()).unwrap();
        let found = read(vec![usage("/", 7), usage("/", 8)], vec![]).unwrap();
        assert_eq!(found.images.used, Some(7));
        assert_eq!(found.images.capacity, whole.capacity);
        assert_eq!(found.images.at.as_second(), 1);
        assert_eq!(found.containers, found.images);
        let found = read(vec![usage("/", 7)], vec![usage("/not/here", 9)]).unwrap();
        assert_eq!(
            (found.containers.used, found.containers.capacity),
            (Some(9), None)
        );
        assert_eq!(read(vec![], vec![usage("/", 7)]), None);

        let all_of = |images, containers| {
            ImageFileSystems::whole(&ImageFsInfoResponse {
                image_filesystems: images,
                container_filesystems: containers,
            })
        };
        let found = all_of(vec![usage("/", 7)], vec![]).unwrap();
        assert_eq!(found.images.capacity, whole.capacity);
        assert_ne!(found.images.used, Some(7));
        assert_eq!(found.containers, found.images);
        assert_eq!(all_of(vec![usage("/not/here", 7)], vec![]), None);
        assert_eq!(
            all_of(vec![usage("/", 7)], vec![usage("/not/here", 9)]),
            None
        );
    }
}
