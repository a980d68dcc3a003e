//! References from pods to the objects that they need to start.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, Pod, SecretReference, Volume,
};
use kubelet_pod_spec::{identity, references::References};
use sha2::{Digest as _, Sha256};

use super::entry::{Entry, EntryKind};

/// The direct references of a pod.
pub(super) fn of_pod(pod: &Pod) -> BTreeSet<Entry> {
    let namespace = identity::namespace(pod);
    let mut entries = BTreeSet::from_iter(services(namespace));
    let named = References::of(pod);
    let each = |kind: EntryKind| move |name: &str| Entry::new(kind, namespace, name);
    let config_maps = named.config_maps.into_iter();
    entries.extend(config_maps.filter_map(each(EntryKind::ConfigMap)));
    let secrets = named.secrets.into_iter();
    entries.extend(secrets.filter_map(each(EntryKind::Secret)));
    let Some(spec) = &pod.spec else {
        return entries;
    };
    let class = spec.runtime_class_name.as_deref();
    entries.extend(class.and_then(|class| Entry::new(EntryKind::RuntimeClass, "", class)));
    for volume in spec.volumes.iter().flatten() {
        add_volume(&mut entries, pod, volume);
    }
    entries
}

/// Adds the references of a volume, except config maps and secrets.
fn add_volume(entries: &mut BTreeSet<Entry>, pod: &Pod, volume: &Volume) {
    let claim = |name: &str| Entry::new(EntryKind::Claim, identity::namespace(pod), name);
    let projected = volume.projected.as_ref();
    let sources = projected.and_then(|projected| projected.sources.as_ref());
    let sources = sources.into_iter().flatten();
    for source in sources.filter_map(|source| source.cluster_trust_bundle.as_ref()) {
        entries.extend(source.name.as_deref().and_then(trust_bundle));
        entries.extend(source.signer_name.as_deref().and_then(signer_bundles));
    }
    if let Some(source) = &volume.persistent_volume_claim {
        entries.extend(claim(&source.claim_name));
    }
    if volume.ephemeral.is_some() {
        let name = format!("{}-{}", identity::name(pod), volume.name);
        entries.extend(claim(&name));
    }
    if let Some(source) = &volume.csi {
        entries.extend(Entry::new(EntryKind::CsiDriver, "", &source.driver));
    }
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
    let Some(spec) = &volume.spec else {
        return BTreeSet::new();
    };
    let csi = spec.csi.as_ref();
    let flex = spec.flex_volume.as_ref();
    let disk = spec.iscsi.as_ref();
    let references = [
        csi.and_then(|csi| csi.node_stage_secret_ref.as_ref()),
        csi.and_then(|csi| csi.node_publish_secret_ref.as_ref()),
        csi.and_then(|csi| csi.node_expand_secret_ref.as_ref()),
        flex.and_then(|flex| flex.secret_ref.as_ref()),
        disk.and_then(|disk| disk.secret_ref.as_ref()),
    ];
    let claim = spec.claim_ref.as_ref();
    let claim_namespace = claim.and_then(|claim| claim.namespace.as_deref());
    let secret = |reference: &SecretReference| {
        let own = reference.namespace.as_deref();
        let namespace = own.filter(|namespace| !namespace.is_empty());
        let namespace = namespace.or(claim_namespace)?;
        Entry::new(EntryKind::Secret, namespace, reference.name.as_deref()?)
    };
    let secrets = references.into_iter().flatten().filter_map(secret);
    let driver = csi.and_then(|csi| Entry::new(EntryKind::CsiDriver, "", &csi.driver));
    secrets.chain(driver).collect()
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
