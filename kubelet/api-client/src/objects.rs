//! The objects that pods name: config maps, secrets, claims, services. Served by the
//! API server, and by nothing on a node that has none.

mod api_objects;
mod fetched;
mod followed;
mod named;
mod services;
#[cfg(test)]
mod tests;
mod trust_bundles;

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;
use k8s_openapi::api::{
    authentication::v1::{TokenRequestSpec, TokenRequestStatus},
    certificates::v1beta1::ClusterTrustBundle,
    core::v1::{
        ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Secret, Service, ServiceAccount,
    },
    node::v1::RuntimeClass,
    storage::v1::{CSIDriver, VolumeAttachment},
};
use serde_json::Value;

pub use self::api_objects::{ApiObjects, ApiObjectsParts, ChangeDetection};
use super::request::ApiError;

/// Why an object cannot be had.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ObjectError {
    /// There is none of that name.
    #[error("{resource} {name:?} not found")]
    NotFound {
        /// Its resource, as upstream writes it in messages: `configmap`, `secret`.
        resource: &'static str,
        /// Its name.
        name: String,
    },
    /// The kubelet runs without an API server.
    #[error("{resource} {name:?}: this node has no API server that could serve it")]
    Standalone {
        /// Its resource.
        resource: &'static str,
        /// Its name.
        name: String,
    },
    /// It may be there, and could not be read now.
    #[error("cannot read {resource} {name:?}: {message}")]
    Unavailable {
        /// Its resource.
        resource: &'static str,
        /// Its name.
        name: String,
        /// Why not.
        message: String,
    },
    /// The API server does not let this node have it.
    #[error("cannot read {resource} {name:?}: {message}")]
    Refused {
        /// Its resource.
        resource: &'static str,
        /// Its name.
        name: String,
        /// Why not.
        message: String,
    },
    /// The API server has not said yet what there is of it; in upstream's words.
    #[error("failed to sync {resource} cache: timed out waiting for the condition")]
    NotSynced {
        /// Its resource.
        resource: &'static str,
    },
    /// The API server has not said yet which services there are; in upstream's words.
    #[error("services have not yet been read at least once, cannot construct envvars")]
    ServicesUnread,
    /// The API server has not said yet which trust bundles there are; in upstream's words.
    #[error("ClusterTrustBundle informer has not yet synced")]
    TrustBundlesUnread,
}

impl ObjectError {
    /// Whether it is certain that there is no such object, which is what `optional`
    /// references pass over.
    pub const fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Whether it is for the API server to say what there is of it, and it does not.
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

    /// What an answer of the API server about an object comes to.
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

/// An answer about one object.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, ObjectError>>;

/// Where the objects that pods name come from. An answer is as new as the source can
/// give it without asking anew each time; asking often is cheap.
pub trait Objects: fmt::Debug + Send + Sync {
    /// A config map.
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Arc<ConfigMap>>;

    /// A secret.
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Arc<Secret>>;

    /// A claim of a volume.
    fn persistent_volume_claim<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> Answer<'a, Arc<PersistentVolumeClaim>>;

    /// Changes the status of a claim by a strategic merge patch, and returns the claim.
    fn patch_claim_status<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        patch: Value,
    ) -> Answer<'a, Arc<PersistentVolumeClaim>> {
        let _ = (namespace, patch);
        none("persistentvolumeclaim", name)
    }

    /// A volume of the cluster.
    fn persistent_volume<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<PersistentVolume>>;

    /// What the cluster knows of a CSI driver.
    fn csi_driver<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<CSIDriver>>;

    /// What a class of pods is run by.
    fn runtime_class<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<RuntimeClass>>;

    /// What is known of a volume's being attached to a node.
    fn volume_attachment<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<VolumeAttachment>>;

    /// A service account.
    fn service_account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> Answer<'a, Arc<ServiceAccount>>;

    /// A token of a service account.
    fn service_account_token<'a>(
        &'a self,
        namespace: &'a str,
        service_account: &'a str,
        request: TokenRequestSpec,
    ) -> Answer<'a, TokenRequestStatus>;

    /// A bundle of certificates that the cluster trusts. Every version of the API has the
    /// same of it.
    fn cluster_trust_bundle<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<ClusterTrustBundle>> {
        none("clustertrustbundle.certificates.k8s.io", name)
    }

    /// The bundles that belong to a signer, in the order of their names.
    fn cluster_trust_bundles_of<'a>(
        &'a self,
        signer_name: &'a str,
    ) -> Answer<'a, Vec<Arc<ClusterTrustBundle>>> {
        none("clustertrustbundle.certificates.k8s.io", signer_name)
    }

    /// Every service of the cluster, for the variables of containers. Empty where there is
    /// no API server.
    fn services(&self) -> Answer<'_, Vec<Arc<Service>>>;

    /// The services that pods in a namespace find, at least: those there, and the API
    /// server's own.
    fn services_for<'a>(&'a self, _namespace: &'a str) -> Answer<'a, Vec<Arc<Service>>> {
        self.services()
    }

    /// This node. `None` where there is no API server.
    fn node(&self) -> Answer<'_, Option<Arc<Node>>>;

    /// Whether there is an API server at all.
    fn is_standalone(&self) -> bool {
        false
    }
}

/// The objects of a node without an API server: none.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObjects;

fn none<'a, T: Send + 'a>(resource: &'static str, name: &str) -> Answer<'a, T> {
    let error = ObjectError::Standalone {
        resource,
        name: name.to_owned(),
    };
    Box::pin(std::future::ready(Err(error)))
}

impl Objects for NoObjects {
    fn config_map<'a>(&'a self, _: &'a str, name: &'a str) -> Answer<'a, Arc<ConfigMap>> {
        none("configmap", name)
    }

    fn secret<'a>(&'a self, _: &'a str, name: &'a str) -> Answer<'a, Arc<Secret>> {
        none("secret", name)
    }

    fn persistent_volume_claim<'a>(
        &'a self,
        _: &'a str,
        name: &'a str,
    ) -> Answer<'a, Arc<PersistentVolumeClaim>> {
        none("persistentvolumeclaim", name)
    }

    fn persistent_volume<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<PersistentVolume>> {
        none("persistentvolume", name)
    }

    fn csi_driver<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<CSIDriver>> {
        none("csidriver", name)
    }

    fn runtime_class<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<RuntimeClass>> {
        none("runtimeclass.node.k8s.io", name)
    }

    fn volume_attachment<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<VolumeAttachment>> {
        none("volumeattachment", name)
    }

    fn service_account<'a>(&'a self, _: &'a str, name: &'a str) -> Answer<'a, Arc<ServiceAccount>> {
        none("serviceaccount", name)
    }

    fn service_account_token<'a>(
        &'a self,
        _: &'a str,
        service_account: &'a str,
        _: TokenRequestSpec,
    ) -> Answer<'a, TokenRequestStatus> {
        none("serviceaccount", service_account)
    }

    fn services(&self) -> Answer<'_, Vec<Arc<Service>>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn node(&self) -> Answer<'_, Option<Arc<Node>>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn is_standalone(&self) -> bool {
        true
    }
}
