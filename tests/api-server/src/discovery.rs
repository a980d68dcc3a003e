//! Discovery of groups, versions and resources, both in separate lists and aggregated.

use serde_json::{Value, json};

use super::{
    metrics,
    resources::{Resource, Served},
};

/// The content type of aggregated discovery.
pub(super) const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The response to a discovery path.
pub(super) fn answer(served: &Served, path: &str) -> Option<Value> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["version"] => Some(version()),
        ["api"] => Some(json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [],
        })),
        ["apis"] => Some(json!({
            "kind": "APIGroupList", "apiVersion": "v1", "groups": groups(served),
        })),
        ["apis", name] => groups(served)
            .into_iter()
            .find(|group| group["name"] == *name)
            .map(|mut group| {
                group["kind"] = json!("APIGroup");
                group["apiVersion"] = json!("v1");
                group
            }),
        ["api", version] => resource_list(served, "", version),
        ["apis", group, version] => resource_list(served, group, version),
        _ => None,
    }
}

/// Aggregated discovery at `/api` and `/apis`; `None` for other paths, or if the client does not
/// accept it.
pub(super) fn aggregated(served: &Served, path: &str, accept: &str) -> Option<Value> {
    let wanted = accept.split(',').any(|one| {
        ["g=apidiscovery.k8s.io", "v=v2", "as=APIGroupDiscoveryList"]
            .iter()
            .all(|parameter| one.split(';').any(|part| part.trim() == *parameter))
    });
    let names: Vec<String> = match path.trim_end_matches('/') {
        "/api" if wanted => vec![String::new()],
        "/apis" if wanted => groups(served)
            .iter()
            .filter_map(|group| group["name"].as_str().map(str::to_owned))
            .collect(),
        _ => return None,
    };
    let items: Vec<Value> = names
        .iter()
        .map(|name| group_at_once(served, name))
        .collect();
    Some(json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {}, "items": items,
    }))
}

/// The served groups and versions, in order.
pub(super) fn group_versions(served: &Served) -> Vec<(&'static str, &'static str)> {
    let mut all: Vec<(&str, &str)> = Vec::new();
    for resource in served {
        if !all.contains(&(resource.group, resource.version)) {
            all.push((resource.group, resource.version));
        }
    }
    all
}

fn version() -> Value {
    json!({
        "major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "2026-04-22T00:00:00Z", "goVersion": "", "compiler": "rustc",
        "platform": "linux/amd64",
    })
}

fn groups(served: &Served) -> Vec<Value> {
    let mut groups: Vec<Value> = Vec::new();
    for (group, version) in group_versions(served) {
        if group.is_empty() {
            continue;
        }
        let shown = json!({"groupVersion": format!("{group}/{version}"), "version": version});
        match groups.iter_mut().find(|had| had["name"] == group) {
            Some(had) => {
                if let Some(versions) = had["versions"].as_array_mut() {
                    versions.push(shown);
                }
            }
            None => groups.push(json!({
                "name": group, "versions": [shown], "preferredVersion": shown,
            })),
        }
    }
    groups
}

fn of_version(served: &Served, group: &str, version: &str) -> Vec<&'static Resource> {
    served
        .iter()
        .copied()
        .filter(|resource| resource.group == group && resource.version == version)
        .collect()
}

fn resource_list(served: &Served, group: &str, version: &str) -> Option<Value> {
    let here = of_version(served, group, version);
    let first = here.first()?;
    let resources: Vec<Value> = here.iter().flat_map(|resource| entries(resource)).collect();
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": first.api_version(),
        "resources": resources,
    }))
}

fn entries(resource: &Resource) -> Vec<Value> {
    let mut main = json!({
        "name": resource.plural, "singularName": resource.singular,
        "namespaced": resource.namespaced, "kind": resource.kind, "verbs": verbs_of(resource),
    });
    if !resource.short_names.is_empty() {
        main["shortNames"] = json!(resource.short_names);
    }
    if is_in_all(resource) {
        main["categories"] = json!(["all"]);
    }
    let mut entries = vec![main];
    for subresource in resource.subresources {
        let mut entry = json!({
            "name": format!("{}/{subresource}", resource.plural), "singularName": "",
            "namespaced": resource.namespaced, "verbs": subresource_verbs(subresource),
        });
        let (group, version, kind) = subresource_kind(resource, subresource);
        entry["kind"] = json!(kind);
        if matches!(*subresource, "eviction" | "token") {
            entry["group"] = json!(group);
            entry["version"] = json!(version);
        }
        entries.push(entry);
    }
    entries
}

