//! The permissions of nodes without an explicit rule. They are those of upstream's node authorizer,
//! of the role `system:node` and of the admission plugin NodeRestriction, as far as kubelets use
//! them.

use serde_json::Value;

use super::{
    request::{Caller, Query, Target},
    resources,
    storage::{Key, Storage},
    strategy::text,
};

/// The name of the caller's node, if the caller is a node.
pub(super) fn node_of(caller: &Caller) -> Option<&str> {
    let is_node = caller.groups.iter().any(|group| group == "system:nodes");
    caller.user.strip_prefix("system:node:").filter(|_| is_node)
}

/// A request of a node.
struct NodeRequest<'a> {
    storage: &'a Storage,
    node: &'a str,
    verb: &'a str,
    namespace: &'a str,
    name: &'a str,
    query: &'a Query,
}

/// Authorizes a request of a node. The error is the reason for the denial.
pub(super) fn authorize(
    storage: &Storage,
    node: &str,
    verb: &str,
    target: &Target,
    query: &Query,
) -> Result<(), String> {
    // A list or watch that selects a name is authorized like a read of that object.
    let selected = selector(query, "metadata.name");
    let node_request = NodeRequest {
        storage,
        node,
        verb,
        namespace: target.namespace_text(),
        name: target.name.as_deref().or(selected).unwrap_or_default(),
        query,
    };
    let resource = target.resource;
    let plural = resource.plural;
    match (resource.group, plural, target.subresource.as_str()) {
        ("", "secrets" | "configmaps", "") => {
            node_request.verbs(&["get", "list", "watch"])?;
            node_request.referred(plural)
        }
        ("", "persistentvolumeclaims", "status") => {
            node_request.verbs(&["update", "patch"])?;
            node_request.referred(plural)
        }
        ("", "persistentvolumeclaims" | "persistentvolumes", "")
        | ("storage.k8s.io", "volumeattachments", "")
        | ("", "serviceaccounts", "") => {
            node_request.verbs(&["get"])?;
            node_request.referred(plural)
        }
        ("", "serviceaccounts", "token") => {
            node_request.verbs(&["create"])?;
            node_request.referred(plural)
        }
        ("resource.k8s.io", "resourceclaims", "") => {
            node_request.verbs(&["get"])?;
            node_request.referred(plural)
        }
        ("resource.k8s.io", "resourceslices", "") => node_request.slices(),
        ("", "pods", "") => node_request.pods(),
        ("", "pods", "status") => {
            node_request.verbs(&["update", "patch"])?;
            node_request.own_pod()
        }
        ("", "pods", "eviction") => {
            node_request.verbs(&["create"])?;
            node_request.own_pod()
        }
        ("", "nodes", "") => {
            node_request.verbs(&["get", "list", "watch", "create", "update", "patch"])?;
            node_request.own_name()
        }
        ("", "nodes", "status") => {
            node_request.verbs(&["update", "patch"])?;
            node_request.own_name()
        }
        ("storage.k8s.io", "csinodes", "") => {
            node_request.verbs(&["get", "create", "update", "patch", "delete"])?;
            node_request.own_name()
        }
        ("coordination.k8s.io", "leases", "") => {
            node_request.verbs(&["get", "create", "update", "patch", "delete"])?;
            if node_request.namespace != "kube-node-lease" {
                return Err("can only access leases in the \"kube-node-lease\" namespace".into());
            }
            node_request.own_name()
        }
        ("", "services", "")
        | ("storage.k8s.io", "csidrivers", "")
        | ("node.k8s.io", "runtimeclasses", "")
        | ("certificates.k8s.io", "clustertrustbundles", "") => {
            node_request.verbs(&["get", "list", "watch"])
        }
        ("" | "events.k8s.io", "events", "") => node_request.verbs(&["create", "update", "patch"]),
        ("certificates.k8s.io", "certificatesigningrequests", "") => {
            node_request.verbs(&["create", "get", "list", "watch"])
        }
        ("authentication.k8s.io" | "authorization.k8s.io", _, "") => {
            node_request.verbs(&["create"])
        }
        _ => node_request.verbs(&[]),
    }
}

