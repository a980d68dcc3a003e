//! How images are pulled, and who may use them.

use super::{
    credentials::plugin::config::CredentialProvider, pull_records::policy::VerificationPolicy,
};

/// How images are pulled, and who may use them.
#[derive(Clone, Debug)]
pub struct ImageOptions {
    /// Pull one image at a time (`serializeImagePulls`).
    pub serialize_pulls: bool,
    /// The most pulls at once if they are not serialized; unlimited when unset
    /// (`maxParallelImagePulls`).
    pub max_parallel_pulls: Option<u32>,
    /// Pulls per second; unlimited when 0 (`registryPullQPS`).
    pub registry_qps: u32,
    /// Pulls that may start at once (`registryBurst`).
    pub registry_burst: u32,
    /// Plugins that provide registry credentials (`--image-credential-provider-config`).
    pub credential_providers: Vec<CredentialProvider>,
    /// When a pod must present credentials for an image that is already on the node
    /// (`imagePullCredentialsVerificationPolicy`).
    pub verification_policy: VerificationPolicy,
}

impl Default for ImageOptions {
    /// Upstream's defaults.
    fn default() -> Self {
        Self {
            serialize_pulls: true,
            max_parallel_pulls: None,
            registry_qps: 5,
            registry_burst: 10,
            credential_providers: Vec::new(),
            verification_policy: VerificationPolicy::default(),
        }
    }
}
