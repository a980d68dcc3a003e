//! Configuration that the kubelet and the runtime tell each other.

use cri_proto::runtime::v1::{
    CgroupDriver, NetworkConfig, RuntimeConfig, RuntimeConfigRequest, UpdateRuntimeConfigRequest,
};

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

    /// The runtime's cgroup driver; `None` for a runtime that does not tell, such as containerd
    /// before 2.0.
    ///
    /// # Errors
    /// The call failed.
    pub async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>, CriError> {
        let mut client = self.runtime.clone();
        let call = client.runtime_config(RuntimeConfigRequest {});
        match self.call("RuntimeConfig", "", call).await {
            Ok(config) => Ok(config.linux.map(|linux| linux.cgroup_driver())),
            Err(error) if error.is_unimplemented() => {
                self.metrics.note_outdated();
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
