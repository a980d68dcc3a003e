//! `secret`: the keys of a secret as files, which are only kept in memory.

use futures::future::FutureExt as _;
use kubelet_api_client::objects::Objects;
use kubelet_pod_spec::identity;

use super::{
    VolumeError, VolumeHost,
    atomic_writer::Payload,
    config_map::Projection,
    files::{self, FileStorage},
    plugin::{Attributes, MountRequest, Mounted, PluginFuture, PodVolume, VolumePlugin},
    spec::VolumeSpec,
    usage::UsageSource,
};

/// The plugin.
#[derive(Debug)]
pub(super) struct Secret {
    pub(super) host: VolumeHost,
}

impl VolumePlugin for Secret {
    fn name(&self) -> &'static str {
        "kubernetes.io/secret"
    }

    fn supports(&self, spec: &VolumeSpec) -> bool {
        spec.inline().is_some_and(|volume| volume.secret.is_some())
    }

    fn attributes(&self, _: &VolumeSpec) -> Attributes {
        files::ATTRIBUTES
    }

    fn usage(&self, request: &MountRequest) -> UsageSource {
        UsageSource::Directory(request.dir.clone())
    }

    fn refreshes(&self, _: &VolumeSpec) -> bool {
        true
    }

    fn set_up<'a>(&'a self, request: &'a MountRequest) -> PluginFuture<'a, Mounted> {
        async move {
            let Some(source) = request.spec.inline().and_then(|v| v.secret.as_ref()) else {
                return Err(VolumeError::Unsupported(request.name().to_owned()));
            };
            let projection = Projection {
                name: source.secret_name.as_deref().unwrap_or_default(),
                items: source.items.as_deref().unwrap_or_default(),
                optional: source.optional.unwrap_or_default(),
                default_mode: source.default_mode,
            };
            let namespace = identity::namespace(&request.pod);
            let payload = payload(&projection, &*self.host.objects, namespace).await?;
            files::set_up(&self.host, request, payload, FileStorage::InMemory).await
        }
        .boxed()
    }

    fn tear_down<'a>(&'a self, volume: &'a PodVolume) -> PluginFuture<'a, ()> {
        files::tear_down(&self.host, volume).boxed()
    }
}

/// The files of a secret.
pub(super) async fn payload(
    projection: &Projection<'_>,
    objects: &dyn Objects,
    namespace: &str,
) -> Result<Payload, VolumeError> {
    let object = match objects.secret(namespace, projection.name).await {
        Err(error) if error.is_not_found() && projection.optional => None,
        object => Some(object?),
    };
    let contents = object.and_then(|object| object.data.clone());
    let contents = contents.into_iter().flatten();
    let contents = contents.map(|(key, value)| (key, value.0)).collect();
    projection.files("references non-existent secret", &contents)
}
