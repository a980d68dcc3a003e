//! A scheduler and the node controller's taints. Nodes are tainted by their conditions, and pods
//! without a node are bound to a ready one. Free resources are not considered: a kubelet rejects a
//! pod that does not fit.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};

use super::{
    Server, pods,
    resources::{self, Resource},
    storage::{Key, Storage},
    strategy::text,
};

/// A condition of a node, the status that causes a taint, and the taint.
const TAINTS: [(&str, &str, &str); 6] = [
    ("Ready", "False", "node.kubernetes.io/not-ready"),
    ("Ready", "Unknown", "node.kubernetes.io/unreachable"),
    (
        "MemoryPressure",
        "True",
        "node.kubernetes.io/memory-pressure",
    ),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    (
        "NetworkUnavailable",
        "True",
        "node.kubernetes.io/network-unavailable",
    ),
];
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

impl Server {
    /// Taints nodes and binds the pods that are waiting.
    pub(super) fn schedule(&self, storage: &mut Storage) {
        let (Some(nodes), Some(pods)) = (
            resources::find("", "v1", "nodes"),
            resources::find("", "v1", "pods"),
        ) else {
            return;
        };
        taint_nodes(storage, nodes);
        let nodes: Vec<_> = storage.list(nodes, None);
        let nodes: Vec<Arc<Value>> = nodes.into_iter().map(|(_, node)| node).collect();
        let all = storage.list(pods, None);
        let mut load: BTreeMap<String, usize> = BTreeMap::new();
        for (_, pod) in &all {
            *load
                .entry(text(pod, "/spec/nodeName").to_owned())
                .or_default() += 1;
        }
        for (key, old) in all {
            if !waits(&old) {
                continue;
            }
            let best = nodes
                .iter()
                .filter(|node| obstacle(&old, node).is_none())
                .map(|node| text(node, "/metadata/name"))
                .min_by_key(|name| load.get(*name).copied().unwrap_or(0));
            let mut pod = Value::clone(&old);
            match best {
                Some(node) => {
                    pods::bind(&mut pod, node, &self.clock.text());
                    *load.entry(node.to_owned()).or_default() += 1;
                }
                None => pods::set_unschedulable(&mut pod, &why(&old, &nodes), &self.clock.text()),
            }
            if pod != *old {
                storage.put(key, pod);
            }
        }
    }
}

fn waits(pod: &Value) -> bool {
    let gates = pod["spec"]["schedulingGates"].as_array();
    text(pod, "/spec/nodeName").is_empty()
        && text(pod, "/metadata/deletionTimestamp").is_empty()
        && text(pod, "/spec/schedulerName") == "default-scheduler"
        && gates.is_none_or(Vec::is_empty)
}

/// The reason why a pod cannot run on a node.
fn obstacle(pod: &Value, node: &Value) -> Option<String> {
    let tolerations = pod["spec"]["tolerations"].as_array();
    let taints = node["spec"]["taints"].as_array();
    let untolerated = taints.into_iter().flatten().find(|taint| {
        taint["effect"] != "PreferNoSchedule"
            && !tolerations
                .into_iter()
                .flatten()
                .any(|toleration| tolerates(toleration, taint))
    });
    if let Some(taint) = untolerated {
        let (key, value) = (text(taint, "/key"), text(taint, "/value"));
        return Some(format!("had untolerated taint {{{key}: {value}}}"));
    }
    let selector = pod["spec"]["nodeSelector"].as_object();
    let selected = selector
        .into_iter()
        .flatten()
        .all(|(key, value)| node["metadata"]["labels"][key] == *value);
    (!selected).then(|| "didn't match Pod's node affinity/selector".to_owned())
}

fn tolerates(toleration: &Value, taint: &Value) -> bool {
    let (key, effect) = (text(toleration, "/key"), text(toleration, "/effect"));
    let exists = text(toleration, "/operator") == "Exists";
    (key == text(taint, "/key") || (key.is_empty() && exists))
        && (effect.is_empty() || effect == text(taint, "/effect"))
        && (exists || text(toleration, "/value") == text(taint, "/value"))
}

/// The reason why a pod fits on no node, in the scheduler's words.
fn why(pod: &Value, nodes: &[Arc<Value>]) -> String {
    if nodes.is_empty() {
        return "no nodes available to schedule pods".to_owned();
    }
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for reason in nodes.iter().filter_map(|node| obstacle(pod, node)) {
        *reasons.entry(reason).or_default() += 1;
    }
    let reasons: Vec<String> = reasons
        .iter()
        .map(|(reason, count)| format!("{count} node(s) {reason}"))
        .collect();
    format!(
        "0/{} nodes are available: {}.",
        nodes.len(),
        reasons.join(", ")
    )
}

