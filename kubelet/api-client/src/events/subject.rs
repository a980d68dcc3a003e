//! Subjects of events.

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim, Pod, PodSpec};

/// The object that an event is about.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// A pod.
    Pod(&'a Pod),
    /// A container of a pod, of any kind, by its name in the spec.
    Container(&'a Pod, &'a str),
    /// A claim.
    Claim(&'a PersistentVolumeClaim),
    /// The node.
    Node,
}

impl Subject<'_> {
    /// The involved object of the event; `None` for a container that is not in the spec.
    pub(super) fn reference(&self, node_name: &str) -> Option<ObjectReference> {
        let (kind, metadata, field_path) = match *self {
            // `kubectl describe node` expects the node's name as the UID.
            Self::Node => {
                return Some(ObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Node".to_owned()),
                    name: Some(node_name.to_owned()),
                    uid: Some(node_name.to_owned()),
                    ..ObjectReference::default()
                });
            }
            Self::Claim(claim) => ("PersistentVolumeClaim", &claim.metadata, None),
            Self::Pod(pod) => ("Pod", &pod.metadata, None),
            Self::Container(pod, name) => {
                let path = field_path(pod.spec.as_ref()?, name)?;
                ("Pod", &pod.metadata, Some(path))
            }
        };
        Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some(kind.to_owned()),
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            resource_version: metadata.resource_version.clone(),
            field_path,
        })
    }
}

fn field_path(spec: &PodSpec, name: &str) -> Option<String> {
    let init = spec.init_containers.iter().flatten();
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let list = if spec.containers.iter().any(|c| c.name == name) {
        "containers"
    } else if init.into_iter().any(|c| c.name == name) {
        "initContainers"
    } else if ephemeral.into_iter().any(|c| c.name == name) {
        "ephemeralContainers"
    } else {
        return None;
    };
    Some(format!("spec.{list}{{{name}}}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_of_container_is_named_by_its_path() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7"},
            "spec": {
                "containers": [{"name": "c"}],
                "initContainers": [{"name": "i"}],
                "ephemeralContainers": [{"name": "e"}],
            }
        }))
        .unwrap();
        for (name, path) in [
            ("c", Some("spec.containers{c}")),
            ("i", Some("spec.initContainers{i}")),
            ("e", Some("spec.ephemeralContainers{e}")),
            ("gone", None),
        ] {
            let reference = Subject::Container(&pod, name).reference("node");
            let found = reference.and_then(|reference| reference.field_path);
            assert_eq!(found.as_deref(), path);
        }
        let reference = Subject::Pod(&pod).reference("node").unwrap();
        assert_eq!(
            serde_json::to_value(reference).unwrap(),
            json!({
                "apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": "p", "uid": "u",
                "resourceVersion": "7",
            })
        );
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": "data", "namespace": "ns", "uid": "u"}
        }))
        .unwrap();
        let reference = Subject::Claim(&claim).reference("node").unwrap();
        assert_eq!(
            serde_json::to_value(reference).unwrap(),
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "ns",
                "name": "data", "uid": "u",
            })
        );
        let reference = Subject::Node.reference("node").unwrap();
        assert_eq!(
            serde_json::to_value(reference).unwrap(),
            json!({"apiVersion": "v1", "kind": "Node", "name": "node", "uid": "node"})
        );
    }
}
