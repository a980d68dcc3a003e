//! The node configuration that the kubelet sends to the runtime.

use cri_proto::runtime::v1::{NetworkConfig, RuntimeConfig, UpdateRuntimeConfigRequest};

use super::{CriClient, CriError};

impl CriClient {
    /// Sends the networks of the pods' addresses (CIDRs, separated by commas) to the runtime.
    ///
    /// # Errors
    /// The runtime's.
    pub async fn update_runtime_config(&self, pod_cidr: &str) -> Result<(), CriError> {
        let mut client = self.runtime.clone();
        let request = UpdateRuntimeConfigRequest {
            runtime_config: Some(RuntimeConfig {
                network_config: Some(NetworkConfig {
                    pod_cidr: pod_cidr.to_owned(),
                }),
            }),
        };
        let call = client.update_runtime_config(request);
        self.call("UpdateRuntimeConfig", "", call).await.map(drop)
    }
}
