//! `flexVolume`: volumes that programs on the node mount, the drivers. The name of a volume's
//! plugin is that of its driver, so that its directory tells the driver after a restart.

mod device;
mod driver;
mod response;
mod source;

use std::{ffi::OsStr, path::Path, sync::Arc};

use futures::future::FutureExt as _;
use kubelet_pod_spec::validation::mounts;
use tracing::warn;

use self::{
    device::{checked_disk, device_name, is_mounted, unique_name},
    driver::{Call, Driver, Drivers},
    source::FlexSource,
};
use super::{
    VolumeError, VolumeHost, blocking_at, blocking_on_own_files, file_system, mount, ownership,
    plugin::{
        Attributes, FoundDevice, FsGroup, Growth, MountRequest, Mounted, PluginFuture, PodVolume,
        VolumePlugin,
    },
    spec::VolumeSpec,
    usage::UsageSource,
};

/// Name of the directory with the devices.
const NAME: &str = "kubernetes.io/flexvolume";
/// Vendor of the plugins that Kubernetes has, or had.
const BUILT_IN: &str = "kubernetes.io/";

/// The plugin.
#[derive(Debug)]
pub(super) struct FlexVolume {
    host: VolumeHost,
    drivers: Drivers,
}

impl FlexVolume {
    /// The plugin with the drivers in a directory (`volumePluginDir`).
    pub(super) fn new(host: VolumeHost, dir: &Path) -> Self {
        Self {
            host,
            drivers: Drivers::new(dir),
        }
    }
}

impl VolumePlugin for FlexVolume {
    fn name(&self) -> &'static str {
        NAME
    }

    fn name_for(&self, spec: &VolumeSpec) -> String {
        let source = FlexSource::of(spec);
        source.map_or_else(|| NAME.to_owned(), |source| source.driver.to_owned())
    }

    /// Volumes of drivers that were removed are included, except for names that an earlier
    /// Kubernetes used for plugins of its own.
    fn owns(&self, name: &str) -> bool {
        let may_be_driver = mounts::flex_volume_driver(name).is_ok();
        may_be_driver
            && (!name.starts_with(BUILT_IN) || name == NAME || self.drivers.dir_of(name).is_dir())
    }

    fn supports(&self, spec: &VolumeSpec) -> bool {
        FlexSource::of(spec).is_some()
    }

    fn attributes(&self, spec: &VolumeSpec) -> Attributes {
        let Some(source) = FlexSource::of(spec) else {
            return Attributes::default();
        };
        Attributes {
            read_only: source.read_only,
            managed: !source.read_only,
            selinux_relabel: self.drivers.capabilities(source.driver).selinux_relabel,
        }
    }

    fn usage(&self, request: &MountRequest) -> UsageSource {
        let capabilities = self.drivers.capabilities(&request.volume.plugin);
        match capabilities.supports_metrics {
            true => UsageSource::FileSystem(request.dir.clone()),
            false => UsageSource::None,
        }
    }

    fn device<'a>(&'a self, spec: &'a VolumeSpec) -> PluginFuture<'a, Option<String>> {
        async move {
            let source = FlexSource::valid(spec)?;
            let driver = self.drivers.get(source.driver).await?;
            let attaches = driver.capabilities().attach;
            Ok(attaches.then(|| device_name(source.driver, &spec.dir_name())))
        }
        .boxed()
    }

    fn attachment<'a>(&'a self, spec: &'a VolumeSpec) -> PluginFuture<'a, Option<String>> {
        async move {
            let source = FlexSource::valid(spec)?;
            let driver = self.drivers.get(source.driver).await?;
            let attaches = driver.capabilities().attach && !self.host.objects.is_standalone();
            Ok(attaches.then(|| unique_name(source.driver, &spec.dir_name())))
        }
        .boxed()
    }

    fn stage<'a>(&'a self, request: &'a MountRequest) -> PluginFuture<'a, ()> {
        self.mount_device(request).boxed()
    }

    fn set_up<'a>(&'a self, request: &'a MountRequest) -> PluginFuture<'a, Mounted> {
        self.mount(request).boxed()
    }

    fn expands(&self, spec: &VolumeSpec) -> bool {
        let source = FlexSource::of(spec);
        source.is_some_and(|source| self.drivers.capabilities(source.driver).requires_fs_resize)
    }

    fn expand<'a>(&'a self, request: &'a MountRequest, bytes: i64) -> PluginFuture<'a, Growth> {
        self.grow(request, bytes).boxed()
    }

    fn tear_down<'a>(&'a self, volume: &'a PodVolume) -> PluginFuture<'a, ()> {
        self.unmount(volume).boxed()
    }

    fn unstage<'a>(&'a self, device: &'a str) -> PluginFuture<'a, ()> {
        self.unmount_device(device).boxed()
    }

    fn device_on_disk<'a>(
        &'a self,
        volume: &'a PodVolume,
    ) -> PluginFuture<'a, Option<FoundDevice>> {
        self.device_of(volume).boxed()
    }

    fn devices_on_disk(&self) -> PluginFuture<'_, Vec<FoundDevice>> {
        self.devices().boxed()
    }
}