/// NodeRestriction's checks of a new object.
pub(super) fn admit(node: &str, target: &Target, object: &Value) -> Result<(), String> {
    let name = text(object, "/metadata/name");
    let is_mirror = object["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_string();
    match target.resource.kind {
        "Node" if name != node => Err(format!(
            "node {node:?} is not allowed to modify node {name:?}"
        )),
        "Pod" if !is_mirror => Err(format!(
            "pod does not have \"kubernetes.io/config.mirror\" annotation, node {node:?} can only create mirror pods"
        )),
        "Pod" if text(object, "/spec/nodeName") != node => Err(format!(
            "node {node:?} can only create pods with spec.nodeName set to itself"
        )),
        _ => Ok(()),
    }
}

impl NodeRequest<'_> {
    fn verbs(&self, allowed: &[&str]) -> Result<(), String> {
        if allowed.contains(&self.verb) {
            return Ok(());
        }
        Err(format!("no rule lets nodes {}", self.verb))
    }

    fn own_name(&self) -> Result<(), String> {
        if self.name == self.node || self.verb == "create" {
            return Ok(());
        }
        let node = self.node;
        Err(format!(
            "node {node:?} cannot {} {:?}",
            self.verb, self.name
        ))
    }

    fn pods(&self) -> Result<(), String> {
        match self.verb {
            "list" | "watch" if selector(self.query, "spec.nodeName") == Some(self.node) => Ok(()),
            "list" | "watch" => {
                Err("can only list/watch pods with spec.nodeName field selector".into())
            }
            "create" => Ok(()),
            "get" | "delete" => self.own_pod(),
            _ => self.verbs(&[]),
        }
    }

    fn slices(&self) -> Result<(), String> {
        self.verbs(&["list", "watch", "deletecollection"])?;
        match selector(self.query, "spec.nodeName") == Some(self.node) {
            true => Ok(()),
            false => Err("can only list/watch/deletecollection resourceslices with \
                          spec.nodeName field selector"
                .into()),
        }
    }

    fn own_pod(&self) -> Result<(), String> {
        let mut pods = self.own_pods();
        let is_own = pods.any(|pod| text(&pod, "/metadata/name") == self.name);
        // A pod that does not exist is not found rather than forbidden.
        let is_there = self.stored("pods", self.namespace, self.name).is_some();
        if is_own || !is_there {
            return Ok(());
        }
        Err(self.unrelated())
    }

    /// The pods of the namespace, or of all namespaces, that are bound to the node.
    fn own_pods(&self) -> impl Iterator<Item = Value> {
        let namespace = Some(self.namespace).filter(|namespace| !namespace.is_empty());
        let pods = resources::find("", "v1", "pods");
        let pods = pods.map(|pods| self.storage.list(pods, namespace));
        let pods = pods
            .into_iter()
            .flatten()
            .map(|(_, pod)| Value::clone(&pod));
        let node = self.node.to_owned();
        pods.filter(move |pod| text(pod, "/spec/nodeName") == node)
    }

    fn stored(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let resource = resources::find("", "v1", plural)?;
        let found = self.storage.get(&Key::new(resource, namespace, name))?;
        Some(Value::clone(&found))
    }

    /// Checks that a pod of the node refers to the object, or that a volume attachment is for the
    /// node.
    fn referred(&self, plural: &str) -> Result<(), String> {
        if self.name.is_empty() {
            return Err(format!(
                "No Object name found, cannot {} all {plural}",
                self.verb
            ));
        }
        let is_referred = match plural {
            "volumeattachments" => {
                let attachments = resources::find("storage.k8s.io", "v1", plural);
                let key = attachments.map(|all| Key::new(all, "", self.name));
                let found = key.and_then(|key| self.storage.get(&key));
                found.is_none_or(|found| text(&found, "/spec/nodeName") == self.node)
            }
            "serviceaccounts" => self
                .own_pods()
                .any(|pod| text(&pod, "/spec/serviceAccountName") == self.name),
            "persistentvolumes" => self
                .own_volumes()
                .any(|volume| text(&volume, "/metadata/name") == self.name),
            "persistentvolumeclaims" => self
                .own_pods()
                .any(|pod| claims(&pod).contains(&self.name.to_owned())),
            "resourceclaims" => self
                .own_pods()
                .any(|pod| resource_claims(&pod).any(|claim| claim == self.name)),
            "secrets" => {
                let of_pod = self
                    .own_pods()
                    .any(|pod| refers(&pod["spec"], SECRETS, self.name));
                of_pod
                    || self
                        .own_volumes()
                        .any(|volume| refers(&volume["spec"], SECRETS, self.name))
            }
            _ => self
                .own_pods()
                .any(|pod| refers(&pod["spec"], CONFIG_MAPS, self.name)),
        };
        if is_referred {
            Ok(())
        } else {
            Err(self.unrelated())
        }
    }

    /// The persistent volumes of the claims of the node's pods.
    fn own_volumes(&self) -> impl Iterator<Item = Value> {
        let all = NodeRequest {
            namespace: "",
            ..*self
        };
        let pods: Vec<Value> = all.own_pods().collect();
        pods.into_iter().flat_map(move |pod| {
            let namespace = text(&pod, "/metadata/namespace").to_owned();
            let claims = claims(&pod).into_iter();
            let volumes = claims.filter_map(|claim| {
                let claim = self.stored("persistentvolumeclaims", &namespace, &claim)?;
                self.stored("persistentvolumes", "", text(&claim, "/spec/volumeName"))
            });
            volumes.collect::<Vec<_>>()
        })
    }

    fn unrelated(&self) -> String {
        format!(
            "no relationship found between node {:?} and this object",
            self.node
        )
    }
}

