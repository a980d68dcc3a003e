//! The API objects that pods refer to, from the API server.

use std::{fmt, sync::Arc, time::Duration};

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec, TokenRequestStatus},
    certificates::v1beta1::ClusterTrustBundle,
    core::v1::{
        ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service,
        ServiceAccount,
    },
    node::v1::RuntimeClass,
    resource::v1::ResourceClaim,
    storage::v1::{CSIDriver, VolumeAttachment},
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PostParams},
};
use kubelet_pod_spec::{identity, references::References};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Answer, ObjectError, Objects,
    named::{Named, is_name, namespaced},
    services::Services,
    trust_bundles::TrustBundles,
    ttl_cache::{MaxAge, TtlCache},
    watch_cache::{WatchCache, WatchTarget},
};
use crate::request::{ApiError, ask};

/// Each sync of a pod reads the objects of its volumes. An object not read for this many sync
/// periods is used only in environment variables, which are read again only when a container
/// starts; as upstream.
const IDLE_SYNCS: u32 = 5;
/// Objects are kept at least this long, however short the sync period; as upstream.
const MIN_IDLE: Duration = Duration::from_secs(60);

/// How changes of config maps and secrets are detected
/// (`configMapAndSecretChangeDetectionStrategy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangeDetection {
    /// With a watch for each object.
    #[default]
    Watch,
    /// By reading an object again once it is older than the node's annotation
    /// `node.alpha.kubernetes.io/ttl` says, or a minute by default.
    Cache,
    /// By reading an object on each call.
    Get,
}

/// The dependencies of [`ApiObjects`].
pub struct ApiObjectsParts {
    /// The API server.
    pub client: Client,
    /// This node; `None` until it is known.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// How changes of config maps and secrets are detected.
    pub change_detection: ChangeDetection,
    /// Interval of a pod's periodic syncs (`syncFrequency`).
    pub sync_frequency: Duration,
    /// Tracks the tasks that run watches.
    pub tasks: TaskTracker,
    /// Stops the watches.
    pub cancel: CancellationToken,
}

impl fmt::Debug for ApiObjectsParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiObjectsParts").finish_non_exhaustive()
    }
}

/// The API objects that pods refer to, from the API server. Config maps, secrets, CSI drivers,
/// runtime classes, trust bundles and services are cached; others are read on each call.
pub struct ApiObjects {
    client: Client,
    node: watch::Receiver<Option<Arc<Node>>>,
    config_maps: ConfigObjects<ConfigMap>,
    secrets: ConfigObjects<Secret>,
    csi_drivers: Arc<WatchCache<CSIDriver>>,
    runtime_classes: Arc<WatchCache<RuntimeClass>>,
    trust_bundles: TrustBundles,
    services: Services,
}

impl fmt::Debug for ApiObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiObjects")
            .field("config_maps", &self.config_maps)
            .field("secrets", &self.secrets)
            .finish_non_exhaustive()
    }
}

/// Config maps or secrets.
#[derive(Debug)]
enum ConfigObjects<K: Named> {
    Watched(Arc<WatchCache<K>>),
    OnDemand(TtlCache<K>),
}

impl<K: Named> ConfigObjects<K> {
    fn new(parts: &ApiObjectsParts, idle: Duration) -> Self {
        let max_age = match parts.change_detection {
            ChangeDetection::Watch => return Self::Watched(watch_cache(parts, idle)),
            ChangeDetection::Cache => MaxAge::OfNode(parts.node.clone()),
            ChangeDetection::Get => MaxAge::Zero,
        };
        Self::OnDemand(TtlCache::new(parts.client.clone(), max_age, idle))
    }

    /// Reads the object again on the next call, unless a watch keeps it current.
    fn renew(&self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        match self {
            Self::Watched(objects) => objects.renew(&key),
            Self::OnDemand(objects) => objects.renew(&key),
        }
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<Arc<K>, ObjectError> {
        match self {
            Self::Watched(objects) => objects.get(namespace, name).await,
            Self::OnDemand(objects) => objects.get(namespace, name).await,
        }
    }
}

fn watch_cache<F: WatchTarget>(parts: &ApiObjectsParts, idle: Duration) -> Arc<WatchCache<F>> {
    WatchCache::new(
        parts.client.clone(),
        idle,
        parts.tasks.clone(),
        parts.cancel.clone(),
    )
}

impl ApiObjects {
    /// Starts the watch of services; other watches start on first use. Must be called inside a
    /// tokio runtime.
    pub fn new(parts: ApiObjectsParts) -> Self {
        let idle = (parts.sync_frequency * IDLE_SYNCS).max(MIN_IDLE);
        Self {
            config_maps: ConfigObjects::new(&parts, idle),
            secrets: ConfigObjects::new(&parts, idle),
            csi_drivers: watch_cache(&parts, idle),
            runtime_classes: watch_cache(&parts, idle),
            trust_bundles: TrustBundles::new(parts.client.clone(), watch_cache(&parts, idle)),
            services: Services::follow(parts.client.clone(), &parts.tasks, parts.cancel),
            client: parts.client,
            node: parts.node,
        }
    }
}

/// Reads an object.
async fn get<K>(
    api: Option<Api<K>>,
    resource: &'static str,
    name: &str,
) -> Result<Arc<K>, ObjectError>
where
    K: Resource<DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned,
{
    match api {
        Some(api) if is_name(name) => match ask(api.get(name)).await {
            Ok(object) => Ok(Arc::new(object)),
            Err(error) => Err(ObjectError::of(resource, name, &error)),
        },
        _ => Err(ObjectError::not_found(resource, name)),
    }
}

impl Objects for ApiObjects {
    fn begin(&self, pod: &Pod) {
        let namespace = identity::namespace(pod);
        let references = References::of(pod);
        for name in references.config_maps {
            self.config_maps.renew(namespace, name);
        }
        for name in references.secrets {
            self.secrets.renew(namespace, name);
        }
    }

    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Arc<ConfigMap>> {
        Box::pin(self.config_maps.get(namespace, name))
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Arc<Secret>> {
        Box::pin(self.secrets.get(namespace, name))
    }

    fn persistent_volume_claim<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> Answer<'a, Arc<PersistentVolumeClaim>> {
        let api = namespaced(&self.client, namespace);
        Box::pin(get(api, "persistentvolumeclaim", name))
    }

