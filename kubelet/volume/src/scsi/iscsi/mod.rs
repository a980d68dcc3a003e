//! `iscsi`: a disk of an iSCSI target. The kubelet opens the sessions with the target by
//! `iscsiadm`; the controller of the cluster only decides which node has the disk.
//!
//! The directory of a disk is `iface-<interface>/<portal>-<iqn>-lun-<lun>`. As long as it exists,
//! the sessions with its target stay.

mod iscsiadm;
mod sessions;
mod target;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use futures::future::FutureExt as _;
use kubelet_pod_spec::field::{self, Faults};
use parking_lot::Mutex;
use tokio::time::sleep;
use tracing::debug;

use self::{
    iscsiadm::{Credentials, Iscsiadm},
    target::{IscsiDisk, IscsiTarget},
};
use super::{
    disk_plugin::{DiskDirs, DiskSource, Transport, names},
    kernel::Kernel,
};
use crate::{
    VolumeError, VolumeHost, blocking_on_own_files, blocking_on_server, mount,
    plugin::PluginFuture, spec::VolumeSpec,
};

/// Attempts to reach a disk by all of its portals, and the number of attempts after which two paths
/// are enough; as upstream.
const ATTEMPTS: u32 = 5;
const ENOUGH_ATTEMPTS: u32 = 2;
const ENOUGH_PATHS: usize = 2;
/// Seconds until a disk must have appeared after the login, and its multipath device after it.
const DEVICE_LIMIT: u32 = 30;
const MULTIPATH_LIMIT: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// Disks of iSCSI targets.
#[derive(Debug, Default)]
pub(crate) struct Iscsi {
    kernel: Kernel,
    iscsiadm: Iscsiadm,
    turns: Turns,
}

/// Lets one volume at a time open or end the sessions with a target.
#[derive(Debug, Default)]
struct Turns(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl Turns {
    async fn take(&self, iqn: &str) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock();
            turns.retain(|_, turn| turn.strong_count() > 0);
            let known = turns.get(iqn).and_then(Weak::upgrade);
            let turn = known.unwrap_or_default();
            turns.insert(iqn.to_owned(), Arc::downgrade(&turn));
            turn
        };
        turn.lock_owned().await
    }
}

impl Transport for Iscsi {
    type Disk = IscsiTarget;
    const NAME: &'static str = "kubernetes.io/iscsi";
    const FIELD: &'static str = "iscsi";

    fn source(spec: &VolumeSpec, namespace: &str) -> Option<DiskSource<IscsiTarget>> {
        target::source(spec, namespace)
    }

    fn validate(disk: &IscsiTarget, field: &field::Path, faults: &mut Faults) {
        disk.validate(field, faults);
    }

    fn devices(root: &Path) -> Result<Vec<String>, VolumeError> {
        let mut all = Vec::new();
        for interface in names(root)? {
            if interface.starts_with(target::INTERFACE) {
                let disks = names(&root.join(&interface))?.into_iter();
                all.extend(disks.map(|disk| format!("{interface}/{disk}")));
            }
        }
        Ok(all)
    }

    fn volume_of(device: &str) -> Option<String> {
        let disk = IscsiDisk::named(device)?;
        Some(disk.volume(&disk.portals[0]))
    }

    fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    fn attach<'a>(
        &'a self,
        disk: &'a IscsiTarget,
        dir: &'a Path,
        host: &'a VolumeHost,
    ) -> PluginFuture<'a, PathBuf> {
        async move {
            let credentials = credentials(disk, host).await?;
            let disk = &disk.disk;
            let _turn = self.turns.take(&disk.iqn).await;
            let (path, record) = (dir.to_owned(), disk.clone());
            blocking_on_own_files(move || {
                mount::make_dir(&path, 0o750)?;
                record.save(&path)
            })
            .await?;
            self.log_in(disk, &credentials).await
        }
        .boxed()
    }

    fn paths(kernel: &Kernel, disk: &IscsiTarget) -> Result<Vec<PathBuf>, VolumeError> {
        let disk = &disk.disk;
        let portals = disk.portals.iter();
        let devices = portals.map(|portal| sessions::device(kernel, portal, &disk.iqn, &disk.lun));
        devices.filter_map(Result::transpose).collect()
    }

    fn detach<'a>(&'a self, dirs: DiskDirs, device: &'a str, _: bool) -> PluginFuture<'a, ()> {
        self.log_out(dirs, device.to_owned()).boxed()
    }
}

