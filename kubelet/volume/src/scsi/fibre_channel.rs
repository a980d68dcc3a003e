//! `fc`: a disk of a Fibre Channel target. The fabric decides which targets the node's adapters
//! see; the kubelet only looks for the disk.
//!
//! The directory of a disk is `<wwn>[-<wwn>...]-lun-<lun>`, or `<wwid>[-<wwid>...]`. Its record is
//! below its mount, and only in the directory of a disk that was used.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use atomic_file::Durability;
use futures::future::FutureExt as _;
use k8s_openapi::api::core::v1::FCVolumeSource;
use kubelet_pod_spec::{
    field::{self, Faults},
    validation::mounts,
};
use serde::{Deserialize, Serialize};
use tokio::{sync::Mutex, time::sleep};
use tracing::debug;

use super::{
    disk_plugin::{DiskDirs, DiskSource, Transport, names},
    kernel::Kernel,
};
use crate::{
    VolumeError, VolumeHost, blocking_on_own_files, blocking_on_server, mount,
    plugin::PluginFuture, spec::VolumeSpec,
};

const LUN: &str = "lun";
/// Seconds until a disk must have appeared after the scan.
const DEVICE_LIMIT: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);
/// Name of the record.
const FILE: &str = "fc.json";

/// Disks of Fibre Channel targets.
#[derive(Debug, Default)]
pub(crate) struct FibreChannel {
    kernel: Kernel,
    /// Lets one disk at a time appear or go.
    turn: Mutex<()>,
}

/// A disk: a logical unit of a target with several ports, or a disk with several names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FcDisk {
    Unit { wwns: Vec<String>, lun: String },
    Names(Vec<String>),
}

impl FcDisk {
    fn of(source: &FCVolumeSource) -> Self {
        let wwns = source.target_wwns.clone().unwrap_or_default();
        match source.lun {
            Some(lun) if !wwns.is_empty() => Self::Unit {
                wwns,
                lun: lun.to_string(),
            },
            _ => {
                let names = source.wwids.iter().flatten();
                // As in the links of udev.
                Self::Names(names.map(|name| name.replace(' ', "_")).collect())
            }
        }
    }

    /// The disk that a directory is named after.
    fn named(device: &str) -> Self {
        let parts: Vec<String> = device.split('-').map(str::to_owned).collect();
        match &parts[..] {
            [wwns @ .., before, lun] if before == LUN && !wwns.is_empty() => Self::Unit {
                wwns: wwns.to_vec(),
                lun: lun.clone(),
            },
            _ => Self::Names(parts),
        }
    }

    /// Name of the disk's directory.
    fn device(&self) -> String {
        match self {
            Self::Unit { wwns, lun } => format!("{}-{LUN}-{lun}", wwns.join("-")),
            Self::Names(names) => names.join("-"),
        }
    }

    /// The disk of a directory that nothing is mounted at: by its record, or, if upstream's kubelet
    /// had mounted it there, by a name that can only mean one disk.
    fn of_directory(dir: &Path, name: &str, was_mounted: bool) -> Option<Self> {
        let record = fs::read(dir.join(FILE)).ok();
        let recorded = record.and_then(|json| serde_json::from_slice(&json).ok());
        if recorded.is_some() {
            return recorded;
        }
        let is_port = |wwn: &String| wwn.bytes().all(|byte| byte.is_ascii_hexdigit());
        let named = Self::named(name);
        let is_clear = match &named {
            Self::Unit { wwns, .. } => wwns.iter().all(is_port),
            Self::Names(names) => names.len() == 1,
        };
        (was_mounted && is_clear).then_some(named)
    }

    /// What identifies the disk among the node's attached volumes.
    fn volume(&self) -> String {
        match self {
            Self::Unit { wwns, lun } => format!("[{}]:{lun}", wwns.join(" ")),
            Self::Names(names) => format!("[{}]", names.join(" ")),
        }
    }

    /// The links that udev makes to the disk.
    fn links(&self, kernel: &Kernel) -> Result<Vec<PathBuf>, VolumeError> {
        let kind = match self {
            Self::Unit { .. } => "by-path",
            Self::Names(_) => "by-id",
        };
        let mut links = kernel.links(kind)?;
        links.retain(|(link, _)| self.has_link(link));
        Ok(links.into_iter().map(|(_, path)| path).collect())
    }

    fn has_link(&self, link: &str) -> bool {
        match self {
            Self::Unit { wwns, lun } => wwns.iter().any(|wwn| {
                let adapter = link.strip_suffix(&format!("fc-0x{wwn}-lun-{lun}"));
                adapter.is_some_and(|a| a.is_empty() || a.starts_with("pci-") && a.ends_with('-'))
            }),
            Self::Names(names) => {
                let name = link.strip_prefix("scsi-");
                name.is_some_and(|name| names.iter().any(|known| known == name))
            }
        }
    }
}

impl Transport for FibreChannel {
    type Disk = FcDisk;
    const NAME: &'static str = "kubernetes.io/fc";
    const FIELD: &'static str = "fc";

