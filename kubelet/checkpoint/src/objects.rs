//! The API objects that pods refer to, from the API server, or from the checkpoint during an
//! outage.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use k8s_openapi::api::{
    authentication::v1::{TokenRequestSpec, TokenRequestStatus},
    certificates::v1beta1::ClusterTrustBundle,
    core::v1::{
        ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service,
        ServiceAccount,
    },
    node::v1::RuntimeClass,
    resource::v1::ResourceClaim,
    storage::v1::{CSIDriver, VolumeAttachment},
};
use kube::Resource;
use kubelet_api_client::objects::{Answer, ObjectError, Objects};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;
use tracing::debug;

use super::{
    Checkpoint,
    entry::{Entry, EntryKind},
    references,
    store::StoreError,
};

/// The API server is considered away if it does not answer within this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// Objects from the API server, or from the checkpoint while the server is away. The checkpoint is
/// not used for an object that the server rejects or does not have. Nor is it used if the server is
/// only slow to send an object, once it has listed the pods: an outdated object is worse than none.
///
/// Resource claims are not kept: the pods that use them are in the state file of their manager.
/// Volume attachments are not kept: only the cluster knows whether a volume is still attached here
/// or by now to another node. Pods with such volumes wait for the API server.
pub struct CheckpointedObjects {
    server: Arc<dyn Objects>,
    checkpoint: Arc<Checkpoint>,
    is_away: Box<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for CheckpointedObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckpointedObjects")
            .field("server", &self.server)
            .field("checkpoint", &self.checkpoint)
            .finish_non_exhaustive()
    }
}

/// A requested object.
struct ObjectRequest {
    /// `None` if the name is invalid.
    entry: Option<Entry>,
    resource: &'static str,
    name: String,
}

impl ObjectRequest {
    fn new(kind: EntryKind, namespace: &str, resource: &'static str, name: &str) -> Self {
        Self {
            entry: Entry::new(kind, namespace, name),
            resource,
            name: name.to_owned(),
        }
    }

    fn unavailable(&self, message: String) -> ObjectError {
        ObjectError::Unavailable {
            resource: self.resource,
            name: self.name.clone(),
            message,
        }
    }
}

