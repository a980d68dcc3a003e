//! References from pods to the objects that they need to start.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    EnvFromSource, EnvVar, PersistentVolume, PersistentVolumeClaim, Pod, SecretReference, Volume,
};
use kubelet_pod_spec::identity;
use sha2::{Digest as _, Sha256};

use super::entry::{Entry, EntryKind};

/// The direct references of a pod.
pub(super) fn of_pod(pod: &Pod) -> BTreeSet<Entry> {
    let namespace = identity::namespace(pod);
    let mut references = References::new(namespace);
    references.entries.extend(services(namespace));
    let Some(spec) = &pod.spec else {
        return references.entries;
    };
    if let Some(class) = &spec.runtime_class_name {
        references.add(EntryKind::RuntimeClass, class);
    }
    for reference in spec.image_pull_secrets.iter().flatten() {
        references.add(EntryKind::Secret, &reference.name);
    }
    for volume in spec.volumes.iter().flatten() {
        references.volume(identity::name(pod), volume);
    }
    let init = spec.init_containers.iter().flatten();
    for container in init.chain(&spec.containers) {
        references.environment(container.env.as_ref(), container.env_from.as_ref());
    }
    for container in spec.ephemeral_containers.iter().flatten() {
        references.environment(container.env.as_ref(), container.env_from.as_ref());
    }
    references.entries
}

/// The services visible to pods in a namespace.
pub(super) fn services(namespace: &str) -> Option<Entry> {
    Entry::new(EntryKind::Services, "", namespace)
}

/// A cluster trust bundle.
pub(super) fn trust_bundle(name: &str) -> Option<Entry> {
    Entry::new(EntryKind::TrustBundle, "", &digest(name))
}

/// The cluster trust bundles of a signer.
pub(super) fn signer_bundles(signer_name: &str) -> Option<Entry> {
    Entry::new(EntryKind::SignerBundles, "", &digest(signer_name))
}

/// A file name for an object whose name may have colons and slashes.
fn digest(name: &str) -> String {
    format!("{:x}", Sha256::digest(name))
}

/// The volume that a claim is bound to.
pub(super) fn of_claim(claim: &PersistentVolumeClaim) -> BTreeSet<Entry> {
    let spec = claim.spec.as_ref();
    let volume = spec.and_then(|spec| spec.volume_name.as_deref());
    let entry = volume.and_then(|volume| Entry::new(EntryKind::Volume, "", volume));
    entry.into_iter().collect()
}

/// The CSI driver of a volume, and the secrets that it needs on this node.
pub(super) fn of_volume(volume: &PersistentVolume) -> BTreeSet<Entry> {
    let spec = volume.spec.as_ref();
    let Some(csi) = spec.and_then(|spec| spec.csi.as_ref()) else {
        return BTreeSet::new();
    };
    let secret = |reference: &SecretReference| {
        let namespace = reference.namespace.as_deref()?;
        Entry::new(EntryKind::Secret, namespace, reference.name.as_deref()?)
    };
    let secrets = [
        &csi.node_stage_secret_ref,
        &csi.node_publish_secret_ref,
        &csi.node_expand_secret_ref,
    ];
    let secrets = secrets.into_iter().flatten().filter_map(secret);
    let driver = Entry::new(EntryKind::CsiDriver, "", &csi.driver);
    secrets.chain(driver).collect()
}

struct References<'a> {
    namespace: &'a str,
    entries: BTreeSet<Entry>,
}

impl<'a> References<'a> {
    const fn new(namespace: &'a str) -> Self {
        Self {
            namespace,
            entries: BTreeSet::new(),
        }
    }

    fn add(&mut self, kind: EntryKind, name: &str) {
        let namespace = match kind.is_namespaced() {
            true => self.namespace,
            false => "",
        };
        self.entries.extend(Entry::new(kind, namespace, name));
    }

    fn volume(&mut self, pod: &str, volume: &Volume) {
        if let Some(source) = &volume.config_map {
            self.add(EntryKind::ConfigMap, &source.name);
        }
        if let Some(source) = &volume.secret {
            self.add(
                EntryKind::Secret,
                source.secret_name.as_deref().unwrap_or_default(),
            );
        }
        let projected = volume.projected.as_ref();
        for source in projected
            .and_then(|p| p.sources.as_ref())
            .into_iter()
            .flatten()
        {
            if let Some(source) = &source.config_map {
                self.add(EntryKind::ConfigMap, &source.name);
            }
            if let Some(source) = &source.secret {
                self.add(EntryKind::Secret, &source.name);
            }
            if let Some(source) = &source.cluster_trust_bundle {
                let bundle = source.name.as_deref().and_then(trust_bundle);
                let bundles = source.signer_name.as_deref().and_then(signer_bundles);
                self.entries.extend(bundle.into_iter().chain(bundles));
            }
        }
        if let Some(source) = &volume.persistent_volume_claim {
            self.add(EntryKind::Claim, &source.claim_name);
        }
        if volume.ephemeral.is_some() {
            self.add(EntryKind::Claim, &format!("{pod}-{}", volume.name));
        }
        if let Some(source) = &volume.csi {
            self.add(EntryKind::CsiDriver, &source.driver);
            if let Some(reference) = &source.node_publish_secret_ref {
                self.add(EntryKind::Secret, &reference.name);
            }
        }
    }