impl FlexVolume {
    /// Mounts a volume for a pod.
    async fn mount(&self, request: &MountRequest) -> Result<Mounted, VolumeError> {
        let source = FlexSource::valid(&request.spec)?;
        let driver = self.drivers.get(source.driver).await?;
        let dir = &request.dir;
        let was_mounted = is_mounted(dir).await?;
        if !was_mounted {
            let json = source.mount_json(request, &*self.host.objects).await?;
            let path = dir.clone();
            blocking_on_own_files(move || mount::make_dir(&path, 0o750)).await?;
            let mounted = self.mount_at(request, &driver, &json).await;
            if mounted.is_err() {
                // An empty directory only; what is mounted stays until the tear-down.
                let path = dir.clone();
                let removed = blocking_on_own_files(move || mount::remove_mount_point(&path));
                drop(removed.await);
            }
            mounted?;
        }
        let managed = driver.capabilities().fs_group && !source.read_only;
        if let Some(group) = request.fs_group.filter(|_| managed) {
            // If the kubelet was killed while it changed the group, the root does not have it yet.
            let group = FsGroup {
                on_root_mismatch: group.on_root_mismatch || was_mounted,
                ..group
            };
            let (dir, progress) = (dir.clone(), Arc::clone(&request.ownership_progress));
            let work = move || ownership::set(&dir, group, false, &progress);
            blocking_at(&request.dir, work).await?;
        }
        Ok(Mounted::Path(dir.clone()))
    }

    /// Lets the driver mount a volume, or binds the mount that the pods share.
    async fn mount_at(
        &self,
        request: &MountRequest,
        driver: &Driver,
        json: &str,
    ) -> Result<(), VolumeError> {
        let arguments = [request.dir.as_os_str(), OsStr::new(json)];
        if driver.call(Call::Mount, &arguments).await?.is_some() {
            return Ok(());
        }
        let read_only = self.attributes(&request.spec).read_only;
        let volume = &request.volume;
        let from = self.device_dir(&volume.plugin, &volume.name);
        if !is_mounted(&from).await? {
            let why = format!("mount: Not supported, and nothing is mounted at {from:?}");
            return Err(driver.failed(why));
        }
        let dir = request.dir.clone();
        let work = move || {
            let bound = mount::bind(&from, &dir).and_then(|()| match read_only {
                true => mount::make_read_only(&dir),
                false => Ok(()),
            });
            bound.map_err(|error| VolumeError::io("bind-mount the volume to", &dir, error))
        };
        blocking_at(&request.dir, work).await
    }

    /// Undoes [`Self::mount`]. If the driver was removed, its volume is only unmounted.
    async fn unmount(&self, volume: &PodVolume) -> Result<(), VolumeError> {
        let dir = self.host.volume_dir(volume);
        let path = dir.clone();
        let is_known = move || Ok(mount::is_mounted(&path)? || path.symlink_metadata().is_ok());
        if !blocking_on_own_files(is_known).await? {
            return Ok(());
        }
        match self.drivers.find(&volume.plugin).await? {
            Some(driver) => drop(driver.call(Call::Unmount, &[dir.as_os_str()]).await?),
            None => warn!(
                pod_uid = %volume.uid, driver = volume.plugin, path = %dir.display(),
                "unmounting a volume without its driver, which does not exist any more"
            ),
        }
        blocking_at(&dir.clone(), move || mount::clean_up(&dir)).await
    }

    /// Expands the file system of a mounted volume.
    async fn grow(&self, request: &MountRequest, bytes: i64) -> Result<Growth, VolumeError> {
        let source = FlexSource::valid(&request.spec)?;
        let driver = self.drivers.get(source.driver).await?;
        let capabilities = driver.capabilities();
        if !capabilities.requires_fs_resize {
            return Ok(Growth::Needless);
        }
        let device = match capabilities.attach {
            true => self.attached_device(request, &source, &driver).await?,
            false => String::new(),
        };
        let known = request.spec.capacity.map_or(0, |capacity| capacity.known);
        let (json, size, known) = (source.json()?, bytes.to_string(), known.to_string());
        let arguments = [
            OsStr::new(&json),
            OsStr::new(&device),
            request.dir.as_os_str(),
            OsStr::new(&size),
            OsStr::new(&known),
        ];
        if driver.call(Call::ExpandFs, &arguments).await?.is_none() {
            let disk = checked_disk(&driver, &device)?;
            let dir = request.dir.clone();
            blocking_at(&request.dir, move || file_system::grow(&disk, &dir)).await?;
        }
        Ok(Growth::Done)
    }
}

#[cfg(test)]
mod tests;
