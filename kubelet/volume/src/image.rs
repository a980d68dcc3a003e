//! `image`: the files of an image. The runtime mounts them; the image is pulled when a container
//! that mounts it starts.

use futures::future::{self, FutureExt as _};

use super::{
    files,
    plugin::{Attributes, MountRequest, Mounted, PluginFuture, PodVolume, VolumePlugin},
    spec::VolumeSpec,
    usage::UsageSource,
};

/// The plugin.
#[derive(Debug)]
pub(super) struct Image;

impl VolumePlugin for Image {
    fn name(&self) -> &'static str {
        "kubernetes.io/image"
    }

    fn supports(&self, spec: &VolumeSpec) -> bool {
        spec.inline().is_some_and(|volume| volume.image.is_some())
    }

    fn attributes(&self, _: &VolumeSpec) -> Attributes {
        files::ATTRIBUTES
    }

    /// The runtime mounts the image, and accounts for it.
    fn usage(&self, _: &MountRequest) -> UsageSource {
        UsageSource::None
    }

    fn set_up<'a>(&'a self, _: &'a MountRequest) -> PluginFuture<'a, Mounted> {
        future::ready(Ok(Mounted::Image)).boxed()
    }

    fn tear_down<'a>(&'a self, _: &'a PodVolume) -> PluginFuture<'a, ()> {
        future::ready(Ok(())).boxed()
    }
}