impl CheckpointedObjects {
    /// The objects of `server`, which are kept in `checkpoint`. `is_away` says whether the server
    /// is unreachable.
    pub fn new(
        server: Arc<dyn Objects>,
        checkpoint: Arc<Checkpoint>,
        is_away: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            server,
            checkpoint,
            is_away: Box::new(is_away),
        }
    }

    /// Whether kept objects replace the server's: it has not sent this node's pods, or it is
    /// unreachable.
    fn is_alone(&self) -> bool {
        !self.checkpoint.has_pod_list() || (self.is_away)()
    }

    /// Returns the server's answer, or the kept object as `Ok(Err(_))`. If the server answers
    /// `NotFound`, the kept object is removed.
    async fn ask<T, K>(
        &self,
        request: &ObjectRequest,
        answer: Answer<'_, T>,
    ) -> Result<Result<T, K>, ObjectError>
    where
        K: DeserializeOwned + Send + 'static,
    {
        let error = match timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => return Ok(Ok(answer)),
            Ok(Err(error)) => error,
            Err(_) => {
                request.unavailable(format!("the API server did not answer within {PATIENCE:?}"))
            }
        };
        let Some(entry) = &request.entry else {
            return Err(error);
        };
        if error.is_not_found() {
            self.checkpoint.forget(entry);
        }
        if !error.is_away() || !self.is_alone() {
            return Err(error);
        }
        match self.checkpoint.read(entry).await {
            Ok(Some(kept)) => {
                debug!(object = %entry, %error, "using the object from the checkpoint");
                Ok(Err(kept))
            }
            Err(StoreError::NoKey(_)) | Ok(None) if !self.checkpoint.keeps(entry.kind()) => {
                Err(request.unavailable(format!(
                    "{}; the checkpoint has secrets and tokens only with \
                     --bootstrap-checkpoint-key",
                    reason(&error)
                )))
            }
            Ok(None) => Err(error),
            Err(kept) => Err(request.unavailable(format!("{}; {kept}", reason(&error)))),
        }
    }

    async fn object<K>(
        &self,
        request: ObjectRequest,
        answer: Answer<'_, Arc<K>>,
        names: fn(&K) -> BTreeSet<Entry>,
    ) -> Result<Arc<K>, ObjectError>
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let object = match self.ask::<_, K>(&request, answer).await? {
            Ok(object) => object,
            Err(kept) => return Ok(Arc::new(kept)),
        };
        if let Some(entry) = request.entry {
            let version = version(&*object);
            self.checkpoint
                .keep(entry, version, &*object, names(&object));
        }
        Ok(object)
    }

    async fn token(
        &self,
        request: ObjectRequest,
        answer: Answer<'_, TokenRequestStatus>,
    ) -> Result<TokenRequestStatus, ObjectError> {
        let token = match self.ask::<_, TokenRequestStatus>(&request, answer).await? {
            Ok(token) => token,
            // The token may have expired. The pod starts with it; the token cache requests a new
            // one on each use until it gets a fresh one, so it is renewed once the API server is
            // back.
            Err(kept) => return Ok(kept),
        };
        if let Some(entry) = request.entry {
            self.checkpoint.keep(entry, None, &token, BTreeSet::new());
        }
        Ok(token)
    }

    /// Reads a group of objects. Those for which `is_kept` holds are kept.
    async fn objects<K>(
        &self,
        request: ObjectRequest,
        answer: Answer<'_, Vec<Arc<K>>>,
        is_kept: impl Fn(&K) -> bool,
    ) -> Result<Vec<Arc<K>>, ObjectError>
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let objects = match self.ask::<_, Vec<K>>(&request, answer).await? {
            Ok(objects) => objects,
            Err(kept) => return Ok(kept.into_iter().map(Arc::new).collect()),
        };
        if let Some(entry) = request.entry {
            let found = objects.iter().map(|object| &**object);
            let found: Vec<&K> = found.filter(|object| is_kept(object)).collect();
            let versions: Option<Vec<String>> = found.iter().map(|one| version(*one)).collect();
            let version =
                versions.map(|versions| format!("{:x}", Sha256::digest(versions.join(" "))));
            self.checkpoint
                .keep(entry, version, &found, BTreeSet::new());
        }
        Ok(objects)
    }
}

/// The cause without the object's name.
fn reason(error: &ObjectError) -> String {
    match error {
        ObjectError::Unavailable { message, .. } => message.clone(),
        other => other.to_string(),
    }
}

/// Whether a service is visible to pods in `namespace`: it is in the namespace, or is the API
/// server's.
fn is_found_in(service: &Service, namespace: &str) -> bool {
    let own = service.metadata.namespace.as_deref();
    let name = service.metadata.name.as_deref();
    own == Some(namespace) || (own, name) == (Some("default"), Some("kubernetes"))
}

/// A version that changes with the object; `None` if it has none.
fn version<K: Resource<DynamicType = ()>>(object: &K) -> Option<String> {
    let metadata = object.meta();
    let uid = metadata.uid.as_deref().unwrap_or_default();
    let version = metadata.resource_version.as_ref()?;
    Some(format!("{uid}/{version}"))
}

/// The entry of a token, for its pod and the other parameters of the request.
fn token_entry(namespace: &str, account: &str, request: &TokenRequestSpec) -> Option<Entry> {
    let pod = request.bound_object_ref.as_ref()?;
    let uid = pod.uid.as_deref()?;
    let audiences = request.audiences.as_deref().unwrap_or_default();
    let what = serde_json::json!([account, audiences, request.expiration_seconds]);
    let digest = format!("{:x}", Sha256::digest(what.to_string()));
    Entry::new(
        EntryKind::Token,
        namespace,
        &format!("{uid}.{}", digest.get(..16)?),
    )
}

const TRUST_BUNDLE: &str = "clustertrustbundle.certificates.k8s.io";

/// For objects without references to others.
fn nothing<K>(_: &K) -> BTreeSet<Entry> {
    BTreeSet::new()
}

