//! What of objects matters to a start without the API server.

use k8s_openapi::{
    api::core::v1::{ContainerStatus, Node, NodeStatus, Pod, PodSpec, PodStatus},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kubelet_pod_spec::phase::Phase;
use sha2::{Digest as _, Sha256};

/// Tells apart what of a pod matters.
pub(super) type Fingerprint = [u8; 32];

/// A pod that is another one in what matters has another fingerprint. Of its status that is
/// whether the pod has ended and which containers were ever started: a container that is
/// not to be started anew is not.
///
/// # Errors
/// The pod is no JSON.
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

/// Whether the pod has succeeded or failed, and is not to be started again.
pub(super) fn has_ended(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(is_end)
}

/// Whether a pod of this status is not to be started again.
fn is_end(status: &PodStatus) -> bool {
    Phase::parse(status.phase.as_deref()).is_terminal()
}

/// Whether a pod of this status has ended, or some container of it was ever started.
pub(super) fn has_run(status: &PodStatus) -> bool {
    is_end(status) || !started(status).is_empty()
}

/// Names of the containers that were ever started, in order.
fn started(status: &PodStatus) -> Vec<&str> {
    let init = status.init_container_statuses.iter().flatten();
    let main = status.container_statuses.iter().flatten();
    let all = init.chain(main).filter(|container| was_started(container));
    let mut names: Vec<&str> = all.map(|container| container.name.as_str()).collect();
    names.sort_unstable();
    names
}

fn was_started(container: &ContainerStatus) -> bool {
    [&container.state, &container.last_state]
        .into_iter()
        .flatten()
        .any(|state| state.running.is_some() || state.terminated.is_some())
}

/// Whether something of `known` matters that `status` does not say.
pub(super) fn is_news(status: &PodStatus, known: &PodStatus) -> bool {
    if is_end(status) {
        return false;
    }
    let listed = started(status);
    is_end(known) || started(known).iter().any(|name| !listed.contains(name))
}

/// The status with what `known` says of the pod that matters and it does not say itself: its
/// end, and containers that were started.
pub(crate) fn with_known(mut status: PodStatus, known: &PodStatus) -> PodStatus {
    if is_end(&status) {
        return status;
    }
    if is_end(known) {
        return known.clone();
    }
    add_started(
        &mut status.init_container_statuses,
        &known.init_container_statuses,
    );
    add_started(&mut status.container_statuses, &known.container_statuses);
    status
}

/// Adds the containers that were started by what is known, and are not listed as such.
fn add_started(listed: &mut Option<Vec<ContainerStatus>>, known: &Option<Vec<ContainerStatus>>) {
    for known in known.iter().flatten().filter(|known| was_started(known)) {
        let listed = listed.get_or_insert_default();
        match listed.iter_mut().find(|one| one.name == known.name) {
            Some(one) if was_started(one) => {}
            Some(one) => *one = known.clone(),
            None => listed.push(known.clone()),
        }
    }
}

/// Whether the node's labels decide if the pod may run there.
pub(super) fn asks_for_labels(pod: &Pod) -> bool {
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

/// What admission and the containers' variables ask of the node. Not its features: these the
/// runtime says anew. Not the volumes that are attached to it: whether they still are is the
/// cluster's to say. Nor its taints: what was
/// here despite them is not to be failed for them.
pub(super) fn node(node: &Node) -> Node {
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
            asks_for_labels(&pod(|pod| {
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
        // As a daemon set's pods are bound.
        assert!(!asks(json!({"term": {"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["node"]}
        ]}})));
    }
}
