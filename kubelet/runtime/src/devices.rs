//! The devices of containers: those of resource claims, and those of device plugins.

use cri_proto::runtime::v1::{CdiDevice, ContainerConfig, Device, KeyValue, Mount};
use k8s_openapi::api::core::v1::{Container, Pod};
use kubelet_device_manager::ContainerDevices;
use kubelet_pod_spec::identity::PodUid;

use crate::{RuntimeManager, start_error::StartError};

impl RuntimeManager {
    /// Whether a pod uses resource claims, or did before its end.
    pub fn has_claims(&self, pod: &PodUid) -> bool {
        self.dra.has_claims(pod)
    }

    /// Adds what a container needs to use its devices to its config.
    pub(crate) async fn add_devices(
        &self,
        pod: &Pod,
        container: &Container,
        config: &mut ContainerConfig,
    ) -> Result<(), StartError> {
        let claimed = self.dra.cdi_devices(pod, container).await;
        let claimed = claimed.map_err(StartError::Claims)?.into_iter();
        let claimed = claimed.map(|name| CdiDevice { name });
        config.cdi_devices.extend(claimed);
        let devices = self.managers.container_devices(pod, &container.name).await;
        add(devices.map_err(StartError::Devices)?, config);
        Ok(())
    }
}

/// The container's own variables and annotations win, as upstream.
fn add(devices: ContainerDevices, config: &mut ContainerConfig) {
    let ContainerDevices {
        variables,
        mounts,
        nodes,
        annotations,
        cdi,
    } = devices;
    let variables = variables.into_iter();
    let variables = variables.filter(|(key, _)| !config.envs.iter().any(|env| env.key == *key));
    let variables: Vec<KeyValue> = variables
        .map(|(key, value)| KeyValue {
            key,
            value: value.into_bytes(),
        })
        .collect();
    config.envs.splice(..0, variables);
    let mounts = mounts.into_iter();
    let mounts = mounts.map(|(container_path, (host_path, readonly))| Mount {
        container_path,
        host_path,
        readonly,
        ..Mount::default()
    });
    config.mounts.splice(..0, mounts);
    let nodes = nodes.into_iter();
    let nodes = nodes.map(|(container_path, (host_path, permissions))| Device {
        container_path,
        host_path,
        permissions,
    });
    config.devices.splice(..0, nodes);
    for (name, value) in annotations {
        config.annotations.entry(name).or_insert(value);
    }
    let cdi = cdi.into_iter().map(|name| CdiDevice { name });
    let known = config.cdi_devices.clone();
    let cdi = cdi.filter(|device| !known.contains(device));
    config.cdi_devices.extend(cdi);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_container_sets_itself_wins() {
        let env = |key: &str, value: &str| KeyValue {
            key: key.to_owned(),
            value: value.into(),
        };
        let mut config = ContainerConfig {
            envs: vec![env("OWN", "1")],
            annotations: [("own".to_owned(), "1".to_owned())].into(),
            ..ContainerConfig::default()
        };
        let map = |value: &str| {
            ["OWN", "own", "other"]
                .map(|key| (key.to_owned(), value.to_owned()))
                .into()
        };
        let devices = ContainerDevices {
            variables: map("2"),
            mounts: [("/c".to_owned(), ("/h".to_owned(), true))].into(),
            nodes: [("/dev/c".to_owned(), ("/dev/h".to_owned(), "rw".to_owned()))].into(),
            annotations: map("2"),
            cdi: vec!["x.y/gpu=0".to_owned()],
        };
        add(devices, &mut config);
        let envs = [env("other", "2"), env("own", "2"), env("OWN", "1")];
        assert_eq!(config.envs, envs);
        assert_eq!(config.annotations["own"], "1");
        assert_eq!(config.annotations["other"], "2");
        assert!(config.mounts[0].readonly && config.mounts[0].host_path == "/h");
        assert_eq!(config.devices[0].host_path, "/dev/h");
        assert_eq!(config.cdi_devices[0].name, "x.y/gpu=0");
    }
}
