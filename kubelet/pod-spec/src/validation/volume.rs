//! Rules of volumes.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, Volume, VolumeProjection};

use super::{
    env::{validate_field_path, validate_resource_field},
    mounts,
};
use crate::{
    field::{Faults, Path},
    json, names, quantity,
};

const MAX_MODE: i64 = 0o777;

/// Pod fields that downward API files support.
const FILE_FIELDS: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];

pub(super) fn validate_all(volumes: &[Volume], path: &Path, faults: &mut Faults) {
    let mut seen = HashSet::new();
    for (index, volume) in volumes.iter().enumerate() {
        let path = path.index(index);
        faults.required_text(&path.child("name"), &volume.name, names::dns1123_label);
        if !volume.name.is_empty() && !seen.insert(volume.name.as_str()) {
            faults.duplicate(&path.child("name"), &volume.name);
        }
        for source in sources(volume).iter().skip(1) {
            faults.forbidden(
                &path.child(source),
                "may not specify more than 1 volume type",
            );
        }
        validate_source(volume, &path, faults);
    }
}

/// Names of a volume's or projection's sources: all its fields except the name.
fn sources(volume: &impl serde::Serialize) -> Vec<String> {
    match json::to_value(volume) {
        Ok(serde_json::Value::Object(fields)) => fields
            .into_iter()
            .map(|(field, _)| field)
            .filter(|field| field != "name")
            .collect(),
        _ => Vec::new(),
    }
}

fn validate_source(volume: &Volume, path: &Path, faults: &mut Faults) {
    if let Some(host_path) = &volume.host_path {
        let path = path.child("hostPath");
        faults.required_text(&path.child("path"), &host_path.path, names::no_back_step);
        faults.one_of(
            &path.child("type"),
            host_path.type_.as_deref().unwrap_or_default(),
            &[
                "",
                "BlockDevice",
                "CharDevice",
                "Directory",
                "DirectoryOrCreate",
                "File",
                "FileOrCreate",
                "Socket",
            ],
        );
    }
    if let Some(empty_dir) = &volume.empty_dir {
        let path = path.child("emptyDir");
        if let Some(limit) = &empty_dir.size_limit {
            match quantity::parse(&limit.0) {
                Err(error) => faults.invalid(&path.child("sizeLimit"), &limit.0, error),
                Ok(amount) if amount < 0 => faults.forbidden(
                    &path.child("sizeLimit"),
                    "SizeLimit field must be a valid resource quantity",
                ),
                Ok(_) => {}
            }
        }
        let medium = empty_dir.medium.as_deref().unwrap_or_default();
        if !medium.starts_with("HugePages") {
            faults.one_of(&path.child("medium"), medium, &["", "HugePages", "Memory"]);
        }
    }
    if let Some(downward) = &volume.downward_api {
        let path = path.child("downwardAPI");
        mode(downward.default_mode, &path.child("defaultMode"), faults);
        let items = downward.items.as_deref().unwrap_or_default();
        downward_files(items, &path.child("items"), faults);
    }
    if let Some(projected) = &volume.projected {
        let path = path.child("projected");
        mode(projected.default_mode, &path.child("defaultMode"), faults);
        for (index, source) in projected.sources.iter().flatten().enumerate() {
            projection(source, &path.child("sources").index(index), faults);
        }
    }
    if let Some(config_map) = &volume.config_map {
        let path = path.child("configMap");
        faults.required_text(
            &path.child("name"),
            &config_map.name,
            names::dns1123_subdomain,
        );
        mode(config_map.default_mode, &path.child("defaultMode"), faults);
        key_paths(config_map.items.as_deref(), &path.child("items"), faults);
    }
    if let Some(secret) = &volume.secret {
        let path = path.child("secret");
        let name = secret.secret_name.as_deref().unwrap_or_default();
        faults.required_text(&path.child("secretName"), name, names::dns1123_subdomain);
        mode(secret.default_mode, &path.child("defaultMode"), faults);
        key_paths(secret.items.as_deref(), &path.child("items"), faults);
    }
    if let Some(image) = &volume.image {
        let path = path.child("image");
        if image.reference.as_deref().unwrap_or_default().is_empty() {
            faults.required(&path.child("reference"), "");
        }
        faults.one_of(
            &path.child("pullPolicy"),
            image.pull_policy.as_deref().unwrap_or_default(),
            &["Always", "IfNotPresent", "Never"],
        );
    }
    if let Some(nfs) = &volume.nfs {
        mounts::validate_nfs(nfs, &path.child("nfs"), faults);
    }
    if let Some(flex) = &volume.flex_volume {
        let path = path.child("flexVolume");
        mounts::validate_flex_volume(&flex.driver, flex.options.as_ref(), &path, faults);
    }
    if let Some(claim) = &volume.persistent_volume_claim
        && claim.claim_name.is_empty()
    {
        faults.required(&path.child("persistentVolumeClaim").child("claimName"), "");
    }
    if let Some(csi) = &volume.csi {
        let path = path.child("csi");
        if csi.driver.is_empty() {
            faults.required(&path.child("driver"), "");
        }
        if let Some(secret) = &csi.node_publish_secret_ref
            && secret.name.is_empty()
        {
            faults.required(&path.child("nodePublishSecretRef").child("name"), "");
        }
    }
}

