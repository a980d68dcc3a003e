//! The format of a `CredentialProviderConfig`, and its validation.

use std::collections::BTreeSet;

use go_duration::GoDuration;
use kubelet_pod_spec::{
    field::{Faults, FieldError, Path as FieldPath},
    names,
};
use registry_credentials::registry_url::RegistryUrl;
use serde::Deserialize;

use super::API_VERSIONS;

/// The only version whose requests contain service account tokens.
const TOKEN_API_VERSION: &str = "credentialprovider.kubelet.k8s.io/v1";

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ConfigFile {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) providers: Vec<Entry>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) match_images: Vec<String>,
    pub(super) default_cache_duration: Option<GoDuration>,
    pub(super) api_version: String,
    pub(super) args: Option<Vec<String>>,
    pub(super) env: Option<Vec<Variable>>,
    pub(super) token_attributes: Option<TokenEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Variable {
    pub(super) name: String,
    #[serde(default)]
    pub(super) value: String,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct TokenEntry {
    pub(super) service_account_token_audience: String,
    pub(super) cache_type: String,
    pub(super) require_service_account: Option<bool>,
    pub(super) required_service_account_annotation_keys: Vec<String>,
    pub(super) optional_service_account_annotation_keys: Vec<String>,
}

/// All errors in the plugins of a configuration. As upstream, field paths have no index.
pub(super) fn validate(entries: &[Entry]) -> Vec<FieldError> {
    let mut faults = Faults::default();
    let path = FieldPath::new("providers");
    if entries.is_empty() {
        faults.required(&path, "at least 1 item in plugins is required");
    }
    let mut names = BTreeSet::new();
    for entry in entries {
        validate_name(&entry.name, &path.child("name"), &mut faults);
        if !names.insert(&entry.name) {
            faults.duplicate(&path.child("name"), &entry.name);
        }
        if entry.api_version.is_empty() {
            faults.required(&path.child("apiVersion"), "");
        } else {
            faults.one_of(&path.child("apiVersion"), &entry.api_version, API_VERSIONS);
        }
        let match_images = path.child("matchImages");
        if entry.match_images.is_empty() {
            faults.required(&match_images, "at least 1 item in matchImages is required");
        }
        for image in &entry.match_images {
            if let Err(reason) = RegistryUrl::parse(image) {
                let rule = format_args!("match image is invalid: {reason}");
                faults.invalid(&match_images, image, rule);
            }
        }
        match entry.default_cache_duration {
            None => faults.required(&path.child("defaultCacheDuration"), ""),
            Some(duration) if duration.is_negative() => faults.invalid(
                &path.child("defaultCacheDuration"),
                duration.to_string(),
                "must be greater than or equal to 0",
            ),
            Some(_) => {}
        }
        if let Some(attributes) = &entry.token_attributes {
            validate_token(
                attributes,
                &entry.api_version,
                &path.child("tokenAttributes"),
                &mut faults,
            );
        }
    }
    faults.into_vec()
}

fn validate_name(name: &str, path: &FieldPath, faults: &mut Faults) {
    for (broken, rule) in [
        (name.is_empty(), "provider name cannot be empty"),
        (name.contains('/'), "provider name cannot contain '/'"),
        (name.contains(' '), "provider name cannot contain spaces"),
        (name == ".", "provider name cannot be '.'"),
        (name == "..", "provider name cannot be '..'"),
    ] {
        if broken {
            faults.invalid(path, name, rule);
        }
    }
}

fn validate_token(entry: &TokenEntry, version: &str, path: &FieldPath, faults: &mut Faults) {
    if entry.service_account_token_audience.is_empty() {
        faults.required(&path.child("serviceAccountTokenAudience"), "");
    }
    if entry.require_service_account.is_none() {
        faults.required(&path.child("requireServiceAccount"), "");
    }
    if version != TOKEN_API_VERSION {
        let why = format!("tokenAttributes is only supported for {TOKEN_API_VERSION} API version");
        faults.forbidden(path, &why);
    }
    let required = &entry.required_service_account_annotation_keys;
    let optional = &entry.optional_service_account_annotation_keys;
    let required_path = path.child("requiredServiceAccountAnnotationKeys");
    if entry.require_service_account == Some(false) && !required.is_empty() {
        faults.forbidden(
            &required_path,
            "requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set",
        );
    }
    validate_annotations(required, &required_path, faults);
    validate_annotations(
        optional,
        &path.child("optionalServiceAccountAnnotationKeys"),
        faults,
    );
    let both: BTreeSet<&String> = required
        .iter()
        .filter(|key| optional.contains(key))
        .collect();
    if !both.is_empty() {
        faults.invalid(
            path,
            both,
            "annotation keys cannot be both required and optional",
        );
    }
    let cache_type = path.child("cacheType");
    if entry.cache_type.is_empty() {
        faults.required(
            &cache_type,
            "cacheType is required to be set when tokenAttributes is specified. Supported values \
             are: ServiceAccount, Token",
        );
    } else {
        faults.one_of(&cache_type, &entry.cache_type, &["ServiceAccount", "Token"]);
    }
}

fn validate_annotations(keys: &[String], path: &FieldPath, faults: &mut Faults) {
    let mut seen = BTreeSet::new();
    for key in keys {
        if let Err(rule) = names::qualified_name(&key.to_lowercase()) {
            faults.invalid(path, key, rule);
        }
        if !seen.insert(key) {
            faults.duplicate(path, key);
        }
    }
}