fn group_at_once(served: &Served, group: &str) -> Value {
    let versions: Vec<Value> = group_versions(served)
        .into_iter()
        .filter(|(had, _)| *had == group)
        .map(|(_, version)| {
            let resources: Vec<Value> = of_version(served, group, version)
                .into_iter()
                .map(resource_at_once)
                .collect();
            json!({"version": version, "freshness": "Current", "resources": resources})
        })
        .collect();
    json!({"metadata": {"name": group}, "versions": versions})
}

fn resource_at_once(resource: &Resource) -> Value {
    let kind = |(group, version, kind): (&str, &str, &str)| json!({"group": group, "version": version, "kind": kind});
    let scope = if resource.namespaced {
        "Namespaced"
    } else {
        "Cluster"
    };
    let subresources: Vec<Value> = resource
        .subresources
        .iter()
        .map(|subresource| {
            json!({
                "subresource": subresource, "verbs": subresource_verbs(subresource),
                "responseKind": kind(subresource_kind(resource, subresource)),
            })
        })
        .collect();
    let mut shown = json!({
        "resource": resource.plural, "singularResource": resource.singular, "scope": scope,
        "responseKind": kind((resource.group, resource.version, resource.kind)),
        "verbs": verbs_of(resource), "subresources": subresources,
    });
    if !resource.short_names.is_empty() {
        shown["shortNames"] = json!(resource.short_names);
    }
    if is_in_all(resource) {
        shown["categories"] = json!(["all"]);
    }
    shown
}

/// Whether `kubectl get all` includes a resource.
fn is_in_all(resource: &Resource) -> bool {
    matches!(resource.group, "" | "apps")
        && matches!(
            resource.plural,
            "pods" | "services" | "daemonsets" | "deployments" | "replicasets"
        )
}

fn verbs_of(resource: &Resource) -> &'static [&'static str] {
    if resource.answered_only {
        return &["create"];
    }
    if resource.group == metrics::GROUP {
        return &["get", "list"];
    }
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
}

fn subresource_verbs(subresource: &str) -> &'static [&'static str] {
    match subresource {
        "binding" | "eviction" | "token" => &["create"],
        "finalize" => &["update"],
        "log" => &["get"],
        "exec" | "attach" | "portforward" => &["create", "get"],
        "proxy" => &["create", "delete", "get", "patch", "update"],
        _ => &["get", "patch", "update"],
    }
}

/// The group, version and kind of a subresource's object.
fn subresource_kind<'a>(resource: &'a Resource, subresource: &str) -> (&'a str, &'a str, &'a str) {
    match subresource {
        "eviction" => ("policy", "v1", "Eviction"),
        "token" => ("authentication.k8s.io", "v1", "TokenRequest"),
        "binding" => ("", "v1", "Binding"),
        "exec" => ("", "v1", "PodExecOptions"),
        "attach" => ("", "v1", "PodAttachOptions"),
        "portforward" => ("", "v1", "PodPortForwardOptions"),
        "proxy" => ("", "v1", "NodeProxyOptions"),
        _ => (resource.group, resource.version, resource.kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::served_by_default;

    #[test]
    fn all_groups_are_told_at_once_to_who_accepts_it() {
        let served = served_by_default();
        let accept = format!("{AGGREGATED},application/json");
        assert_eq!(aggregated(&served, "/apis", "application/json"), None);
        assert_eq!(aggregated(&served, "/apis/apps", &accept), None);
        let core = aggregated(&served, "/api", &accept).unwrap();
        let resources = core["items"][0]["versions"][0]["resources"]
            .as_array()
            .unwrap();
        let pods = resources
            .iter()
            .find(|one| one["resource"] == "pods")
            .unwrap();
        assert_eq!(pods["responseKind"]["kind"], "Pod");
        assert_eq!(pods["scope"], "Namespaced");
        let eviction = pods["subresources"]
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["subresource"] == "eviction")
            .unwrap();
        assert_eq!(eviction["responseKind"]["group"], "policy");
    }

    #[test]
    fn a_drain_finds_evictions() {
        let served = served_by_default();
        let apis = answer(&served, "/apis").unwrap();
        let groups = apis["groups"].as_array().unwrap();
        assert!(groups.iter().any(|group| group["name"] == "policy"));
        let core = answer(&served, "/api/v1").unwrap();
        let evictions = core["resources"]
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["name"] == "pods/eviction")
            .unwrap();
        assert_eq!(
            (
                &evictions["group"],
                &evictions["version"],
                &evictions["kind"]
            ),
            (&json!("policy"), &json!("v1"), &json!("Eviction"))
        );
    }
}
