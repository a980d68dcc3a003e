//! `csi`: volumes of the drivers that register with the kubelet, persistent or ephemeral.
//!
//! A persistent volume is staged once on the node, if its driver supports that, and published for
//! each of its pods; what happens in between is up to the driver. `vol_data.json` records what is
//! needed to undo a call before the call is made, and its success afterwards: after a restart of
//! the kubelet, a ready volume is kept as it is, whether or not its driver has registered yet.

mod allocatable;
mod block;
mod client;
mod contexts;
pub mod csi_node;
mod driver_channel;
mod driver_store;
mod expand;
mod filesystem;
mod journal;
mod metrics;
mod policy;
mod registration;
mod source;
mod stats;
mod volume_data;

use std::{path::PathBuf, sync::Arc};

use futures::future::FutureExt as _;
use kubelet_api_client::tokens::TokenCache;

use self::policy::Policy;
pub use self::{
    allocatable::AllocatableKeeper,
    driver_store::DriverStore,
    registration::{CsiRegistration, PLUGIN_TYPE},
};
use super::{
    VolumeError, VolumeHost,
    plugin::{
        Attributes, FoundDevice, Growth, MountRequest, Mounted, PluginFuture, PodVolume,
        VolumePlugin,
    },
    spec::{VolumeMode, VolumeSpec},
    usage::UsageSource,
};

const NAME: &str = "kubernetes.io/csi";

/// The plugin.
#[derive(Debug)]
pub(super) struct Csi {
    pub(super) host: VolumeHost,
    pub(super) tokens: Arc<TokenCache>,
    pub(super) drivers: Arc<DriverStore>,
}

impl VolumePlugin for Csi {
    fn name(&self) -> &'static str {
        NAME
    }

    fn supports(&self, spec: &VolumeSpec) -> bool {
        source::persistent(spec).is_some()
            || spec.inline().is_some_and(|volume| volume.csi.is_some())
    }

    fn attributes(&self, spec: &VolumeSpec) -> Attributes {
        let inline = spec.inline().and_then(|volume| volume.csi.as_ref());
        let read_only = match inline {
            Some(source) => source.read_only.unwrap_or_default(),
            None => spec.read_only,
        };
        Attributes {
            read_only,
            managed: !read_only,
            selinux_relabel: true,
        }
    }

    fn takes_mount_options(&self) -> bool {
        true
    }

    fn usage(&self, request: &MountRequest) -> UsageSource {
        self.usage_source(request)
    }

    fn device<'a>(&'a self, spec: &'a VolumeSpec) -> PluginFuture<'a, Option<String>> {
        futures::future::ready(device_name(spec)).boxed()
    }

    fn attachment<'a>(&'a self, spec: &'a VolumeSpec) -> PluginFuture<'a, Option<String>> {
        async move {
            let Some(source) = source::persistent(spec) else {
                return Ok(None);
            };
            let policy = Policy::of(&source.driver, &*self.host.objects).await?;
            let attached = policy.attach_required();
            Ok(attached.then(|| source::unique_name(&source.driver, &source.volume_handle)))
        }
        .boxed()
    }

    fn exceeds_attach_limit<'a>(&'a self, spec: &'a VolumeSpec) -> PluginFuture<'a, bool> {
        self.has_no_place(spec).boxed()
    }

    fn takes_selinux_label<'a>(&'a self, spec: &'a VolumeSpec) -> PluginFuture<'a, bool> {
        async move {
            let Some(source) = source::persistent(spec) else {
                return Ok(false);
            };
            let policy = Policy::of(&source.driver, &*self.host.objects).await?;
            Ok(spec.mode == VolumeMode::Filesystem && policy.takes_selinux_label())
        }
        .boxed()
    }

    /// Whether the driver requires republishing is not known here.
    fn refreshes(&self, _: &VolumeSpec) -> bool {
        true
    }

    fn stage<'a>(&'a self, request: &'a MountRequest) -> PluginFuture<'a, ()> {
        match request.spec.mode {
            VolumeMode::Filesystem => self.stage_directory(request).boxed(),
            VolumeMode::Block => self.stage_block(request).boxed(),
        }
    }

    fn set_up<'a>(&'a self, request: &'a MountRequest) -> PluginFuture<'a, Mounted> {
        match request.spec.mode {
            VolumeMode::Filesystem => self.publish_directory(request).boxed(),
            VolumeMode::Block => self.publish_block(request).boxed(),
        }
    }

    fn expands(&self, _: &VolumeSpec) -> bool {
        true
    }

    fn expand<'a>(&'a self, request: &'a MountRequest, bytes: i64) -> PluginFuture<'a, Growth> {
        self.grow(request, bytes).boxed()
    }

    fn tear_down<'a>(&'a self, volume: &'a PodVolume) -> PluginFuture<'a, ()> {
        async move {
            match volume.mode {
                VolumeMode::Filesystem => self.unpublish_directory(volume).await?,
                VolumeMode::Block => self.unpublish_block(volume).await?,
            }
            self.tokens.forget(&volume.uid);
            Ok(())
        }
        .boxed()
    }

    fn unstage<'a>(&'a self, device: &'a str) -> PluginFuture<'a, ()> {
        match block::volume_name(device) {
            Some(volume) => self.unstage_block(volume).boxed(),
            None => self.unstage_directory(device).boxed(),
        }
    }

    fn device_on_disk<'a>(
        &'a self,
        volume: &'a PodVolume,
    ) -> PluginFuture<'a, Option<FoundDevice>> {
        match volume.mode {
            VolumeMode::Filesystem => self.device_of_directory(volume).boxed(),
            VolumeMode::Block => self.device_of_block(volume).boxed(),
        }
    }

    fn devices_on_disk(&self) -> PluginFuture<'_, Vec<FoundDevice>> {
        async move {
            let mut found = self.directories_on_disk().await?;
            found.extend(self.blocks_on_disk().await?);
            Ok(found)
        }
        .boxed()
    }
}

impl Csi {
    /// Directory of the data for the whole node.
    fn dir(&self) -> PathBuf {
        self.host.plugin_dir(NAME)
    }
}

/// Name of the device of a persistent volume.
fn device_name(spec: &VolumeSpec) -> Result<Option<String>, VolumeError> {
    let Some(source) = source::persistent(spec) else {
        return Ok(None);
    };
    for (field, value) in [
        ("driver", &source.driver),
        ("volumeHandle", &source.volume_handle),
    ] {
        if value.is_empty() {
            let why = format!("spec.csi.{field} of its persistent volume is empty");
            return Err(VolumeError::invalid(&spec.name, why));
        }
    }
    if source.driver.contains('/') || source.driver.starts_with('.') {
        let why = format!("{:?} is not a valid driver name", source.driver);
        return Err(VolumeError::invalid(&spec.name, why));
    }
    Ok(Some(match spec.mode {
        VolumeMode::Filesystem => filesystem::device_name(&source.driver, &source.volume_handle),
        VolumeMode::Block => block::device_name(spec.inner_name()),
    }))
}