impl Objects for CheckpointedObjects {
    fn begin(&self, pod: &Pod) {
        self.server.begin(pod);
    }

    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Arc<ConfigMap>> {
        let request = ObjectRequest::new(EntryKind::ConfigMap, namespace, "configmap", name);
        let answer = self.server.config_map(namespace, name);
        Box::pin(self.object(request, answer, nothing))
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Arc<Secret>> {
        let request = ObjectRequest::new(EntryKind::Secret, namespace, "secret", name);
        let answer = self.server.secret(namespace, name);
        Box::pin(self.object(request, answer, nothing))
    }

    fn persistent_volume_claim<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> Answer<'a, Arc<PersistentVolumeClaim>> {
        let request =
            ObjectRequest::new(EntryKind::Claim, namespace, "persistentvolumeclaim", name);
        let answer = self.server.persistent_volume_claim(namespace, name);
        Box::pin(self.object(request, answer, references::of_claim))
    }

    fn patch_claim_status<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        patch: Value,
    ) -> Answer<'a, Arc<PersistentVolumeClaim>> {
        self.server.patch_claim_status(namespace, name, patch)
    }

    fn persistent_volume<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<PersistentVolume>> {
        let request = ObjectRequest::new(EntryKind::Volume, "", "persistentvolume", name);
        let answer = self.server.persistent_volume(name);
        Box::pin(self.object(request, answer, references::of_volume))
    }

    fn csi_driver<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<CSIDriver>> {
        let request = ObjectRequest::new(EntryKind::CsiDriver, "", "csidriver", name);
        let answer = self.server.csi_driver(name);
        Box::pin(self.object(request, answer, nothing))
    }

    fn runtime_class<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<RuntimeClass>> {
        let request = ObjectRequest::new(
            EntryKind::RuntimeClass,
            "",
            "runtimeclass.node.k8s.io",
            name,
        );
        let answer = self.server.runtime_class(name);
        Box::pin(self.object(request, answer, nothing))
    }

    fn volume_attachment<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<VolumeAttachment>> {
        self.server.volume_attachment(name)
    }

    fn resource_claim<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> Answer<'a, Arc<ResourceClaim>> {
        self.server.resource_claim(namespace, name)
    }

    fn service_account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> Answer<'a, Arc<ServiceAccount>> {
        self.server.service_account(namespace, name)
    }

    fn service_account_token<'a>(
        &'a self,
        namespace: &'a str,
        service_account: &'a str,
        request: TokenRequestSpec,
    ) -> Answer<'a, TokenRequestStatus> {
        let object_request = ObjectRequest {
            entry: token_entry(namespace, service_account, &request),
            resource: "serviceaccount",
            name: service_account.to_owned(),
        };
        let server = &self.server;
        let answer = server.service_account_token(namespace, service_account, request);
        Box::pin(self.token(object_request, answer))
    }

    fn cluster_trust_bundle<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<ClusterTrustBundle>> {
        let request = ObjectRequest {
            entry: references::trust_bundle(name),
            resource: TRUST_BUNDLE,
            name: name.to_owned(),
        };
        let answer = self.server.cluster_trust_bundle(name);
        Box::pin(self.object(request, answer, nothing))
    }

    fn cluster_trust_bundles_of<'a>(
        &'a self,
        signer_name: &'a str,
    ) -> Answer<'a, Vec<Arc<ClusterTrustBundle>>> {
        let request = ObjectRequest {
            entry: references::signer_bundles(signer_name),
            resource: TRUST_BUNDLE,
            name: signer_name.to_owned(),
        };
        let answer = self.server.cluster_trust_bundles_of(signer_name);
        Box::pin(self.objects(request, answer, |_| true))
    }

    fn services(&self) -> Answer<'_, Vec<Arc<Service>>> {
        self.server.services()
    }

    fn services_for<'a>(&'a self, namespace: &'a str) -> Answer<'a, Vec<Arc<Service>>> {
        let request = ObjectRequest {
            entry: references::services(namespace),
            resource: "service",
            name: namespace.to_owned(),
        };
        let answer = self.server.services_for(namespace);
        Box::pin(self.objects(request, answer, move |service| {
            is_found_in(service, namespace)
        }))
    }

    fn node(&self) -> Answer<'_, Option<Arc<Node>>> {
        let answer = self.server.node();
        Box::pin(async move {
            let node = answer.await?;
            Ok(node.or_else(|| self.checkpoint.node()))
        })
    }

    fn is_standalone(&self) -> bool {
        self.server.is_standalone()
    }
}
