//! The config maps and secrets that pods refer to.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, Pod, Volume};

/// The names of the config maps and secrets in a pod's namespace that its spec refers to.
#[derive(Debug, Default)]
pub struct References<'a> {
    /// Names of config maps.
    pub config_maps: BTreeSet<&'a str>,
    /// Names of secrets.
    pub secrets: BTreeSet<&'a str>,
}

impl<'a> References<'a> {
    /// The references of a pod.
    pub fn of(pod: &'a Pod) -> Self {
        let mut references = Self::default();
        let Some(spec) = &pod.spec else {
            return references;
        };
        let pull_secrets = spec.image_pull_secrets.iter().flatten();
        let pull_secrets = pull_secrets.map(|reference| reference.name.as_str());
        references.secrets.extend(pull_secrets);
        for volume in spec.volumes.iter().flatten() {
            references.volume(volume);
        }
        let init = spec.init_containers.iter().flatten();
        for container in init.chain(&spec.containers) {
            references.environment(container.env.as_ref(), container.env_from.as_ref());
        }
        for container in spec.ephemeral_containers.iter().flatten() {
            references.environment(container.env.as_ref(), container.env_from.as_ref());
        }
        references
    }

    fn volume(&mut self, volume: &'a Volume) {
        let config_map = volume.config_map.as_ref();
        let config_map = config_map.map(|source| source.name.as_str());
        self.config_maps.extend(config_map);
        let csi = volume.csi.as_ref();
        let csi = csi.and_then(|csi| csi.node_publish_secret_ref.as_ref());
        let flex = volume.flex_volume.as_ref();
        let flex = flex.and_then(|flex| flex.secret_ref.as_ref());
        let disk = volume.iscsi.as_ref();
        let disk = disk.and_then(|disk| disk.secret_ref.as_ref());
        let secret = volume.secret.as_ref();
        let secrets = [
            secret.and_then(|source| source.secret_name.as_deref()),
            volume.azure_file.as_ref().map(|share| &*share.secret_name),
        ];
        let references = [csi, flex, disk].into_iter().flatten();
        let references = references.map(|reference| reference.name.as_str());
        let secrets = secrets.into_iter().flatten();
        self.secrets.extend(secrets.chain(references));
        let projected = volume.projected.as_ref();
        let sources = projected.and_then(|projected| projected.sources.as_ref());
        for source in sources.into_iter().flatten() {
            let config_map = source.config_map.as_ref();
            let config_map = config_map.map(|source| source.name.as_str());
            self.config_maps.extend(config_map);
            let secret = source.secret.as_ref();
            self.secrets.extend(secret.map(|source| &*source.name));
        }
    }

    fn environment(&mut self, env: Option<&'a Vec<EnvVar>>, from: Option<&'a Vec<EnvFromSource>>) {
        let sources = env.into_iter().flatten();
        for source in sources.filter_map(|variable| variable.value_from.as_ref()) {
            let config_map = source.config_map_key_ref.as_ref();
            let config_map = config_map.map(|selector| selector.name.as_str());
            self.config_maps.extend(config_map);
            let secret = source.secret_key_ref.as_ref();
            self.secrets.extend(secret.map(|selector| &*selector.name));
        }
        for source in from.into_iter().flatten() {
            let config_map = source.config_map_ref.as_ref();
            let config_map = config_map.map(|reference| reference.name.as_str());
            self.config_maps.extend(config_map);
            let secret = source.secret_ref.as_ref();
            self.secrets
                .extend(secret.map(|reference| &*reference.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn everything_that_a_pod_names_is_found() {
        let pod = json!({"spec": {
            "imagePullSecrets": [{"name": "registry"}],
            "initContainers": [{"name": "i", "envFrom": [
                {"configMapRef": {"name": "all"}}, {"secretRef": {"name": "all-secret"}}
            ]}],
            "containers": [{"name": "c", "env": [
                {"name": "A", "value": "plain"},
                {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "one", "key": "k"}}},
                {"name": "C", "valueFrom": {"secretKeyRef": {"name": "one-secret", "key": "k"}}}
            ]}],
            "ephemeralContainers": [{"name": "e", "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "debug", "key": "k"}}}
            ]}],
            "volumes": [
                {"name": "a", "configMap": {"name": "files"}},
                {"name": "b", "secret": {"secretName": "files-secret"}},
                {"name": "c", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "token"}},
                    {"configMap": {"name": "kube-root-ca.crt"}},
                    {"secret": {"name": "projected"}}
                ]}},
                {"name": "d", "csi": {
                    "driver": "csi.example.com", "nodePublishSecretRef": {"name": "csi"}
                }},
                {"name": "e", "flexVolume": {"driver": "a/b", "secretRef": {"name": "flex"}}},
                {"name": "f", "iscsi": {
                    "targetPortal": "10.0.0.1", "iqn": "iqn.2001-04.com.example:a", "lun": 0,
                    "secretRef": {"name": "chap"}
                }},
                {"name": "g", "azureFile": {"secretName": "azure", "shareName": "s"}}
            ]
        }});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let found = References::of(&pod);
        let config_maps = ["all", "debug", "files", "kube-root-ca.crt", "one"];
        assert_eq!(found.config_maps, config_maps.into());
        let secrets = [
            "all-secret",
            "azure",
            "chap",
            "csi",
            "files-secret",
            "flex",
            "one-secret",
            "projected",
            "registry",
        ];
        assert_eq!(found.secrets, secrets.into());
    }
}
