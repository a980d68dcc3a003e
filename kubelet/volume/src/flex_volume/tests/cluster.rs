//! The API objects of a cluster, as far as drivers need them.

use futures::future;
use k8s_openapi::api::core::v1::{Node, Secret};
use kubelet_api_client::objects::{Answer, NoObjects, Objects};
use parking_lot::Mutex;

use super::*;

/// A cluster with one node and one secret, `shop/key`.
#[derive(Clone, Debug, Default)]
pub(super) struct Cluster {
    pub(super) secret: Arc<Secret>,
    pub(super) node: Arc<Mutex<Option<Arc<Node>>>>,
}

impl Cluster {
    pub(super) fn with_secret(kind: &str, data: &Value) -> Self {
        let secret = json!({"type": kind, "data": data});
        Self {
            secret: Arc::new(serde_json::from_value(secret).unwrap()),
            ..Self::default()
        }
    }

    /// Shows a volume as attached and in use.
    pub(super) fn attach(&self, volume: &str, device: &str) {
        let status = json!({
            "volumesInUse": [volume],
            "volumesAttached": [{"name": volume, "devicePath": device}]
        });
        let node = serde_json::from_value(json!({"status": status})).unwrap();
        *self.node.lock() = Some(Arc::new(node));
    }
}

impl Objects for Cluster {
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Arc<Secret>> {
        match (namespace, name) {
            ("shop", "key") => future::ready(Ok(Arc::clone(&self.secret))).boxed(),
            _ => NoObjects.secret(namespace, name),
        }
    }

    fn node(&self) -> Answer<'_, Option<Arc<Node>>> {
        future::ready(Ok(self.node.lock().clone())).boxed()
    }
}
