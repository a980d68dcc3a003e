//! Objects of an API server, in memory.

use std::{
    collections::BTreeMap,
    future::ready,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use k8s_openapi::{
    api::{
        authentication::v1::{TokenRequestSpec, TokenRequestStatus},
        certificates::v1beta1::ClusterTrustBundle,
        core::v1::{
            ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Secret, Service,
            ServiceAccount,
        },
        node::v1::RuntimeClass,
        resource::v1::ResourceClaim,
        storage::v1::{CSIDriver, VolumeAttachment},
    },
    serde::de::DeserializeOwned,
};
use kubelet_api_client::objects::{Answer, ObjectError, Objects};
use serde_json::{Value, json};
use test_api_server::merge;

/// Objects by resource (such as `secret`), namespace (empty if cluster-scoped) and name.
#[derive(Debug, Default)]
pub(crate) struct MemoryObjects {
    objects: Mutex<BTreeMap<(String, String, String), Value>>,
    /// The patches of persistent volume claims.
    patches: Mutex<Vec<Value>>,
    /// The number of reads of persistent volume claims.
    claim_reads: AtomicUsize,
    /// The error of all reads while the API server is down.
    away: Mutex<Option<String>>,
}

impl MemoryObjects {
    /// Creates or replaces an object.
    pub(crate) fn put(&self, resource: &str, mut object: Value) {
        let key = |field: &str| {
            let text = object["metadata"][field].as_str();
            text.unwrap_or_default().to_owned()
        };
        let key = (resource.to_owned(), key("namespace"), key("name"));
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-of-{}", key.2));
        }
        self.objects.lock().unwrap().insert(key, object);
    }

    /// Creates or replaces a config map or secret with this `data`.
    pub(crate) fn put_data(&self, resource: &str, namespace: &str, name: &str, data: Value) {
        let metadata = json!({"namespace": namespace, "name": name});
        self.put(resource, json!({"metadata": metadata, "data": data}));
    }

    /// Removes an object.
    pub(crate) fn remove(&self, resource: &str, namespace: &str, name: &str) {
        let key = (resource.to_owned(), namespace.to_owned(), name.to_owned());
        self.objects.lock().unwrap().remove(&key);
    }

    /// The current object; null if there is none.
    pub(crate) fn get_raw(&self, resource: &str, namespace: &str, name: &str) -> Value {
        let key = (resource.to_owned(), namespace.to_owned(), name.to_owned());
        let objects = self.objects.lock().unwrap();
        objects.get(&key).cloned().unwrap_or_default()
    }

    /// All patches of claims.
    pub(crate) fn patches(&self) -> Vec<Value> {
        self.patches.lock().unwrap().clone()
    }

    /// How often claims were read.
    pub(crate) fn claim_reads(&self) -> usize {
        self.claim_reads.load(Ordering::Relaxed)
    }

    /// Makes all reads fail with `message`, or succeed again.
    pub(crate) fn set_away(&self, message: Option<&str>) {
        *self.away.lock().unwrap() = message.map(str::to_owned);
    }

    /// Whether all reads fail.
    pub(crate) fn is_away(&self) -> bool {
        self.away.lock().unwrap().is_some()
    }

    fn check(&self, resource: &'static str, name: &str) -> Result<(), ObjectError> {
        match &*self.away.lock().unwrap() {
            None => Ok(()),
            Some(message) => Err(ObjectError::Unavailable {
                resource,
                name: name.to_owned(),
                message: message.clone(),
            }),
        }
    }

    fn get<T: DeserializeOwned + Send + Sync + 'static>(
        &self,
        resource: &'static str,
        namespace: &str,
        name: &str,
    ) -> Answer<'_, Arc<T>> {
        if resource == "persistentvolumeclaim" {
            self.claim_reads.fetch_add(1, Ordering::Relaxed);
        }
        let key = (resource.to_owned(), namespace.to_owned(), name.to_owned());
        if let Err(error) = self.check(resource, name) {
            return Box::pin(ready(Err(error)));
        }
        let object = self.objects.lock().unwrap().get(&key).cloned();
        let answer = object
            .map(|object| Arc::new(serde_json::from_value(object).unwrap()))
            .ok_or_else(|| ObjectError::NotFound {
                resource,
                name: name.to_owned(),
            });
        Box::pin(ready(answer))
    }

    fn all<T: DeserializeOwned + Send + Sync + 'static>(
        &self,
        resource: &'static str,
        is_asked_for: impl Fn(&Value) -> bool,
    ) -> Answer<'_, Vec<Arc<T>>> {
        let objects = self.objects.lock().unwrap();
        let objects = objects
            .iter()
            .filter(|(key, object)| key.0 == resource && is_asked_for(object));
        let objects = objects
            .map(|(_, object)| Arc::new(serde_json::from_value(object.clone()).unwrap()))
            .collect();
        let answer = self.check(resource, "").map(|()| objects);
        Box::pin(ready(answer))
    }
}