    fn environment(&mut self, env: Option<&Vec<EnvVar>>, from: Option<&Vec<EnvFromSource>>) {
        for source in env
            .into_iter()
            .flatten()
            .filter_map(|v| v.value_from.as_ref())
        {
            if let Some(selector) = &source.config_map_key_ref {
                self.add(EntryKind::ConfigMap, &selector.name);
            }
            if let Some(selector) = &source.secret_key_ref {
                self.add(EntryKind::Secret, &selector.name);
            }
        }
        for source in from.into_iter().flatten() {
            if let Some(reference) = &source.config_map_ref {
                self.add(EntryKind::ConfigMap, &reference.name);
            }
            if let Some(reference) = &source.secret_ref {
                self.add(EntryKind::Secret, &reference.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn words(entries: BTreeSet<Entry>) -> Vec<String> {
        entries.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn everything_that_a_pod_names_is_found() {
        let pod = json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {
                "runtimeClassName": "gvisor",
                "imagePullSecrets": [{"name": "registry"}],
                "initContainers": [{"name": "i", "envFrom": [
                    {"configMapRef": {"name": "all"}}, {"secretRef": {"name": "all-secret"}}
                ]}],
                "containers": [{"name": "c", "env": [
                    {"name": "A", "value": "plain"},
                    {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "one", "key": "k"}}},
                    {"name": "C", "valueFrom": {"secretKeyRef": {"name": "one-secret", "key": "k"}}}
                ]}],
                "volumes": [
                    {"name": "a", "configMap": {"name": "files"}},
                    {"name": "b", "secret": {"secretName": "files-secret"}},
                    {"name": "c", "projected": {"sources": [
                        {"serviceAccountToken": {"path": "token"}},
                        {"configMap": {"name": "kube-root-ca.crt"}},
                        {"secret": {"name": "projected"}}
                    ]}},
                    {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
                    {"name": "e", "ephemeral": {}},
                    {"name": "f", "csi": {
                        "driver": "csi.example.com", "nodePublishSecretRef": {"name": "csi"}
                    }}
                ]
            }
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(
            words(of_pod(&pod)),
            [
                "services/shop",
                "configmaps/shop/all",
                "configmaps/shop/files",
                "configmaps/shop/kube-root-ca.crt",
                "configmaps/shop/one",
                "secrets/shop/all-secret",
                "secrets/shop/csi",
                "secrets/shop/files-secret",
                "secrets/shop/one-secret",
                "secrets/shop/projected",
                "secrets/shop/registry",
                "persistentvolumeclaims/shop/data",
                "persistentvolumeclaims/shop/web-e",
                "csidrivers/csi.example.com",
                "runtimeclasses/gvisor",
            ]
        );
    }

    #[test]
    fn trust_bundles_are_found_by_name_and_by_signer() {
        let pod = json!({"spec": {"containers": [], "volumes": [
            {"name": "a", "projected": {"sources": [
                {"clusterTrustBundle": {"path": "a", "name": "example.com:ca:1"}},
                {"clusterTrustBundle": {"path": "b", "signerName": "example.com/ca"}}
            ]}}
        ]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let entries = of_pod(&pod);
        for entry in [
            trust_bundle("example.com:ca:1"),
            signer_bundles("example.com/ca"),
        ] {
            assert!(entries.contains(&entry.unwrap()), "{entries:?}");
        }
    }

    #[test]
    fn claims_lead_to_volumes_and_these_to_drivers() {
        let claim = json!({"spec": {"volumeName": "pv-1"}});
        let claim = serde_json::from_value(claim).unwrap();
        assert_eq!(words(of_claim(&claim)), ["persistentvolumes/pv-1"]);
        let volume = json!({"spec": {"csi": {
            "driver": "csi.example.com", "volumeHandle": "1",
            "nodeStageSecretRef": {"name": "stage", "namespace": "storage"}
        }}});
        let volume = serde_json::from_value(volume).unwrap();
        assert_eq!(
            words(of_volume(&volume)),
            ["secrets/storage/stage", "csidrivers/csi.example.com"]
        );
    }
}
