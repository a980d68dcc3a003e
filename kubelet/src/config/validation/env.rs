//! Rules of environment variables.

use k8s_openapi::api::core::v1::{Container, EnvVarSource};

use super::{
    field::{Faults, Path},
    names,
    pod::PodContext,
};

/// Fields of a pod that a variable can hold.
const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Resources of a container that a variable or a file can hold.
pub(super) const RESOURCE_FIELDS: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

pub(super) fn validate(
    container: &Container,
    pod: &PodContext<'_>,
    path: &Path,
    faults: &mut Faults,
) {
    for (index, variable) in container.env.iter().flatten().enumerate() {
        let path = path.child("env").index(index);
        faults.required_text(&path.child("name"), &variable.name, names::env_name);
        if let Some(source) = &variable.value_from {
            let path = path.child("valueFrom");
            if !variable.value.as_deref().unwrap_or_default().is_empty() {
                faults.invalid(&path, "", "may not be specified when `value` is not empty");
            }
            validate_source(source, pod, &path, faults);
        }
    }
    for (index, source) in container.env_from.iter().flatten().enumerate() {
        let path = path.child("envFrom").index(index);
        if let Some(prefix) = source.prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
            faults.text(&path.child("prefix"), prefix, names::env_name);
        }
        match (&source.config_map_ref, &source.secret_ref) {
            (None, None) => faults.invalid(
                &path,
                "",
                "must specify one of: `configMapRef` or `secretRef`",
            ),
            (Some(_), Some(_)) => {
                faults.invalid(
                    &path,
                    "",
                    "may not have more than one field specified at a time",
                );
            }
            (Some(config_map), None) => faults.required_text(
                &path.child("configMapRef").child("name"),
                &config_map.name,
                names::dns1123_subdomain,
            ),
            (None, Some(secret)) => faults.required_text(
                &path.child("secretRef").child("name"),
                &secret.name,
                names::dns1123_subdomain,
            ),
        }
    }
}

fn validate_source(source: &EnvVarSource, pod: &PodContext<'_>, path: &Path, faults: &mut Faults) {
    let given = [
        source.field_ref.is_some(),
        source.resource_field_ref.is_some(),
        source.config_map_key_ref.is_some(),
        source.secret_key_ref.is_some(),
        source.file_key_ref.is_some(),
    ]
    .into_iter()
    .filter(|given| *given)
    .count();
    match given {
        0 => faults.invalid(
            path,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        ),
        1 => {}
        _ => faults.invalid(path, "", "may not have more than one field specified at a time"),
    }
    if let Some(field) = &source.field_ref {
        validate_field_path(
            &field.field_path,
            ENV_FIELDS,
            &path.child("fieldRef").child("fieldPath"),
            faults,
        );
    }
    if let Some(resource) = &source.resource_field_ref {
        validate_resource_field(
            &resource.resource,
            &path.child("resourceFieldRef").child("resource"),
            faults,
        );
    }
    for (reference, name, key) in [
        source
            .config_map_key_ref
            .as_ref()
            .map(|of| ("configMapKeyRef", &of.name, &of.key)),
        source
            .secret_key_ref
            .as_ref()
            .map(|of| ("secretKeyRef", &of.name, &of.key)),
    ]
    .into_iter()
    .flatten()
    {
        let path = path.child(reference);
        faults.required_text(&path.child("name"), name, names::dns1123_subdomain);
        if key.is_empty() {
            faults.required(&path.child("key"), "");
        }
    }
    if let Some(file) = &source.file_key_ref {
        let path = path.child("fileKeyRef");
        faults.required_text(&path.child("key"), &file.key, names::env_name);
        faults.required_text(&path.child("path"), &file.path, names::descending_path);
        if file.volume_name.is_empty() {
            faults.required(&path.child("volumeName"), "");
        } else if !pod.volumes.contains_key(file.volume_name.as_str()) {
            faults.not_found(&path.child("volumeName"), &file.volume_name);
        }
    }
}

/// A path into the pod: one of `supported`, or one label or annotation.
pub(super) fn validate_field_path(
    field: &str,
    supported: &[&str],
    path: &Path,
    faults: &mut Faults,
) {
    if field.is_empty() {
        return faults.required(path, "");
    }
    let key = ["metadata.labels['", "metadata.annotations['"]
        .iter()
        .find_map(|start| field.strip_prefix(start))
        .map(|rest| rest.strip_suffix("']").unwrap_or_default());
    match key {
        Some(key) => faults.text(path, &key.to_lowercase(), names::qualified_name),
        None => faults.one_of(path, field, supported),
    }
}

/// A resource of a container.
pub(super) fn validate_resource_field(resource: &str, path: &Path, faults: &mut Faults) {
    if resource.is_empty() {
        return faults.required(path, "");
    }
    let huge_pages = ["limits.hugepages-", "requests.hugepages-"]
        .iter()
        .any(|start| resource.starts_with(start));
    if !huge_pages {
        faults.one_of(path, resource, RESOURCE_FIELDS);
    }
}
