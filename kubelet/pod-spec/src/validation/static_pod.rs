//! What static pods must not have: references to API objects.

use k8s_openapi::api::core::v1::{Pod, PodSpec, Volume};

use crate::field::{Faults, FieldError, Path};

/// A volume source that refers to an API object: its field, the resource that it refers to, and
/// whether a volume has it.
type Reference = (&'static str, &'static str, fn(&Volume) -> bool);

const VOLUMES: &[Reference] = &[
    ("configMap", "configmaps", |v| v.config_map.is_some()),
    ("secret", "secrets", |v| v.secret.is_some()),
    ("csi", "csidrivers", |v| v.csi.is_some()),
    ("glusterfs", "endpoints", |v| v.glusterfs.is_some()),
    ("persistentVolumeClaim", "persistentvolumeclaims", |v| {
        v.persistent_volume_claim.is_some()
    }),
    ("ephemeral", "persistentvolumeclaims", |v| {
        v.ephemeral.is_some()
    }),
    ("azureFile", "secrets", |v| v.azure_file.is_some()),
    // Sources with an optional secret for their credentials.
    ("cephfs", "secrets", |v| {
        v.cephfs.as_ref().is_some_and(|s| s.secret_ref.is_some())
    }),
    ("cinder", "secrets", |v| {
        v.cinder.as_ref().is_some_and(|s| s.secret_ref.is_some())
    }),
    ("flexVolume", "secrets", |v| {
        v.flex_volume
            .as_ref()
            .is_some_and(|s| s.secret_ref.is_some())
    }),
    ("iscsi", "secrets", |v| {
        v.iscsi.as_ref().is_some_and(|s| s.secret_ref.is_some())
    }),
    ("rbd", "secrets", |v| {
        v.rbd.as_ref().is_some_and(|s| s.secret_ref.is_some())
    }),
    ("scaleIO", "secrets", |v| v.scale_io.is_some()),
    ("storageos", "secrets", |v| {
        v.storageos.as_ref().is_some_and(|s| s.secret_ref.is_some())
    }),
];

/// The references of a static pod to API objects; empty if the pod may run.
pub fn validate_references(pod: &Pod) -> Vec<FieldError> {
    let mut faults = Faults::default();
    if let Some(spec) = &pod.spec {
        let path = Path::new("spec");
        of_spec(spec, &path, &mut faults);
        of_containers(spec, &path, &mut faults);
        for (index, volume) in spec.volumes.iter().flatten().enumerate() {
            of_volume(volume, &path.child("volumes").index(index), &mut faults);
        }
    }
    faults.into_vec()
}

fn forbid(path: &Path, resource: &str, faults: &mut Faults) {
    faults.forbidden(path, &format!("static pods may not reference {resource}"));
}

fn of_spec(spec: &PodSpec, path: &Path, faults: &mut Faults) {
    let account = spec.service_account_name.as_deref().unwrap_or_default();
    if !account.is_empty() {
        forbid(&path.child("serviceAccountName"), "serviceaccounts", faults);
    }
    for (field, resource, given) in [
        (
            "imagePullSecrets",
            "secrets",
            spec.image_pull_secrets
                .iter()
                .flatten()
                .any(|secret| !secret.name.is_empty()),
        ),
        (
            "resourceClaims",
            "resourceclaims",
            spec.resource_claims
                .as_ref()
                .is_some_and(|claims| !claims.is_empty()),
        ),
    ] {
        if given {
            forbid(&path.child(field), resource, faults);
        }
    }
}

fn of_containers(spec: &PodSpec, path: &Path, faults: &mut Faults) {
    let groups = [
        (
            "initContainers",
            spec.init_containers.as_deref().unwrap_or_default(),
        ),
        ("containers", spec.containers.as_slice()),
    ];
    for (field, containers) in groups {
        for (index, container) in containers.iter().enumerate() {
            let path = path.child(field).index(index);
            for (index, variable) in container.env.iter().flatten().enumerate() {
                let path = path.child("env").index(index).child("valueFrom");
                let Some(source) = &variable.value_from else {
                    continue;
                };
                if source.config_map_key_ref.is_some() {
                    forbid(&path.child("configMapKeyRef"), "configmaps", faults);
                }
                if source.secret_key_ref.is_some() {
                    forbid(&path.child("secretKeyRef"), "secrets", faults);
                }
            }
            for (index, source) in container.env_from.iter().flatten().enumerate() {
                let path = path.child("envFrom").index(index);
                if source.config_map_ref.is_some() {
                    forbid(&path.child("configMapRef"), "configmaps", faults);
                }
                if source.secret_ref.is_some() {
                    forbid(&path.child("secretRef"), "secrets", faults);
                }
            }
        }
    }
}

fn of_volume(volume: &Volume, path: &Path, faults: &mut Faults) {
    for (field, resource, has) in VOLUMES {
        if has(volume) {
            forbid(&path.child(field), resource, faults);
        }
    }
    let projections = volume
        .projected
        .iter()
        .flat_map(|projected| projected.sources.iter().flatten());
    for (index, source) in projections.enumerate() {
        let path = path.child("projected").child("sources").index(index);
        for (field, resource, given) in [
            ("configMap", "configmaps", source.config_map.is_some()),
            ("secret", "secrets", source.secret.is_some()),
            (
                "serviceAccountToken",
                "serviceaccounts",
                source.service_account_token.is_some(),
            ),
            (
                "clusterTrustBundle",
                "clustertrustbundles",
                source.cluster_trust_bundle.is_some(),
            ),
            (
                "podCertificate",
                "podcertificates",
                source.pod_certificate.is_some(),
            ),
        ] {
            if given {
                forbid(&path.child(field), resource, faults);
            }
        }
    }
}