/// The names of the resource claims of a pod.
fn resource_claims(pod: &Value) -> impl Iterator<Item = &str> {
    let named = pod["spec"]["resourceClaims"].as_array();
    let made = pod["status"]["resourceClaimStatuses"].as_array();
    let names = named.into_iter().chain(made).flatten();
    let names = names.filter_map(|claim| claim["resourceClaimName"].as_str());
    let extended = &pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"];
    names.chain(extended.as_str())
}

/// Fields that refer to a secret, as a name or as an object with a name.
const SECRETS: &[&str] = &[
    "secretName",
    "secret",
    "secretRef",
    "secretKeyRef",
    "imagePullSecrets",
    "nodePublishSecretRef",
    "nodeStageSecretRef",
    "nodeExpandSecretRef",
];
/// Fields that refer to a config map.
const CONFIG_MAPS: &[&str] = &["configMap", "configMapRef", "configMapKeyRef"];

/// Whether one of these fields, at any depth, refers to the object.
fn refers(value: &Value, fields: &[&str], name: &str) -> bool {
    let names = |value: &Value| value == name || value["name"] == name;
    match value {
        Value::Object(object) => object.iter().any(|(field, value)| {
            let is_one = fields.contains(&field.as_str());
            let mut listed = value.as_array().into_iter().flatten();
            (is_one && (names(value) || listed.any(names))) || refers(value, fields, name)
        }),
        Value::Array(list) => list.iter().any(|value| refers(value, fields, name)),
        _ => false,
    }
}

/// The claims of a pod, including those of its ephemeral volumes.
fn claims(pod: &Value) -> Vec<String> {
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let claims = volumes.filter_map(|volume| {
        if volume["ephemeral"].is_object() {
            let (pod, volume) = (text(pod, "/metadata/name"), text(volume, "/name"));
            return Some(format!("{pod}-{volume}"));
        }
        let claim = text(volume, "/persistentVolumeClaim/claimName");
        (!claim.is_empty()).then(|| claim.to_owned())
    });
    claims.collect()
}

/// The value that a field selector requires of a field.
fn selector<'a>(query: &'a Query, field: &str) -> Option<&'a str> {
    let mut terms = query.text("fieldSelector").split(',');
    terms.find_map(|term| {
        let (key, value) = term.split_once('=')?;
        (key == field).then(|| value.trim_start_matches('='))
    })
}
