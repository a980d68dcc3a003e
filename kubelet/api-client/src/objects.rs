//! The API objects that pods refer to: config maps, secrets, claims, services. They come from the
//! API server; a standalone kubelet has none.

mod api_objects;
mod named;
mod services;
#[cfg(test)]
mod tests;
mod trust_bundles;
mod ttl_cache;
mod watch_cache;

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;
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
use serde_json::Value;

pub use self::api_objects::{ApiObjects, ApiObjectsParts, ChangeDetection};
use super::request::ApiError;

/// Why an object is not available.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ObjectError {
    /// The object does not exist.
    #[error("{resource} {name:?} not found")]
    NotFound {
        /// Its resource, as upstream writes it in messages: `configmap`, `secret`.
        resource: &'static str,
        /// Its name.
        name: String,
    },
    /// The kubelet runs without an API server.
    #[error("cannot read {resource} {name:?}: this node has no API server")]
    Standalone {
        /// Its resource.
        resource: &'static str,
        /// Its name.
        name: String,
    },
    /// The object may exist but cannot be read now.
    #[error("cannot read {resource} {name:?}: {message}")]
    Unavailable {
        /// Its resource.
        resource: &'static str,
        /// Its name.
        name: String,
        /// The cause.
        message: String,
    },
    /// The API server does not let this node read the object.
    #[error("cannot read {resource} {name:?}: {message}")]
    Refused {
        /// Its resource.
        resource: &'static str,
        /// Its name.
        name: String,
        /// The cause.
        message: String,
    },
    /// The object's watch has no data yet; in upstream's words.
    #[error("failed to sync {resource} cache: timed out waiting for the condition")]
    NotSynced {
        /// Its resource.
        resource: &'static str,
    },
    /// The watch of services has no data yet; in upstream's words.
    #[error("services have not yet been read at least once, cannot construct envvars")]
    ServicesUnread,
    /// The watch of trust bundles has no data yet; in upstream's words.
    #[error("ClusterTrustBundle informer has not yet synced")]
    TrustBundlesUnread,
}

impl ObjectError {
    /// Whether the object certainly does not exist, which `optional` references tolerate.
    pub const fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Whether the API server did not answer, or not yet: the object may exist.
    pub const fn is_away(&self) -> bool {
        matches!(
            self,
            Self::Unavailable { .. }
                | Self::NotSynced { .. }
                | Self::ServicesUnread
                | Self::TrustBundlesUnread
        )
    }

    fn not_found(resource: &'static str, name: &str) -> Self {
        Self::NotFound {
            resource,
            name: name.to_owned(),
        }
    }

    /// Converts an API error about an object.
    fn of(resource: &'static str, name: &str, error: &ApiError) -> Self {
        if error.is_not_found() {
            return Self::not_found(resource, name);
        }
        if error.is_forbidden() {
            return Self::Refused {
                resource,
                name: name.to_owned(),
                message: error.to_string(),
            };
        }
        Self::Unavailable {
            resource,
            name: name.to_owned(),
            message: error.to_string(),
        }
    }
}

/// The result of reading an object.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, ObjectError>>;

/// A source of the API objects that pods refer to. Results are as current as the source can make
/// them without a request per call; calls are cheap. A source without objects of a kind leaves its
/// method as it is.
pub trait Objects: fmt::Debug + Send + Sync {
    /// A pod begins. The config maps and secrets that it refers to may be newer than those of the
    /// same names that earlier pods had.
    fn begin(&self, pod: &Pod) {
        let _ = pod;
    }

    /// A config map.
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Arc<ConfigMap>> {
        let _ = namespace;
        none("configmap", name)
    }

    /// A secret.
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Arc<Secret>> {
        let _ = namespace;
        none("secret", name)
    }

    /// A persistent volume claim.
    fn persistent_volume_claim<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> Answer<'a, Arc<PersistentVolumeClaim>> {
        let _ = namespace;
        none("persistentvolumeclaim", name)
    }

    /// Updates the status of a claim with a strategic merge patch, and returns the claim.
    fn patch_claim_status<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        patch: Value,
    ) -> Answer<'a, Arc<PersistentVolumeClaim>> {
        let _ = (namespace, patch);
        none("persistentvolumeclaim", name)
    }

    /// A persistent volume.
    fn persistent_volume<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<PersistentVolume>> {
        none("persistentvolume", name)
    }

    /// A CSI driver.
    fn csi_driver<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<CSIDriver>> {
        none("csidriver", name)
    }

    /// A runtime class.
    fn runtime_class<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<RuntimeClass>> {
        none("runtimeclass.node.k8s.io", name)
    }

    /// A volume attachment.
    fn volume_attachment<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<VolumeAttachment>> {
        none("volumeattachment", name)
    }

    /// A claim of devices.
    fn resource_claim<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> Answer<'a, Arc<ResourceClaim>> {
        let _ = namespace;
        none("resourceclaim.resource.k8s.io", name)
    }

    /// A service account.
    fn service_account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> Answer<'a, Arc<ServiceAccount>> {
        let _ = namespace;
        none("serviceaccount", name)
    }

    /// Requests a token of a service account.
    fn service_account_token<'a>(
        &'a self,
        namespace: &'a str,
        service_account: &'a str,
        request: TokenRequestSpec,
    ) -> Answer<'a, TokenRequestStatus> {
        let _ = (namespace, request);
        none("serviceaccount", service_account)
    }

    /// A cluster trust bundle. Its content is the same in every version of the API.
    fn cluster_trust_bundle<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<ClusterTrustBundle>> {
        none("clustertrustbundle.certificates.k8s.io", name)
    }

    /// The cluster trust bundles of a signer, ordered by name.
    fn cluster_trust_bundles_of<'a>(
        &'a self,
        signer_name: &'a str,
    ) -> Answer<'a, Vec<Arc<ClusterTrustBundle>>> {
        none("clustertrustbundle.certificates.k8s.io", signer_name)
    }

    /// All services of the cluster, for environment variables. Empty without an API server.
    fn services(&self) -> Answer<'_, Vec<Arc<Service>>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// At least the services visible to pods in a namespace: those in the namespace, and the API
    /// server's own.
    fn services_for<'a>(&'a self, _namespace: &'a str) -> Answer<'a, Vec<Arc<Service>>> {
        self.services()
    }

    /// This node. `None` without an API server.
    fn node(&self) -> Answer<'_, Option<Arc<Node>>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Whether the kubelet runs without an API server.
    fn is_standalone(&self) -> bool {
        false
    }
}

/// The source of a kubelet without an API server: it has no objects.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObjects;

impl Objects for NoObjects {
    fn is_standalone(&self) -> bool {
        true
    }
}

fn none<'a, T: Send + 'a>(resource: &'static str, name: &str) -> Answer<'a, T> {
    let error = ObjectError::Standalone {
        resource,
        name: name.to_owned(),
    };
    Box::pin(std::future::ready(Err(error)))
}
