//! Image pull secrets of a pod.

use k8s_openapi::api::core::v1::Pod;
use kubelet_api_client::{
    events::{EventRecorder, Subject, reason},
    objects::Objects,
};
use registry_credentials::{
    docker_config::{DockerConfig, DockerConfigError, from_config_json, from_dockercfg},
    keyring::Keyring,
};
use tracing::warn;

use super::{Coordinates, CredentialSource, CredentialsError, TrackedCredential, add};

type Read = fn(&[u8]) -> Result<DockerConfig, DockerConfigError>;

/// Secret types that hold credentials, each with its data key and parser.
const TYPES: &[(&str, &str, Read)] = &[
    (
        "kubernetes.io/dockerconfigjson",
        ".dockerconfigjson",
        from_config_json,
    ),
    ("kubernetes.io/dockercfg", ".dockercfg", from_dockercfg),
];

/// The credentials of the pod's pull secrets. Secrets that cannot be read, have another type or
/// lack data are skipped.
pub(super) async fn keyring(
    objects: &dyn Objects,
    pod: &Pod,
    events: &EventRecorder,
) -> Result<Keyring<TrackedCredential>, CredentialsError> {
    let mut missing = Vec::new();
    let mut keyring = Keyring::default();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let spec = pod.spec.as_ref();
    let references = spec.and_then(|spec| spec.image_pull_secrets.as_ref());
    for reference in references.into_iter().flatten() {
        // An entry without a name is valid and has no effect.
        if reference.name.is_empty() {
            continue;
        }
        let secret = match objects.secret(namespace, &reference.name).await {
            Ok(secret) => secret,
            Err(error) => {
                warn!(
                    secret = reference.name, %error,
                    "cannot read a pull secret; pulling images may not succeed"
                );
                missing.push(reference.name.as_str());
                continue;
            }
        };
        let kind = secret.type_.as_deref().unwrap_or_default();
        let data = |key: &str| secret.data.as_ref().and_then(|data| data.get(key));
        let Some((bytes, read)) = TYPES
            .iter()
            .find(|(known, ..)| *known == kind)
            .and_then(|(_, key, read)| Some((data(key)?, read)))
            .filter(|(bytes, _)| !bytes.0.is_empty())
        else {
            continue;
        };
        let config = read(&bytes.0).map_err(|source| CredentialsError::Secret {
            namespace: namespace.to_owned(),
            name: reference.name.clone(),
            source,
        })?;
        let coordinates = Coordinates {
            namespace: namespace.to_owned(),
            name: reference.name.clone(),
            uid: secret.metadata.uid.clone().unwrap_or_default(),
        };
        add(&mut keyring, &CredentialSource::Secret(coordinates), config);
    }
    if !missing.is_empty() {
        events.warning(
            Subject::Pod(pod),
            reason::FAILED_TO_RETRIEVE_IMAGE_PULL_SECRET,
            format_args!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image \
                 may not succeed.",
                missing.join(", ")
            ),
        );
    }
    Ok(keyring)
}
