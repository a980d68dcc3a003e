//! Creates the node object, or reconciles an existing one.

use k8s_openapi::{
    api::core::v1::{Node, NodeSpec, Taint},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use kubelet_api_client::request::{ApiError, ask};
use kubelet_host::version;
use kubelet_pod_spec::resources;
use tracing::{info, warn};

use super::{capacity, options::NodeOptions, patch};

/// Annotation: the attach-detach controller attaches volumes.
const ATTACH_DETACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Taint that keeps pods off the node until a cloud controller has initialised it.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// Labels that are reconciled on an existing object.
const DEFAULT_LABELS: &[&str] = &[
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// The node object to create, without status.
pub fn new_node(name: &str, options: &NodeOptions) -> Node {
    let (os, arch) = (std::env::consts::OS, version::go_arch());
    let mut metadata = ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    };
    let labels = metadata.labels.get_or_insert_default();
    for (key, value) in [
        ("kubernetes.io/hostname", name),
        ("kubernetes.io/os", os),
        ("kubernetes.io/arch", arch),
        ("beta.kubernetes.io/os", os),
        ("beta.kubernetes.io/arch", arch),
    ] {
        labels.insert(key.to_owned(), value.to_owned());
    }
    labels.extend(options.labels.clone());
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(ATTACH_DETACH.to_owned(), "true".to_owned());
    let mut taints = options.taints.clone();
    if options.external_cloud_provider {
        taints.push(Taint {
            key: UNINITIALIZED.to_owned(),
            value: Some("true".to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        });
    }
    Node {
        metadata,
        spec: Some(NodeSpec {
            provider_id: Some(options.provider_id.clone()).filter(|id| !id.is_empty()),
            taints: (!taints.is_empty()).then_some(taints),
            ..NodeSpec::default()
        }),
        status: None,
    }
}

/// Reconciles an existing object with the new one; returns whether it changed. The extended resources
/// of an object of another machine are set to 0, until device plugins offer them or an administrator
/// sets them: pods must not be scheduled to devices that are gone.
fn reconcile(new: &Node, existing: &mut Node, is_new_machine: bool) -> bool {
    let before = existing.clone();
    let annotation = |node: &Node| {
        let annotations = node.metadata.annotations.as_ref();
        annotations.and_then(|annotations| annotations.get(ATTACH_DETACH).cloned())
    };
    match annotation(new) {
        Some(value) => {
            let annotations = existing.metadata.annotations.get_or_insert_default();
            annotations.insert(ATTACH_DETACH.to_owned(), value);
        }
        None => {
            if let Some(annotations) = &mut existing.metadata.annotations {
                annotations.remove(ATTACH_DETACH);
            }
        }
    }
    let labels = existing.metadata.labels.get_or_insert_default();
    for key in DEFAULT_LABELS {
        match new
            .metadata
            .labels
            .iter()
            .flatten()
            .find(|(new, _)| new == key)
        {
            Some((_, value)) if value.is_empty() => drop(labels.remove(*key)),
            Some((_, value)) => drop(labels.insert((*key).to_owned(), value.clone())),
            None => {}
        }
    }
    if labels.is_empty() {
        existing.metadata.labels = None;
    }
    if let Some(status) = existing.status.as_mut().filter(|_| is_new_machine) {
        for list in [&mut status.capacity, &mut status.allocatable] {
            let amounts = list.iter_mut().flatten();
            let extended = amounts.filter(|(name, _)| resources::is_extended(name));
            extended.for_each(|(_, amount)| *amount = Quantity("0".to_owned()));
        }
    }
    if let Some(own) = &new.status {
        let status = existing.status.get_or_insert_default();
        for (of_existing, of_new) in [
            (&mut status.capacity, &own.capacity),
            (&mut status.allocatable, &own.allocatable),
        ] {
            let Some(of_new) = of_new else { continue };
            match of_existing {
                None => *of_existing = Some(of_new.clone()),
                Some(known) => {
                    let pages = of_new
                        .iter()
                        .filter(|(name, _)| resources::is_huge_pages(name))
                        .map(|(name, amount)| (name.clone(), amount.clone()));
                    capacity::update(known, &pages.collect());
                }
            }
        }
    }
    *existing != before
}

/// Whether the node is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    /// The object was created.
    New,
    /// The object existed before.
    Before,
    /// Not yet; registration must be retried.
    No,
}

/// Creates the object, or reconciles the existing one. Logs a failure unless it equals the last one
/// (`complaint`).
pub async fn register(
    nodes: &Api<Node>,
    name: &str,
    new: &Node,
    is_new_machine: bool,
    complaint: &mut Option<String>,
) -> Registered {
    let mut refused = |what: &str, error: &ApiError| {
        let text = format!("{what}: {error}");
        if !error.is_unreachable() && complaint.as_ref() != Some(&text) {
            warn!(node = name, "cannot register the node: {text}");
            *complaint = Some(text);
        }
        Registered::No
    };
    match ask(nodes.create(&PostParams::default(), new)).await {
        Ok(_) => {
            info!(node = name, "registered the node");
            return Registered::New;
        }
        Err(error) if error.is_already_exists() => {}
        // A kubelet without permission to create nodes may find one created for it.
        Err(error) if error.is_forbidden() => {
            if !matches!(nodes.get_opt(name).await, Ok(Some(_))) {
                return refused("not allowed to create the Node object", &error);
            }
        }
        Err(error) => return refused("cannot create the Node object", &error),
    }
    let existing = match ask(nodes.get(name)).await {
        Ok(existing) => existing,
        Err(error) => return refused("cannot read the existing Node object", &error),
    };
    let mut wanted = existing.clone();
    if reconcile(new, &mut wanted, is_new_machine) {
        let patch = Patch::Strategic(patch::between(&existing, &wanted));
        let params = PatchParams::default();
        let patched = ask(nodes.patch_status(name, &params, &patch));
        if let Err(error) = patched.await {
            return refused("cannot update the existing Node object", &error);
        }
        info!(node = name, "updated the existing Node object");
    } else {
        info!(node = name, "the node is already registered");
    }
    Registered::Before
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn options() -> NodeOptions {
        serde_options(&[("tier", "web"), ("beta.kubernetes.io/os", "other")])
    }

    fn serde_options(labels: &[(&str, &str)]) -> NodeOptions {
        NodeOptions {
            labels: labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            provider_id: "cloud://1".to_owned(),
            external_cloud_provider: true,
            ..NodeOptions::default()
        }
    }

    #[test]
    fn a_new_node_says_what_it_is() {
        let node = serde_json::to_value(new_node("node-1", &options())).unwrap();
        let labels = &node["metadata"]["labels"];
        assert_eq!(labels["kubernetes.io/hostname"], "node-1");
        assert_eq!(labels["kubernetes.io/os"], "linux");
        assert_eq!(labels["beta.kubernetes.io/os"], "other", "labels given win");
        assert_eq!(labels["tier"], "web");
        assert_eq!(node["metadata"]["annotations"][ATTACH_DETACH], "true");
        assert_eq!(
            node["spec"],
            json!({
                "providerID": "cloud://1",
                "taints": [{"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"}],
            })
        );
    }

    #[test]
    fn an_older_object_keeps_what_is_not_the_kubelets() {
        let mut existing: Node = serde_json::from_value(json!({
            "metadata": {
                "name": "node-1",
                "labels": {"kubernetes.io/arch": "z", "tier": "db"},
                "annotations": {"a": "b"},
            },
            "spec": {"unschedulable": true, "taints": [{"key": "k", "effect": "NoExecute"}]},
            "status": {"capacity": {"hugepages-1Gi": "0", "cpu": "64"}, "allocatable": {}},
        }))
        .unwrap();
        let new = new_node("node-1", &options());
        assert!(reconcile(&new, &mut existing, false));
        let value = serde_json::to_value(&existing).unwrap();
        assert_eq!(
            value["metadata"]["labels"]["kubernetes.io/arch"],
            version::go_arch()
        );
        assert_eq!(value["metadata"]["labels"]["tier"], "db");
        assert_eq!(value["metadata"]["annotations"]["a"], "b");
        assert_eq!(value["spec"]["unschedulable"], true);
        assert_eq!(value["spec"]["taints"][0]["key"], "k");
        assert_eq!(value["status"]["capacity"]["cpu"], "64");
        assert!(!reconcile(&new, &mut existing, false));
    }

    #[test]
    fn devices_of_an_earlier_machine_are_not_this_ones() {
        let amounts = json!({
            "vendor.example/gpu": "8", "cpu": "64", "hugepages-2Mi": "1Gi",
            "kubernetes.io/batch": "3",
        });
        let mut existing: Node = serde_json::from_value(json!({
            "metadata": {"name": "node-1"},
            "status": {"capacity": amounts, "allocatable": amounts},
        }))
        .unwrap();
        let new = new_node("node-1", &NodeOptions::default());
        assert!(reconcile(&new, &mut existing, true));
        let mut expected = amounts;
        expected["vendor.example/gpu"] = json!("0");
        let status = serde_json::to_value(&existing.status).unwrap();
        assert_eq!(status["capacity"], expected);
        assert_eq!(status["allocatable"], expected);
    }
}