/// The resource of trust bundles in error messages.
const TRUST_BUNDLE: &str = "clustertrustbundle.certificates.k8s.io";

impl Objects for MemoryObjects {
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Arc<ConfigMap>> {
        self.get("configmap", namespace, name)
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Arc<Secret>> {
        self.get("secret", namespace, name)
    }

    fn persistent_volume_claim<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> Answer<'a, Arc<PersistentVolumeClaim>> {
        self.get("persistentvolumeclaim", namespace, name)
    }

    fn patch_claim_status<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        patch: Value,
    ) -> Answer<'a, Arc<PersistentVolumeClaim>> {
        let resource = "persistentvolumeclaim";
        let mut claim = self.get_raw(resource, namespace, name);
        merge("PersistentVolumeClaim", &mut claim, &patch).unwrap();
        self.put(resource, claim);
        self.patches.lock().unwrap().push(patch);
        self.get(resource, namespace, name)
    }

    fn persistent_volume<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<PersistentVolume>> {
        self.get("persistentvolume", "", name)
    }

    fn csi_driver<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<CSIDriver>> {
        self.get("csidriver", "", name)
    }

    fn runtime_class<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<RuntimeClass>> {
        self.get("runtimeclass.node.k8s.io", "", name)
    }

    fn volume_attachment<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<VolumeAttachment>> {
        self.get("volumeattachment", "", name)
    }

    fn resource_claim<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> Answer<'a, Arc<ResourceClaim>> {
        self.get("resourceclaim.resource.k8s.io", namespace, name)
    }

    fn service_account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> Answer<'a, Arc<ServiceAccount>> {
        self.get("serviceaccount", namespace, name)
    }

    /// The token's text contains its service account and audience.
    fn service_account_token<'a>(
        &'a self,
        namespace: &'a str,
        service_account: &'a str,
        request: TokenRequestSpec,
    ) -> Answer<'a, TokenRequestStatus> {
        let audiences = request.audiences.unwrap_or_default().join(",");
        let status = TokenRequestStatus {
            token: Some(format!("{namespace}:{service_account}:{audiences}")),
            ..TokenRequestStatus::default()
        };
        let answer = self.check("serviceaccount", service_account);
        Box::pin(ready(answer.map(|()| status)))
    }

    fn cluster_trust_bundle<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<ClusterTrustBundle>> {
        self.get(TRUST_BUNDLE, "", name)
    }

    fn cluster_trust_bundles_of<'a>(
        &'a self,
        signer_name: &'a str,
    ) -> Answer<'a, Vec<Arc<ClusterTrustBundle>>> {
        self.all(TRUST_BUNDLE, |bundle| {
            bundle["spec"]["signerName"] == signer_name
        })
    }

    fn services(&self) -> Answer<'_, Vec<Arc<Service>>> {
        self.all("service", |_| true)
    }

    fn node(&self) -> Answer<'_, Option<Arc<Node>>> {
        let objects = self.objects.lock().unwrap();
        let node = objects.iter().find(|(key, _)| key.0 == "node");
        let node = node.map(|(_, object)| serde_json::from_value(object.clone()).unwrap());
        Box::pin(ready(Ok(node.map(Arc::new))))
    }
}
