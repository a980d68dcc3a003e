//! The part of OpenAPI v3 that tells `kubectl` that the server supports `fieldValidation`, so that
//! it leaves validation to the server. There are no schemas and no v2, so `kubectl explain` does
//! not work.

use serde_json::{Map, Value, json};

use super::{discovery::group_versions, metrics, resources::Served};

/// The response to a path.
pub(super) fn answer(served: &Served, path: &str) -> Option<Value> {
    let rest = path.strip_prefix("/openapi/v3")?.trim_matches('/');
    if rest.is_empty() {
        return Some(index(served));
    }
    let (group, version) = group_versions(served)
        .into_iter()
        .find(|(group, version)| root(group, version) == rest)?;
    Some(document(served, group, version))
}

fn root(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("api/{version}")
    } else {
        format!("apis/{group}/{version}")
    }
}

fn index(served: &Served) -> Value {
    let paths: Map<String, Value> = group_versions(served)
        .into_iter()
        .map(|(group, version)| {
            let root = root(group, version);
            let url = json!({"serverRelativeURL": format!("/openapi/v3/{root}?hash=1")});
            (root, url)
        })
        .collect();
    json!({"paths": paths})
}

fn document(served: &Served, group: &str, version: &str) -> Value {
    let mut paths = Map::new();
    for resource in served {
        let stored = !resource.answered_only && resource.group != metrics::GROUP;
        if (resource.group, resource.version) != (group, version) || !stored {
            continue;
        }
        let place = if resource.namespaced {
            "/namespaces/{namespace}"
        } else {
            ""
        };
        let path = format!(
            "/{}{place}/{}/{{name}}",
            root(group, version),
            resource.plural
        );
        let query = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
        paths.insert(
            path,
            json!({"patch": {
                "operationId": format!("patch{group}{version}{}", resource.kind),
                "parameters": [query("dryRun"), query("fieldManager"), query("fieldValidation")],
                "responses": {"200": {"description": "OK"}},
                "x-kubernetes-action": "patch",
                "x-kubernetes-group-version-kind":
                    {"group": group, "version": version, "kind": resource.kind},
            }}),
        );
    }
    json!({
        "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.36.0"}, "paths": paths,
        "components": {"schemas": {}},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::served_by_default;

    #[test]
    fn each_kind_s_patch_takes_field_validation() {
        let served = served_by_default();
        let index = answer(&served, "/openapi/v3").unwrap();
        assert!(index["paths"]["apis/apps/v1"].is_object());
        let core = answer(&served, "/openapi/v3/api/v1").unwrap();
        let pod = &core["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
        assert_eq!(pod["x-kubernetes-group-version-kind"]["kind"], "Pod");
        assert_eq!(pod["parameters"][2]["name"], "fieldValidation");
        assert_eq!(answer(&served, "/openapi/v2"), None);
        assert_eq!(answer(&served, "/openapi/v3/apis/none/v1"), None);
    }
}
