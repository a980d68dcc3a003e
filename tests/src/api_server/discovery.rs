//! Discovery: which groups, versions and resources there are.

use serde_json::{Value, json};

use super::resources::{RESOURCES, Resource};

/// What a path of discovery answers.
pub(super) fn answer(path: &str) -> Option<Value> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["version"] => Some(version()),
        ["api"] => Some(json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [],
        })),
        ["apis"] => Some(json!({
            "kind": "APIGroupList", "apiVersion": "v1", "groups": groups(),
        })),
        ["apis", name] => groups()
            .into_iter()
            .find(|group| group["name"] == *name)
            .map(|mut group| {
                group["kind"] = json!("APIGroup");
                group["apiVersion"] = json!("v1");
                group
            }),
        ["api", version] => resource_list("", version),
        ["apis", group, version] => resource_list(group, version),
        _ => None,
    }
}

fn version() -> Value {
    json!({
        "major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "2026-04-22T00:00:00Z", "goVersion": "", "compiler": "rustc",
        "platform": "linux/amd64",
    })
}

fn groups() -> Vec<Value> {
    let mut groups: Vec<Value> = Vec::new();
    for resource in RESOURCES.iter().filter(|one| !one.group.is_empty()) {
        let version = json!({"groupVersion": resource.api_version(), "version": resource.version});
        match groups
            .iter_mut()
            .find(|group| group["name"] == resource.group)
        {
            Some(group) => {
                if let Some(versions) = group["versions"].as_array_mut()
                    && !versions.contains(&version)
                {
                    versions.push(version);
                }
            }
            None => groups.push(json!({
                "name": resource.group, "versions": [version], "preferredVersion": version,
            })),
        }
    }
    groups
}

fn resource_list(group: &str, version: &str) -> Option<Value> {
    let here: Vec<&Resource> = RESOURCES
        .iter()
        .filter(|resource| resource.group == group && resource.version == version)
        .collect();
    let first = here.first()?;
    let resources: Vec<Value> = here.iter().flat_map(|resource| entries(resource)).collect();
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": first.api_version(),
        "resources": resources,
    }))
}

fn entries(resource: &Resource) -> Vec<Value> {
    let verbs: &[&str] = if resource.answered_only {
        &["create"]
    } else {
        &[
            "create",
            "delete",
            "deletecollection",
            "get",
            "list",
            "patch",
            "update",
            "watch",
        ]
    };
    let mut main = json!({
        "name": resource.plural, "singularName": resource.singular,
        "namespaced": resource.namespaced, "kind": resource.kind, "verbs": verbs,
    });
    if !resource.short_names.is_empty() {
        main["shortNames"] = json!(resource.short_names);
    }
    let mut entries = vec![main];
    for subresource in resource.subresources {
        let mut entry = json!({
            "name": format!("{}/{subresource}", resource.plural), "singularName": "",
            "namespaced": resource.namespaced, "kind": resource.kind, "verbs": verbs_of(subresource),
        });
        let other = match *subresource {
            "eviction" => Some(("policy", "v1", "Eviction")),
            "token" => Some(("authentication.k8s.io", "v1", "TokenRequest")),
            "binding" => Some(("", "v1", "Binding")),
            _ => None,
        };
        if let Some((group, version, kind)) = other {
            entry["group"] = json!(group);
            entry["version"] = json!(version);
            entry["kind"] = json!(kind);
        }
        entries.push(entry);
    }
    entries
}

fn verbs_of(subresource: &str) -> &'static [&'static str] {
    match subresource {
        "binding" | "eviction" | "token" => &["create"],
        "finalize" => &["update"],
        _ => &["get", "patch", "update"],
    }
}
