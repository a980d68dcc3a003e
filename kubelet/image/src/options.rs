//! Options of image pulls and of credential verification.

use super::{
    credentials::plugin::config::CredentialProvider, pull_records::policy::VerificationPolicy,
};

/// Options of image pulls and of credential verification.
#[derive(Clone, Debug)]
pub struct ImageOptions {
    /// Pull one image at a time (`serializeImagePulls`).
    pub serialize_pulls: bool,
    /// Maximum number of parallel pulls if they are not serialized; unlimited if unset
    /// (`maxParallelImagePulls`).
    pub max_parallel_pulls: Option<u32>,
    /// Pulls per second; unlimited if 0 (`registryPullQPS`).
    pub registry_qps: u32,
    /// Maximum burst of pulls (`registryBurst`).
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
