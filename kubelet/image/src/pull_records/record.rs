//! `ImagePullIntent` and `ImagePulledRecord` of `kubelet.config.k8s.io`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kubelet_host::clock;
use serde::{Deserialize, Serialize};

use crate::credentials::{Coordinates, CredentialSource, TrackedCredential};

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// An older version with the same fields.
const OLD_API_VERSION: &str = "kubelet.config.k8s.io/v1alpha1";
const INTENT: &str = "ImagePullIntent";
const PULLED: &str = "ImagePulledRecord";

/// An image that is being pulled.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ImagePullIntent {
    kind: String,
    api_version: String,
    /// The image as written in the pod's spec.
    pub(super) image: String,
}

impl ImagePullIntent {
    pub(super) fn new(image: &str) -> Self {
        Self {
            kind: INTENT.to_owned(),
            api_version: API_VERSION.to_owned(),
            image: image.to_owned(),
        }
    }

    pub(super) fn is_known(&self) -> bool {
        self.kind == INTENT && is_known(&self.api_version)
    }
}

/// An image that was pulled.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ImagePulledRecord {
    kind: String,
    api_version: String,
    last_updated_time: Time,
    /// The runtime's ID of the image.
    pub(super) image_ref: String,
    /// Credentials used, by image name as written in pod specs, without tag and digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) credential_mapping: BTreeMap<String, ImagePullCredentials>,
}

impl ImagePulledRecord {
    pub(super) fn new(image_ref: &str) -> Self {
        Self {
            kind: PULLED.to_owned(),
            api_version: API_VERSION.to_owned(),
            last_updated_time: clock::now_time(),
            image_ref: image_ref.to_owned(),
            credential_mapping: BTreeMap::new(),
        }
    }

    pub(super) fn is_known(&self) -> bool {
        self.kind == PULLED && is_known(&self.api_version)
    }

    /// Adds the credentials of a pull under a name; returns whether they changed the record.
    pub(super) fn add(&mut self, repository: &str, new: ImagePullCredentials) -> bool {
        let changed = match self.credential_mapping.get_mut(repository) {
            None if new.is_empty() => false,
            None => {
                self.credential_mapping.insert(repository.to_owned(), new);
                true
            }
            Some(known) => known.merge(new),
        };
        if changed {
            API_VERSION.clone_into(&mut self.api_version);
            self.last_updated_time = clock::now_time();
        }
        changed
    }
}

fn is_known(version: &str) -> bool {
    [API_VERSION, OLD_API_VERSION].contains(&version)
}

/// The credentials that an image can be pulled with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct ImagePullCredentials {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) kubernetes_secrets: Vec<ImagePullSecret>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) kubernetes_service_accounts: Vec<Coordinates>,
    /// Pulled with the node's credentials or without any, so all pods may use the image.
    #[serde(skip_serializing_if = "is_false")]
    pub(super) node_pods_accessible: bool,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_false(value: &bool) -> bool {
    !value
}

impl ImagePullCredentials {
    /// The entry for a pull with this credential, or with none.
    pub(super) fn of(credential: Option<&TrackedCredential>) -> Self {
        let mut credentials = Self::default();
        match credential.map(|tracked| (tracked, &tracked.source)) {
            None | Some((_, CredentialSource::Node)) => credentials.node_pods_accessible = true,
            Some((tracked, CredentialSource::Secret(coordinates))) => {
                credentials.kubernetes_secrets = vec![ImagePullSecret::of(coordinates, tracked)];
            }
            Some((_, CredentialSource::ServiceAccount(account))) => {
                credentials.kubernetes_service_accounts = vec![account.clone()];
            }
        }
        credentials
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds other credentials; returns whether any were new.
    fn merge(&mut self, new: Self) -> bool {
        if self.node_pods_accessible {
            return false;
        }
        if new.node_pods_accessible {
            *self = new;
            return true;
        }
        let before = self.clone();
        for secret in new.kubernetes_secrets {
            self.kubernetes_secrets
                .retain(|known| known.coordinates != secret.coordinates);
            self.kubernetes_secrets.push(secret);
        }
        self.kubernetes_secrets
            .sort_by(|a, b| a.coordinates.cmp(&b.coordinates));
        self.kubernetes_service_accounts
            .extend(new.kubernetes_service_accounts);
        self.kubernetes_service_accounts.sort_unstable();
        self.kubernetes_service_accounts.dedup();
        *self != before
    }
}

/// A secret that an image was pulled with, and the hash of its credential at that time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ImagePullSecret {
    #[serde(flatten)]
    pub(super) coordinates: Coordinates,
    pub(super) credential_hash: String,
}

impl ImagePullSecret {
    pub(super) fn of(coordinates: &Coordinates, tracked: &TrackedCredential) -> Self {
        Self {
            coordinates: coordinates.clone(),
            credential_hash: tracked.hash.clone(),
        }
    }
}