fn taint_nodes(storage: &mut Storage, resource: &'static Resource) {
    for (key, old) in storage.list(resource, None) {
        let mut taints: Vec<Value> = old["spec"]["taints"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|taint| !is_ours(taint))
            .cloned()
            .collect();
        for wanted in wanted_taints(&old) {
            taints.push(json!({"key": wanted, "effect": "NoSchedule"}));
        }
        let same = match old["spec"]["taints"].as_array() {
            Some(had) => *had == taints,
            None => taints.is_empty(),
        };
        if same {
            continue;
        }
        let mut node = Value::clone(&old);
        node["spec"]["taints"] = Value::from(taints);
        storage.put(Key::clone(&key), node);
    }
}

fn is_ours(taint: &Value) -> bool {
    let key = text(taint, "/key");
    taint["effect"] == "NoSchedule"
        && (key == UNSCHEDULABLE || TAINTS.iter().any(|(_, _, ours)| *ours == key))
}

fn wanted_taints(node: &Value) -> Vec<&'static str> {
    let conditions = node["status"]["conditions"].as_array();
    let status = |kind: &str| {
        let found = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition["type"] == kind);
        match (found, kind) {
            (Some(condition), _) => text(condition, "/status"),
            // A node that has not reported its status yet is not ready.
            (None, "Ready") => "False",
            (None, _) => "",
        }
    };
    let mut wanted: Vec<&str> = TAINTS
        .iter()
        .filter(|(condition, wrong, _)| status(condition) == *wrong)
        .map(|(_, _, taint)| *taint)
        .collect();
    if node["spec"]["unschedulable"] == true {
        wanted.push(UNSCHEDULABLE);
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ApiServer;

    fn node(name: &str, ready: &str) -> Value {
        json!({"metadata": {"name": name},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}})
    }

    fn pod(name: &str) -> Value {
        json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "x"}]}})
    }

    #[tokio::test]
    async fn pods_go_to_ready_nodes_and_wait_for_them() {
        let server = ApiServer::start().unwrap();
        server.run_scheduler(true);
        let pods = |name: &str| server.get("v1", "pods", "default", name).unwrap();
        server
            .create("v1", "nodes", "", node("a", "False"))
            .unwrap();
        server
            .create("v1", "pods", "default", pod("first"))
            .unwrap();
        let waiting = pods("first");
        assert_eq!(waiting["spec"].get("nodeName"), None);
        let condition = &waiting["status"]["conditions"][0];
        assert_eq!(condition["reason"], "Unschedulable");
        assert_eq!(
            condition["message"],
            "0/1 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }."
        );
        server.create("v1", "nodes", "", node("b", "True")).unwrap();
        assert_eq!(pods("first")["spec"]["nodeName"], "b");
        assert_eq!(pods("first")["status"]["conditions"][0]["status"], "True");
        server.create("v1", "nodes", "", node("c", "True")).unwrap();
        server
            .create("v1", "pods", "default", pod("second"))
            .unwrap();
        assert_eq!(pods("second")["spec"]["nodeName"], "c");
    }

    #[tokio::test]
    async fn a_cordoned_node_takes_only_who_tolerates_it() {
        let server = ApiServer::start().unwrap();
        server.run_scheduler(true);
        let mut cordoned = node("a", "True");
        cordoned["spec"] =
            json!({"unschedulable": true, "taints": [{"key": "x", "effect": "PreferNoSchedule"}]});
        server.create("v1", "nodes", "", cordoned).unwrap();
        let taints = server.get("v1", "nodes", "", "a").unwrap()["spec"]["taints"].clone();
        assert_eq!(taints[1]["key"], UNSCHEDULABLE);
        server.create("v1", "pods", "default", pod("no")).unwrap();
        let mut tolerant = pod("yes");
        tolerant["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
        server.create("v1", "pods", "default", tolerant).unwrap();
        let on = |name: &str| {
            let pod = server.get("v1", "pods", "default", name).unwrap();
            text(&pod, "/spec/nodeName").to_owned()
        };
        assert_eq!((on("no").as_str(), on("yes").as_str()), ("", "a"));
    }
}
