//! The parts of objects that a start without the API server depends on.

use k8s_openapi::{
    api::core::v1::{Node, NodeStatus, Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kubelet_pod_spec::{known_status::started, phase::Phase};
use sha2::{Digest as _, Sha256};

/// A digest of the parts of a pod that matter.
pub(super) type Fingerprint = [u8; 32];

/// The digest of a pod. It differs if the pod differs in what matters. Of the status, only the
/// terminal phase and the names of containers that were ever started matter: they decide which
/// containers must not be started again.
///
/// # Errors
/// The pod cannot be serialised to JSON.
pub(super) fn fingerprint(pod: &Pod) -> serde_json::Result<Fingerprint> {
    let mut spec = pod.clone();
    let status = spec.status.take().unwrap_or_default();
    spec.metadata.resource_version = None;
    spec.metadata.managed_fields = None;
    let phase = status.phase.as_deref();
    let end = phase.filter(|phase| Phase::parse(Some(*phase)).is_terminal());
    let told = (spec, end, started(&status));
    Ok(Sha256::digest(serde_json::to_vec(&told)?).into())
}

/// Whether the node's labels decide on the pod's admission.
pub(super) fn depends_on_node_labels(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| {
        let selector = spec.node_selector.as_ref();
        selector.is_some_and(|selector| !selector.is_empty()) || requires_labels(spec)
    })
}

fn requires_labels(spec: &PodSpec) -> bool {
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| {
        affinity
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let mut terms = required.into_iter().flat_map(|r| &r.node_selector_terms);
    terms.any(|term| {
        let expressions = term.match_expressions.as_ref();
        expressions.is_some_and(|expressions| !expressions.is_empty())
    })
}

/// The node, reduced to what admission and environment variables need. Features are left out
/// because the runtime reports them. Attached volumes are left out because only the cluster knows
/// whether they still are. Taints are left out because they must not fail a pod that already ran
/// here.
pub(super) fn without_unneeded_fields(node: &Node) -> Node {
    let status = node.status.as_ref();
    Node {
        metadata: ObjectMeta {
            name: node.metadata.name.clone(),
            uid: node.metadata.uid.clone(),
            labels: node.metadata.labels.clone(),
            ..ObjectMeta::default()
        },
        spec: None,
        status: status.map(|status| NodeStatus {
            allocatable: status.allocatable.clone(),
            capacity: status.capacity.clone(),
            ..NodeStatus::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(edit: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "web", "resourceVersion": "1"},
            "spec": {"containers": [{"name": "c"}]},
            "status": {"phase": "Pending"}
        });
        edit(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    fn container(state: Value) -> Value {
        json!([{
            "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": state
        }])
    }

    #[test]
    fn a_status_matters_little() {
        let before = fingerprint(&pod(|_| {})).unwrap();
        let is_same = |edit: fn(&mut Value)| fingerprint(&pod(edit)).unwrap() == before;
        assert!(is_same(
            |pod| pod["metadata"]["resourceVersion"] = json!("2")
        ));
        assert!(is_same(|pod| pod["status"]["podIP"] = json!("10.0.0.1")));
        assert!(is_same(|pod| pod["status"]["phase"] = json!("Running")));
        assert!(is_same(|pod| {
            pod["status"]["containerStatuses"] = container(json!({"waiting": {"reason": "a"}}));
        }));
        assert!(!is_same(|pod| pod["status"]["phase"] = json!("Succeeded")));
        assert!(!is_same(|pod| {
            pod["status"]["containerStatuses"] = container(json!({"running": {}}));
        }));
        assert!(!is_same(|pod| pod["metadata"]["labels"] = json!({"a": "b"})));
        assert!(!is_same(|pod| {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }));
        assert!(!is_same(|pod| pod["spec"]["hostNetwork"] = json!(true)));
    }

    #[test]
    fn labels_of_the_node_matter_to_some_pods() {
        let asks = |spec: Value| {
            depends_on_node_labels(&pod(|pod| {
                pod["spec"]["nodeSelector"] = spec["nodeSelector"].clone();
                let required = "requiredDuringSchedulingIgnoredDuringExecution";
                if spec["term"].is_object() {
                    pod["spec"]["affinity"]["nodeAffinity"][required] =
                        json!({"nodeSelectorTerms": [spec["term"]]});
                }
            }))
        };
        assert!(!asks(json!({})));
        assert!(asks(json!({"nodeSelector": {"a": "b"}})));
        assert!(asks(
            json!({"term": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}})
        ));
        // A daemon set's pods are bound like this.
        assert!(!asks(json!({"term": {"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["node"]}
        ]}})));
    }
}
