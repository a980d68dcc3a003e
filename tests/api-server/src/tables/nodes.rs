//! The table row of a node.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::duration::since;
use crate::strategy::text;

/// The cells of a node.
pub(super) fn cells(node: &Value, now: Timestamp) -> Vec<Value> {
    let info = |field: &str| text(&node["status"]["nodeInfo"], field);
    let known = |field: &str| match info(field) {
        "" => "<unknown>",
        said => said,
    };
    let address = |kind: &str| {
        let addresses = node["status"]["addresses"].as_array();
        let found = addresses
            .into_iter()
            .flatten()
            .find(|address| address["type"] == kind);
        found.map_or("<none>", |address| text(address, "/address"))
    };
    let mut kernel = known("/kernelVersion").to_owned();
    if !info("/architecture").is_empty() {
        kernel = format!("{kernel} ({})", info("/architecture"));
    }
    vec![
        node["metadata"]["name"].clone(),
        json!(status(node)),
        json!(roles(node)),
        json!(since(text(node, "/metadata/creationTimestamp"), now)),
        json!(info("/kubeletVersion")),
        json!(address("InternalIP")),
        json!(address("ExternalIP")),
        json!(known("/osImage")),
        json!(kernel),
        json!(known("/containerRuntimeVersion")),
    ]
}

fn status(node: &Value) -> String {
    let conditions = node["status"]["conditions"].as_array();
    let ready = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == "Ready");
    let ready = match ready {
        None => "Unknown",
        Some(condition) if condition["status"] == "True" => "Ready",
        Some(_) => "NotReady",
    };
    if node["spec"]["unschedulable"] == true {
        format!("{ready},SchedulingDisabled")
    } else {
        ready.to_owned()
    }
}

fn roles(node: &Value) -> String {
    let labels = node["metadata"]["labels"].as_object();
    let roles: BTreeSet<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| {
            if key == "kubernetes.io/role" {
                value.as_str()
            } else {
                key.strip_prefix("node-role.kubernetes.io/")
            }
        })
        .filter(|role| !role.is_empty())
        .collect();
    if roles.is_empty() {
        return "<none>".to_owned();
    }
    roles.into_iter().collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cordoned_node_says_so() {
        let node = json!({
            "metadata": {"name": "n", "creationTimestamp": "2026-11-01T00:00:00Z",
                "labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "edge"}},
            "spec": {"unschedulable": true},
            "status": {
                "conditions": [{"type": "Ready", "status": "False"}],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "nodeInfo": {"kubeletVersion": "v1.36.0", "kernelVersion": "6.1", "architecture": "amd64",
                    "osImage": "Debian", "containerRuntimeVersion": "docker://26.1"},
            },
        });
        let cells = cells(&node, "2026-11-01T00:01:00Z".parse().unwrap());
        assert_eq!(
            Value::from(cells),
            json!([
                "n",
                "NotReady,SchedulingDisabled",
                "edge,worker",
                "60s",
                "v1.36.0",
                "10.0.0.1",
                "<none>",
                "Debian",
                "6.1 (amd64)",
                "docker://26.1",
            ])
        );
    }
}