fn projection(source: &VolumeProjection, path: &Path, faults: &mut Faults) {
    let given = sources(source);
    if given.is_empty() {
        faults.required(path, "must specify a volume source");
    }
    for source in given.iter().skip(1) {
        faults.forbidden(
            &path.child(source),
            "may not specify more than 1 volume type",
        );
    }
    if let Some(downward) = &source.downward_api {
        downward_files(
            downward.items.as_deref().unwrap_or_default(),
            &path.child("downwardAPI").child("items"),
            faults,
        );
    }
}

fn downward_files(files: &[DownwardAPIVolumeFile], path: &Path, faults: &mut Faults) {
    for (index, file) in files.iter().enumerate() {
        let path = path.index(index);
        faults.required_text(&path.child("path"), &file.path, names::descending_path);
        mode(file.mode, &path.child("mode"), faults);
        match (&file.field_ref, &file.resource_field_ref) {
            (Some(_), Some(_)) => {
                faults.invalid(
                    &path,
                    "resource",
                    "fieldRef and resourceFieldRef can not be specified simultaneously",
                );
            }
            (Some(field), None) => validate_field_path(
                &field.field_path,
                FILE_FIELDS,
                &path.child("fieldRef").child("fieldPath"),
                faults,
            ),
            (None, Some(resource)) => {
                let path = path.child("resourceFieldRef");
                if resource
                    .container_name
                    .as_deref()
                    .unwrap_or_default()
                    .is_empty()
                {
                    faults.required(&path.child("containerName"), "");
                }
                validate_resource_field(&resource.resource, &path.child("resource"), faults);
            }
            (None, None) => {
                faults.required(&path, "one of fieldRef and resourceFieldRef is required")
            }
        }
    }
}

fn key_paths(items: Option<&[KeyToPath]>, path: &Path, faults: &mut Faults) {
    for (index, item) in items.unwrap_or_default().iter().enumerate() {
        let path = path.index(index);
        if item.key.is_empty() {
            faults.required(&path.child("key"), "");
        }
        faults.required_text(&path.child("path"), &item.path, names::descending_path);
        mode(item.mode, &path.child("mode"), faults);
    }
}

fn mode(mode: Option<i32>, path: &Path, faults: &mut Faults) {
    if let Some(mode) = mode
        && !(0..=MAX_MODE).contains(&i64::from(mode))
    {
        faults.invalid(
            path,
            mode,
            "must be a number between 0 and 0777 (octal), both inclusive",
        );
    }
}
