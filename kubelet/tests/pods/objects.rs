//! An API server's objects, in memory.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{
    authentication::v1::{TokenRequestSpec, TokenRequestStatus},
    core::v1::{ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Secret, Service},
    storage::v1::CSIDriver,
};
use kubelet::apiserver::objects::{Answer, ObjectError, Objects};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Resource, namespace, name.
type Key = (String, String, String);

/// Objects that a test puts there and takes away.
#[derive(Debug, Default)]
pub struct MemoryObjects {
    objects: Mutex<BTreeMap<Key, Value>>,
    /// While it is set, nothing can be read.
    away: Mutex<Option<String>>,
}

fn key(resource: &str, namespace: &str, name: &str) -> Key {
    (resource.to_owned(), namespace.to_owned(), name.to_owned())
}

impl MemoryObjects {
    /// Puts an object there, in the place of one of the same name. `resource` is as in
    /// messages: `configmap`, `secret`, `service`, `node`.
    pub fn put(&self, resource: &str, object: Value) {
        let metadata = &object["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default();
        let key = key(resource, text("namespace"), text("name"));
        self.objects.lock().insert(key, object);
    }

    /// A config map or secret with this `data`.
    pub fn put_data(&self, resource: &str, namespace: &str, name: &str, data: Value) {
        let metadata = json!({"namespace": namespace, "name": name});
        self.put(resource, json!({"metadata": metadata, "data": data}));
    }

    /// Takes an object away.
    pub fn remove(&self, resource: &str, namespace: &str, name: &str) {
        self.objects.lock().remove(&key(resource, namespace, name));
    }

    /// Lets every question fail with `message`, or none.
    pub fn set_away(&self, message: Option<&str>) {
        *self.away.lock() = message.map(str::to_owned);
    }

    fn unavailable(&self, resource: &'static str, name: &str) -> Result<(), ObjectError> {
        match &*self.away.lock() {
            None => Ok(()),
            Some(message) => Err(ObjectError::Unavailable {
                resource,
                name: name.to_owned(),
                message: message.clone(),
            }),
        }
    }

    fn get<T: DeserializeOwned>(
        &self,
        resource: &'static str,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<T>, ObjectError> {
        self.unavailable(resource, name)?;
        let objects = self.objects.lock();
        let object = objects.get(&key(resource, namespace, name));
        let object = object.ok_or_else(|| ObjectError::NotFound {
            resource,
            name: name.to_owned(),
        })?;
        Ok(Arc::new(serde_json::from_value(object.clone()).unwrap()))
    }

    fn all<T: DeserializeOwned>(&self, resource: &'static str) -> Result<Vec<Arc<T>>, ObjectError> {
        self.unavailable(resource, "")?;
        let objects = self.objects.lock();
        let all = objects.iter().filter(|((of, ..), _)| of == resource);
        Ok(all
            .map(|(_, object)| Arc::new(serde_json::from_value(object.clone()).unwrap()))
            .collect())
    }
}

fn ready<'a, T: Send + 'a>(answer: Result<T, ObjectError>) -> Answer<'a, T> {
    Box::pin(std::future::ready(answer))
}

impl Objects for MemoryObjects {
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Arc<ConfigMap>> {
        ready(self.get("configmap", namespace, name))
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Arc<Secret>> {
        ready(self.get("secret", namespace, name))
    }

    fn persistent_volume_claim<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> Answer<'a, Arc<PersistentVolumeClaim>> {
        ready(self.get("persistentvolumeclaim", namespace, name))
    }

    fn persistent_volume<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<PersistentVolume>> {
        ready(self.get("persistentvolume", "", name))
    }

    fn csi_driver<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<CSIDriver>> {
        ready(self.get("csidriver", "", name))
    }

    /// A token that names its account and audiences, valid for long.
    fn service_account_token<'a>(
        &'a self,
        namespace: &'a str,
        service_account: &'a str,
        request: TokenRequestSpec,
    ) -> Answer<'a, TokenRequestStatus> {
        let resource = "serviceaccount";
        let known = self.get::<Value>(resource, namespace, service_account);
        ready(known.map(|_| {
            let audiences = request.audiences.unwrap_or_default().join(",");
            serde_json::from_value(json!({
                "token": format!("{namespace}/{service_account}/{audiences}"),
                "expirationTimestamp": "2100-01-01T00:00:00Z",
            }))
            .unwrap()
        }))
    }

    fn services(&self) -> Answer<'_, Vec<Arc<Service>>> {
        ready(self.all("service"))
    }

    fn node(&self) -> Answer<'_, Option<Arc<Node>>> {
        ready(self.all("node").map(|nodes| nodes.into_iter().next()))
    }
}