impl Iscsi {
    /// The device of a disk, after logging in to its target by all of its portals.
    async fn log_in(
        &self,
        disk: &IscsiDisk,
        credentials: &Credentials,
    ) -> Result<PathBuf, VolumeError> {
        let mut paths: HashMap<&str, PathBuf> = HashMap::new();
        let mut last = None;
        for attempt in 1..=ATTEMPTS {
            for portal in &disk.portals {
                if paths.contains_key(portal.as_str()) {
                    continue;
                }
                match self.reach(disk, portal, credentials).await {
                    Ok(path) => drop(paths.insert(portal, path)),
                    Err(error) => {
                        debug!(portal, iqn = disk.iqn, %error, "cannot reach an iSCSI disk");
                        last = Some(error);
                    }
                }
            }
            let is_enough = paths.len() >= ENOUGH_PATHS && attempt >= ENOUGH_ATTEMPTS;
            if paths.is_empty() || paths.len() == disk.portals.len() || is_enough {
                break;
            }
        }
        let known = disk
            .portals
            .iter()
            .find_map(|portal| paths.get(portal.as_str()));
        let Some(first) = known.cloned() else {
            let iscsiadm = self.iscsiadm.clone();
            let disk = disk.clone();
            let tidied = blocking_on_own_files(move || iscsiadm.remove_interface(&disk));
            drop(tidied.await);
            let none = || VolumeError::Other("it has no portal".into());
            return Err(last.unwrap_or_else(none));
        };
        // It is made after the paths, and usually not for one portal.
        let limit = if disk.portals.len() > 1 {
            MULTIPATH_LIMIT
        } else {
            1
        };
        for second in 1..=limit {
            let (kernel, paths) = (
                self.kernel.clone(),
                paths.values().cloned().collect::<Vec<_>>(),
            );
            let map = blocking_on_own_files(move || kernel.multipath(&paths)).await?;
            if let Some(map) = map {
                return Ok(map);
            }
            if second < limit {
                sleep(SECOND).await;
            }
        }
        Ok(first)
    }

    /// The device of a disk by one of its portals, after logging in there.
    async fn reach(
        &self,
        disk: &IscsiDisk,
        portal: &str,
        credentials: &Credentials,
    ) -> Result<PathBuf, VolumeError> {
        let (kernel, iscsiadm) = (self.kernel.clone(), self.iscsiadm.clone());
        let (its, at, credentials) = (disk.clone(), portal.to_owned(), credentials.clone());
        blocking_on_server(portal, move || {
            let host = match sessions::host(&kernel, &its.iqn, &at)? {
                Some(host) => host,
                None => {
                    iscsiadm.make_interface(&its)?;
                    iscsiadm.log_in(&its, &at, &credentials)?;
                    let host = sessions::host(&kernel, &its.iqn, &at)?;
                    host.ok_or_else(|| {
                        let why = format!("no session with portal {at} after the login");
                        VolumeError::Other(why.into())
                    })?
                }
            };
            // Only this logical unit, and no other one of the target.
            kernel.scan(&format!("host{host}"), &format!("0 0 {}", its.lun))
        })
        .await?;
        let limit = DEVICE_LIMIT;
        for second in 1..=limit {
            let (kernel, its, at) = (self.kernel.clone(), disk.clone(), portal.to_owned());
            let path =
                blocking_on_own_files(move || sessions::device(&kernel, &at, &its.iqn, &its.lun));
            if let Some(path) = path.await? {
                return Ok(path);
            }
            if second < limit {
                sleep(SECOND).await;
            }
        }
        let IscsiDisk { iqn, lun, .. } = disk;
        let why = format!(
            "logical unit {lun} of {iqn} did not appear at portal {portal} in {limit} seconds"
        );
        Err(VolumeError::Other(why.into()))
    }

    /// Ends the sessions with a disk's target, unless another disk needs them.
    async fn log_out(&self, dirs: DiskDirs, device: String) -> Result<(), VolumeError> {
        let (path, name) = (dirs.path(&device), device.clone());
        let disk = blocking_on_own_files(move || IscsiDisk::load(&path, &name)).await?;
        let _turn = self.turns.take(&disk.iqn).await;
        let (kernel, iscsiadm) = (self.kernel.clone(), self.iscsiadm.clone());
        let portal = disk.portals[0].clone();
        blocking_on_server(&portal, move || {
            let mut others = dirs.all::<Self>()?;
            others.retain(|other| *other != device && disk.is_beside(other));
            if !others.iter().any(|other| disk.is_same(other)) {
                let devices = sessions::devices(&kernel, &disk.iqn, &disk.lun)?;
                kernel.remove(&devices)?;
            }
            if others.is_empty() {
                iscsiadm.log_out(&disk)?;
            }
            mount::remove_contents(&dirs.path(&device))
        })
        .await
    }
}

/// The CHAP credentials of a disk.
async fn credentials(target: &IscsiTarget, host: &VolumeHost) -> Result<Credentials, VolumeError> {
    let mut credentials = Credentials {
        chap: target.chap,
        ..Credentials::default()
    };
    let is_used = target.chap.discovery || target.chap.session;
    if let Some(reference) = target.secret.as_ref().filter(|_| is_used) {
        let namespace = reference.namespace.as_deref().unwrap_or_default();
        let name = reference.name.as_deref().unwrap_or_default();
        let secret = host.objects.secret(namespace, name).await;
        let secret = secret.map_err(|error| {
            let error = format!("couldn't get secret {namespace}/{name} error: {error}");
            VolumeError::Other(error.into())
        })?;
        for (key, value) in secret.data.iter().flatten() {
            let Ok(text) = String::from_utf8(value.0.clone()) else {
                let error = format!("secret {namespace}/{name}: {key}: it is not UTF-8");
                return Err(VolumeError::Other(error.into()));
            };
            credentials.secret.insert(key.clone(), text);
        }
    }
    Ok(credentials)
}

#[cfg(test)]
mod tests;