    fn source(spec: &VolumeSpec, _: &str) -> Option<DiskSource<FcDisk>> {
        let (source, read_only) = match spec.inline() {
            Some(volume) => {
                let source = volume.fc.as_ref()?;
                (source, source.read_only.unwrap_or_default())
            }
            None => (
                spec.persistent()?.spec.as_ref()?.fc.as_ref()?,
                spec.read_only,
            ),
        };
        let disk = FcDisk::of(source);
        let volume = match &disk {
            FcDisk::Unit { .. } => disk.volume(),
            // With the spaces of the spec.
            FcDisk::Names(_) => FcDisk::Names(source.wwids.clone().unwrap_or_default()).volume(),
        };
        Some(DiskSource {
            device: disk.device(),
            volume,
            fs_type: source.fs_type.clone(),
            read_only,
            disk,
        })
    }

    fn validate(disk: &FcDisk, field: &field::Path, faults: &mut Faults) {
        match disk {
            FcDisk::Unit { wwns, lun } => {
                for (index, wwn) in wwns.iter().enumerate() {
                    let field = field.child("targetWWNs").index(index);
                    faults.required_text(&field, wwn, mounts::fc_port);
                }
                let lun = lun.parse().unwrap_or(-1);
                faults.range(&field.child(LUN), lun, 0, 255);
            }
            FcDisk::Names(names) if names.is_empty() => {
                faults.required(&field.child("targetWWNs"), "with lun, or wwids");
            }
            FcDisk::Names(names) => {
                for (index, name) in names.iter().enumerate() {
                    let field = field.child("wwids").index(index);
                    faults.required_text(&field, name, mounts::fc_disk);
                }
            }
        }
    }

    fn devices(root: &Path) -> Result<Vec<String>, VolumeError> {
        names(root)
    }

    fn volume_of(device: &str) -> Option<String> {
        Some(FcDisk::named(device).volume())
    }

    fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    fn attach<'a>(
        &'a self,
        disk: &'a FcDisk,
        dir: &'a Path,
        _: &'a VolumeHost,
    ) -> PluginFuture<'a, PathBuf> {
        async move {
            let _turn = self.turn.lock().await;
            let path = dir.to_owned();
            blocking_on_own_files(move || mount::make_dir(&path, 0o750)).await?;
            let device = self.find(disk).await?;
            let (file, disk) = (dir.join(FILE), disk.clone());
            blocking_on_own_files(move || {
                let failed = |error| VolumeError::io("write", &file, error);
                let json = serde_json::to_vec(&disk).map_err(|error| failed(error.into()))?;
                atomic_file::replace(&file, &json, 0o640, Durability::Synced).map_err(failed)
            })
            .await?;
            Ok(device)
        }
        .boxed()
    }

    fn paths(kernel: &Kernel, disk: &FcDisk) -> Result<Vec<PathBuf>, VolumeError> {
        disk.links(kernel)
    }

    fn detach<'a>(
        &'a self,
        dirs: DiskDirs,
        device: &'a str,
        was_mounted: bool,
    ) -> PluginFuture<'a, ()> {
        async move {
            let _turn = self.turn.lock().await;
            let (kernel, device) = (self.kernel.clone(), device.to_owned());
            let dir = dirs.path(&device);
            blocking_on_server(&format!("{}/{device}", Self::NAME), move || {
                let name = DiskDirs::disk(&device);
                let disk = FcDisk::of_directory(&dir, name, was_mounted);
                let mut others = dirs.all::<Self>()?;
                others.retain(|other| *other != device && DiskDirs::disk(other) == name);
                if let Some(disk) = disk.filter(|_| others.is_empty()) {
                    kernel.remove(&disk.links(&kernel)?)?;
                }
                mount::remove_contents(&dir)
            })
            .await
        }
        .boxed()
    }

    fn forget(dir: &Path) -> Result<(), VolumeError> {
        mount::remove_mount_point(&dir.join(FILE))
    }
}

impl FibreChannel {
    /// The device of a disk, after a scan if there is no multipath device.
    async fn find(&self, disk: &FcDisk) -> Result<PathBuf, VolumeError> {
        for second in 0..=DEVICE_LIMIT {
            let (kernel, disk) = (self.kernel.clone(), disk.clone());
            let device = blocking_on_server(Self::NAME, move || {
                let links = disk.links(&kernel)?;
                let map = kernel.multipath(&links)?;
                // A scan may find more paths, and udev then makes a multipath device.
                if second == 0 && map.is_none() {
                    scan(&kernel)?;
                    return Ok(None);
                }
                Ok(map.or_else(|| links.first().cloned()))
            });
            if let Some(device) = device.await? {
                return Ok(device);
            }
            sleep(SECOND).await;
        }
        Err(VolumeError::Other("no fc disk found".into()))
    }
}

/// Makes the kernel look for disks at all adapters.
fn scan(kernel: &Kernel) -> Result<(), VolumeError> {
    for host in names(&kernel.sys.join("class/scsi_host"))? {
        if let Err(error) = kernel.scan(&host, "- - -") {
            debug!(host, %error, "cannot scan a SCSI host");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