    fn patch_claim_status<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        patch: Value,
    ) -> Answer<'a, Arc<PersistentVolumeClaim>> {
        let api = namespaced(&self.client, namespace);
        Box::pin(patch_claim(api, name, patch))
    }

    fn persistent_volume<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<PersistentVolume>> {
        let api = Some(Api::all(self.client.clone()));
        Box::pin(get(api, "persistentvolume", name))
    }

    fn csi_driver<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<CSIDriver>> {
        Box::pin(self.csi_drivers.get("", name))
    }

    fn runtime_class<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<RuntimeClass>> {
        Box::pin(self.runtime_classes.get("", name))
    }

    fn volume_attachment<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<VolumeAttachment>> {
        let api = Some(Api::all(self.client.clone()));
        Box::pin(get(api, "volumeattachment", name))
    }

    fn resource_claim<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> Answer<'a, Arc<ResourceClaim>> {
        let api = namespaced(&self.client, namespace);
        Box::pin(get(api, "resourceclaim.resource.k8s.io", name))
    }

    fn service_account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> Answer<'a, Arc<ServiceAccount>> {
        let api = namespaced(&self.client, namespace);
        Box::pin(get(api, SERVICE_ACCOUNT, name))
    }

    fn service_account_token<'a>(
        &'a self,
        namespace: &'a str,
        service_account: &'a str,
        request: TokenRequestSpec,
    ) -> Answer<'a, TokenRequestStatus> {
        let api = namespaced(&self.client, namespace);
        Box::pin(token(api, service_account, request))
    }

    fn cluster_trust_bundle<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<ClusterTrustBundle>> {
        Box::pin(self.trust_bundles.named(name))
    }

    fn cluster_trust_bundles_of<'a>(
        &'a self,
        signer_name: &'a str,
    ) -> Answer<'a, Vec<Arc<ClusterTrustBundle>>> {
        Box::pin(self.trust_bundles.of_signer(signer_name))
    }

    fn services(&self) -> Answer<'_, Vec<Arc<Service>>> {
        Box::pin(self.services.all())
    }

    fn node(&self) -> Answer<'_, Option<Arc<Node>>> {
        let node = self.node.borrow().clone();
        Box::pin(std::future::ready(Ok(node)))
    }
}

async fn patch_claim(
    api: Option<Api<PersistentVolumeClaim>>,
    name: &str,
    patch: Value,
) -> Result<Arc<PersistentVolumeClaim>, ObjectError> {
    let resource = "persistentvolumeclaim";
    let Some(api) = api.filter(|_| is_name(name)) else {
        return Err(ObjectError::not_found(resource, name));
    };
    let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
    let patched = ask(api.patch_status(name, &params, &patch)).await;
    patched
        .map(Arc::new)
        .map_err(|error| ObjectError::of(resource, name, &error))
}

const SERVICE_ACCOUNT: &str = "serviceaccount";

async fn token(
    api: Option<Api<ServiceAccount>>,
    name: &str,
    spec: TokenRequestSpec,
) -> Result<TokenRequestStatus, ObjectError> {
    let Some(api) = api.filter(|_| is_name(name)) else {
        return Err(ObjectError::not_found(SERVICE_ACCOUNT, name));
    };
    let request = TokenRequest {
        spec: Some(spec),
        ..TokenRequest::default()
    };
    let params = PostParams::default();
    let asked = ask(api.create_token_request(name, &params, &request)).await;
    let unavailable = |message: String| ObjectError::Unavailable {
        resource: SERVICE_ACCOUNT,
        name: name.to_owned(),
        message,
    };
    match asked {
        Ok(answer) => answer
            .status
            .ok_or_else(|| unavailable("the API server returned no token".to_owned())),
        // It may be the pod that does not exist.
        Err(error) if is_of_another(&error, name) => Err(ObjectError::Refused {
            resource: SERVICE_ACCOUNT,
            name: name.to_owned(),
            message: error.to_string(),
        }),
        Err(error) => Err(ObjectError::of(SERVICE_ACCOUNT, name, &error)),
    }
}

/// Whether an error is about an object other than the service account.
fn is_of_another(error: &ApiError, name: &str) -> bool {
    let ApiError::Refused(status) = error else {
        return false;
    };
    let details = status.details.as_ref();
    details.is_none_or(|of| (&*of.kind, &*of.name) != ("serviceaccounts", name))
}
