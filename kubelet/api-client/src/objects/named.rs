//! Kinds of objects that pods refer to by name and that are cached.

use std::fmt;

use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        core::v1::{ConfigMap, Secret},
        node::v1::RuntimeClass,
        storage::v1::CSIDriver,
    },
};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

/// A kind of objects that are cached by name.
pub(super) trait Named:
    Resource<DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned + Send + Sync + 'static
{
    /// Its resource, as upstream writes it in messages.
    const RESOURCE: &'static str;

    /// The API of a namespace, or of the cluster for cluster-scoped kinds.
    fn api(client: Client, namespace: &str) -> Api<Self>;

    /// Whether an object can have this namespace and name.
    fn can_be_named(namespace: &str, name: &str) -> bool {
        is_name(namespace) && is_name(name)
    }

    /// Whether the object cannot change until it is deleted.
    fn is_immutable(&self) -> bool {
        false
    }
}

impl Named for ConfigMap {
    const RESOURCE: &'static str = "configmap";

    fn api(client: Client, namespace: &str) -> Api<Self> {
        Api::namespaced(client, namespace)
    }

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

impl Named for Secret {
    const RESOURCE: &'static str = "secret";

    fn api(client: Client, namespace: &str) -> Api<Self> {
        Api::namespaced(client, namespace)
    }

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

impl Named for CSIDriver {
    const RESOURCE: &'static str = "csidriver";

    fn api(client: Client, _: &str) -> Api<Self> {
        Api::all(client)
    }

    fn can_be_named(_: &str, name: &str) -> bool {
        is_name(name)
    }
}

impl Named for RuntimeClass {
    const RESOURCE: &'static str = "runtimeclass.node.k8s.io";

    fn api(client: Client, _: &str) -> Api<Self> {
        Api::all(client)
    }

    fn can_be_named(_: &str, name: &str) -> bool {
        is_name(name)
    }
}

/// The API of a namespace; `None` if the name is invalid.
pub(super) fn namespaced<K>(client: &Client, namespace: &str) -> Option<Api<K>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    is_name(namespace).then(|| Api::namespaced(client.clone(), namespace))
}

/// Whether an object can have this name. The API server does not validate every name in a pod, and
/// names become part of paths and selectors here.
pub(super) fn is_name(name: &str) -> bool {
    let is_ours = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    !matches!(name, "" | "." | "..") && name.bytes().all(is_ours)
}
