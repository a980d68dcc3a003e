//! Rules of environment variables.

use k8s_openapi::{
    api::core::v1::{Container, EnvVarSource, ResourceFieldSelector},
    apimachinery::pkg::api::resource::Quantity,
};

use super::context::PodContext;
use crate::{
    field::{Faults, Path},
    names, quantity,
};

/// Pod fields that environment variables support.
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

/// Container resources that environment variables and downward API files support.
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
            let has_value = !variable.value.as_deref().unwrap_or_default().is_empty();
            validate_source(source, has_value, pod, &path.child("valueFrom"), faults);
        }
    }
    for (index, source) in container.env_from.iter().flatten().enumerate() {
        let list = path.child("envFrom");
        let path = list.index(index);
        if let Some(prefix) = source.prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
            faults.text(&path.child("prefix"), prefix, names::env_name);
        }
        match (&source.config_map_ref, &source.secret_ref) {
            (None, None) => faults.invalid(
                &list,
                "",
                "must specify one of: `configMapRef` or `secretRef`",
            ),
            (Some(_), Some(_)) => {
                faults.invalid(
                    &list,
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

fn validate_source(
    source: &EnvVarSource,
    has_value: bool,
    pod: &PodContext<'_>,
    path: &Path,
    faults: &mut Faults,
) {
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
        _ if has_value => {
            faults.invalid(path, "", "may not be specified when `value` is not empty");
        }
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
        let path = path.child("resourceFieldRef");
        validate_resource_field(&resource.resource, &path.child("resource"), faults);
        validate_divisor(resource, &path.child("divisor"), faults);
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
        faults.required_text(&path.child("key"), key, names::config_key);
    }
    if let Some(file) = &source.file_key_ref {
        let path = path.child("fileKeyRef");
        faults.required_text(&path.child("key"), &file.key, names::env_name);
        faults.required_text(&path.child("path"), &file.path, names::no_back_step);
        let volume = &file.volume_name;
        let path = path.child("volumeName");
        match pod.volumes.get(volume.as_str()) {
            _ if volume.is_empty() => faults.required(&path, ""),
            None => faults.not_found(&path, volume),
            Some(source) if source.empty_dir.is_none() => {
                faults.invalid(&path, volume, "referenced volume must be of type emptyDir");
            }
            Some(_) => {}
        }
    }
}

/// Checks a field path of the pod: one of `supported`, or a single label or annotation.
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

/// Checks a resource of a container.
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

/// Checks the divisor of a resource: one of its supported units, or 0 for the default.
fn validate_divisor(selector: &ResourceFieldSelector, path: &Path, faults: &mut Faults) {
    const CPU: &[&str] = &["1m", "1"];
    const BYTES: &[&str] = &[
        "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
    ];
    let Some(Quantity(text)) = &selector.divisor else {
        return;
    };
    let Ok(divisor) = quantity::parse(text) else {
        return faults.invalid(path, text, quantity::QuantityError);
    };
    let resource = &selector.resource;
    let (allowed, what) = match resource.split_once('.').map(|(_, name)| name) {
        Some("cpu") => (CPU, "cpu"),
        Some("memory") => (BYTES, "memory"),
        Some("ephemeral-storage") => (BYTES, "local ephemeral storage"),
        Some(name) if name.starts_with("hugepages-") => (BYTES, "hugepages"),
        _ => return,
    };
    let mut amounts = allowed.iter().map(|step| quantity::parse(step));
    if divisor != 0 && !amounts.any(|amount| amount == Ok(divisor)) {
        let values = match what {
            "cpu" => "1m and 1".to_owned(),
            _ => allowed.join(", "),
        };
        faults.invalid(
            path,
            resource,
            format_args!("only divisor's values {values} are supported with the {what} resource"),
        );
    }
}
