//! Registry credentials from the pod's pull secrets, the node's docker configuration and credential
//! provider plugins, tried in this order.

pub mod plugin;
mod secrets;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use kubelet_api_client::{events::EventRecorder, objects::Objects};
use kubelet_host::repeatable;
use registry_credentials::{
    Credential,
    docker_config::{DockerConfig, DockerConfigError},
    docker_config_files::DockerConfigFiles,
    keyring::Keyring,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use self::plugin::{config::CredentialProvider, provider::Provider};
use crate::metrics::PluginMetrics;

/// Identifies an API object. The UID differs between objects that had the same name at different
/// times.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Coordinates {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// Where a credential comes from, and thus which pods may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    /// The node, for all of its pods.
    Node,
    /// A secret, for the pods that reference it.
    Secret(Coordinates),
    /// A service account, for the pods that run as it.
    ServiceAccount(Coordinates),
}

/// A credential and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackedCredential {
    /// The credential to send to the registry.
    pub credential: Credential,
    /// Hash of the credential.
    pub hash: String,
    /// Its source.
    pub source: CredentialSource,
}

/// Why the credentials cannot be looked up.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A pull secret has invalid data.
    #[error("imagePullSecrets: secret {namespace}/{name}: {source}")]
    Secret {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// What is wrong with it.
        source: DockerConfigError,
    },
}

/// SHA-256 of a credential in Go's JSON encoding, so that hashes match those in the upstream
/// kubelet's records.
fn hash(credential: &Credential) -> String {
    #[derive(Serialize)]
    struct Fields<'a> {
        #[serde(skip_serializing_if = "str::is_empty")]
        username: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        password: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        email: &'a str,
    }
    let fields = Fields {
        username: &credential.username,
        password: &credential.password,
        email: &credential.email,
    };
    // Three strings always serialize.
    let mut json = serde_json::to_string(&fields).unwrap_or_default();
    for (character, escaped) in [
        ('<', "\\u003c"),
        ('>', "\\u003e"),
        ('&', "\\u0026"),
        ('\u{2028}', "\\u2028"),
        ('\u{2029}', "\\u2029"),
    ] {
        json = json.replace(character, escaped);
    }
    format!("{:x}", Sha256::digest(json))
}

/// Adds the credentials of a docker configuration, with their source.
fn add(keyring: &mut Keyring<TrackedCredential>, source: &CredentialSource, config: DockerConfig) {
    keyring.add(config, |credential| TrackedCredential {
        hash: hash(&credential),
        credential,
        source: source.clone(),
    });
}

/// All sources of credentials.
#[derive(Debug)]
pub struct Credentials {
    objects: Arc<dyn Objects>,
    events: EventRecorder,
    node: Arc<DockerConfigFiles>,
    providers: Vec<Provider>,
}

impl Credentials {
    /// The sources of a node whose kubelet has the root directory `root_dir`.
    pub fn new(
        root_dir: &Path,
        providers: &[CredentialProvider],
        metrics: &Arc<PluginMetrics>,
        objects: Arc<dyn Objects>,
        events: EventRecorder,
    ) -> Self {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        Self {
            objects,
            events,
            node: Arc::new(DockerConfigFiles::new(root_dir, &home.unwrap_or_default())),
            providers: providers
                .iter()
                .map(|config| Provider::new(config.clone(), Arc::clone(metrics)))
                .collect(),
        }
    }

    /// Credentials that may let the pod pull from a repository (full name without tag), in the
    /// order in which to try them.
    ///
    /// # Errors
    /// A pull secret has invalid data. Missing secrets and failed plugins are skipped.
    pub async fn lookup(
        &self,
        pod: &Pod,
        repository: &str,
    ) -> Result<Vec<TrackedCredential>, CredentialsError> {
        let secrets = secrets::keyring(&*self.objects, pod, &self.events).await?;
        let mut found = secrets.lookup(repository);

        let node = Arc::clone(&self.node);
        // Fails only if the read panics, which counts as no credentials.
        let config = repeatable::blocking(move || node.read())
            .await
            .unwrap_or_default();
        let mut keyring = Keyring::default();
        add(&mut keyring, &CredentialSource::Node, config);
        found.extend(keyring.lookup(repository));

        let mut keyring = Keyring::default();
        for provider in &self.providers {
            let (config, source) = provider.provide(repository, pod, &*self.objects).await;
            add(&mut keyring, &source, config);
        }
        found.extend(keyring.lookup(repository));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_upstream_kubelet() {
        let credential = Credential {
            username: "user".to_owned(),
            password: "p<&>".to_owned(),
            email: String::new(),
        };
        let json = br#"{"username":"user","password":"p\u003c\u0026\u003e"}"#;
        assert_eq!(hash(&credential), format!("{:x}", Sha256::digest(json)));
    }
}
