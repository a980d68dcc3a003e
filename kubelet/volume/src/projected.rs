//! `projected`: config maps, secrets, pod fields, service account tokens and trust bundles in one
//! volume.

use std::sync::Arc;

use futures::future::FutureExt as _;
use k8s_openapi::api::core::v1::{ServiceAccountTokenProjection, VolumeProjection};
use kubelet_api_client::tokens::TokenCache;
use kubelet_pod_spec::identity;

use super::{
    VolumeError, VolumeHost,
    atomic_writer::{FileProjection, Payload},
    config_map::Projection,
    downward_api,
    files::{self, FileStorage},
    plugin::{Attributes, MountRequest, Mounted, PluginFuture, PodVolume, VolumePlugin},
    secret,
    spec::VolumeSpec,
    trust_bundles::{self, Order},
    usage::UsageSource,
};

/// Mode of tokens and trust bundles that are private to a user or group.
const PRIVATE: u32 = 0o600;

/// The plugin.
#[derive(Debug)]
pub(super) struct Projected {
    pub(super) host: VolumeHost,
    pub(super) tokens: Arc<TokenCache>,
    /// Order of the certificates in trust bundles.
    pub(super) order: Order,
}

impl VolumePlugin for Projected {
    fn name(&self) -> &'static str {
        "kubernetes.io/projected"
    }

    fn supports(&self, spec: &VolumeSpec) -> bool {
        spec.inline()
            .is_some_and(|volume| volume.projected.is_some())
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
            let payload = self.payload(request).await?;
            files::set_up(&self.host, request, payload, FileStorage::InMemory).await
        }
        .boxed()
    }

    fn tear_down<'a>(&'a self, volume: &'a PodVolume) -> PluginFuture<'a, ()> {
        async move {
            files::tear_down(&self.host, volume).await?;
            self.tokens.forget(&volume.uid);
            Ok(())
        }
        .boxed()
    }
}

impl Projected {
    /// The files of all sources; a later source takes precedence over an earlier one.
    async fn payload(&self, request: &MountRequest) -> Result<Payload, VolumeError> {
        let Some(source) = request.spec.inline().and_then(|v| v.projected.as_ref()) else {
            return Err(VolumeError::Unsupported(request.name().to_owned()));
        };
        let mut payload = Payload::new();
        let mut errors = Vec::new();
        for projection in source.sources.iter().flatten() {
            match self.files(request, projection, source.default_mode).await {
                Ok(files) => payload.extend(files),
                Err(error) => errors.push(error),
            }
        }
        match (errors.len(), errors.pop()) {
            (_, None) => Ok(payload),
            (1, Some(error)) => Err(error),
            (_, Some(last)) => {
                errors.push(last);
                let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
                Err(VolumeError::Other(
                    format!("[{}]", errors.join(", ")).into(),
                ))
            }
        }
    }

    async fn files(
        &self,
        request: &MountRequest,
        source: &VolumeProjection,
        default_mode: Option<i32>,
    ) -> Result<Payload, VolumeError> {
        let namespace = identity::namespace(&request.pod);
        let objects = &*self.host.objects;
        if let Some(source) = &source.secret {
            let projection = Projection {
                name: &source.name,
                items: source.items.as_deref().unwrap_or_default(),
                optional: source.optional.unwrap_or_default(),
                default_mode,
            };
            return secret::payload(&projection, objects, namespace).await;
        }
        if let Some(source) = &source.config_map {
            let projection = Projection {
                name: &source.name,
                items: source.items.as_deref().unwrap_or_default(),
                optional: source.optional.unwrap_or_default(),
                default_mode,
            };
            return projection.payload(objects, namespace).await;
        }
        if let Some(source) = &source.downward_api {
            let items = source.items.as_deref().unwrap_or_default();
            return downward_api::payload(&self.host, request, items, default_mode).await;
        }
        if let Some(source) = &source.service_account_token {
            return self.token(request, source, default_mode).await;
        }
        if let Some(source) = &source.cluster_trust_bundle {
            let bundle = trust_bundles::certificates(objects, source, self.order).await?;
            let file = private_file(request, bundle.into_bytes(), default_mode);
            return Ok([(source.path.clone(), file)].into());
        }
        if source.pod_certificate.is_some() {
            let why = "projected source podCertificate is not supported";
            return Err(VolumeError::invalid(request.name(), why));
        }
        Ok(Payload::new())
    }

    async fn token(
        &self,
        request: &MountRequest,
        source: &ServiceAccountTokenProjection,
        default_mode: Option<i32>,
    ) -> Result<Payload, VolumeError> {
        let audience = source
            .audience
            .iter()
            .filter(|audience| !audience.is_empty());
        let audiences: Vec<String> = audience.cloned().collect();
        let objects = &*self.host.objects;
        let asked = (&*request.pod, &*audiences, source.expiration_seconds);
        let token = self.tokens.get(objects, asked.0, asked.1, asked.2).await?;
        let data = token.token.unwrap_or_default().into_bytes();
        let file = private_file(request, data, default_mode);
        Ok([(source.path.clone(), file)].into())
    }
}

/// A file that is private to the pod's user or group, if the pod has one.
fn private_file(
    request: &MountRequest,
    data: Vec<u8>,
    default_mode: Option<i32>,
) -> FileProjection {
    let is_private = request.fs_user.is_some() || request.fs_group.is_some();
    FileProjection {
        data,
        mode: if is_private {
            PRIVATE
        } else {
            files::mode(None, default_mode)
        },
        user: request.fs_user,
    }
}
