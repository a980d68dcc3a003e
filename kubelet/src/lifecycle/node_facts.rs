//! What admission knows about this node.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use cri_proto::runtime::v1::RuntimeFeatures;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::{Api, Client};
use kubelet_host::local_node::LocalNode;
use kubelet_node::capacity::Quantities;
use kubelet_pod_spec::{
    quantity::NANOS,
    resources::{self, Amounts},
};
use kubelet_resource_managers::ResourceManagers;
use tokio::sync::watch;

/// What names of huge pages begin with; the rest is their size.
const HUGE_PAGES: &str = "hugepages-";

/// Labels of every node.
const HOSTNAME: &str = "kubernetes.io/hostname";
pub(super) const OS: &str = "kubernetes.io/os";
const ARCH: &str = "kubernetes.io/arch";

/// Sources of [`NodeFacts`].
#[derive(Debug)]
pub struct NodeSource {
    /// Facts without the node object.
    pub standalone: NodeFacts,
    /// The node object, if there is an API server.
    pub object: Option<watch::Receiver<Option<Arc<Node>>>>,
    /// What to ask for the node object as it is now: the watch may be behind the scheduler. `None`
    /// without an API server.
    api: Option<Api<Node>>,
    /// The node object as stored by an earlier kubelet, used until the API server has sent it.
    last_object: Option<Arc<Node>>,
    /// What containers have for themselves.
    managers: Arc<ResourceManagers>,
    /// Whether the runtime reports support for supplemental groups policies.
    has_group_policies: AtomicBool,
}

impl NodeSource {
    /// A node with the API object `object`, if there is an API server. Until it is known,
    /// `last_object` is used, or else `standalone`. The `managers` know the node's devices.
    pub fn new(
        standalone: NodeFacts,
        object: Option<watch::Receiver<Option<Arc<Node>>>>,
        last_object: Option<Arc<Node>>,
        managers: Arc<ResourceManagers>,
    ) -> Self {
        Self {
            standalone,
            object,
            api: None,
            last_object,
            managers,
            has_group_policies: AtomicBool::default(),
        }
    }

    /// With the API server of `client`.
    pub fn with_client(mut self, client: Option<Client>) -> Self {
        self.api = client.map(Api::all);
        self
    }

    /// Stores the runtime's features that do not depend on the handler.
    pub fn set_runtime_features(&self, features: RuntimeFeatures) {
        self.has_group_policies
            .store(features.supplemental_groups_policy, Ordering::Relaxed);
    }

    /// The current facts.
    pub fn facts(&self) -> NodeFacts {
        let told = self.object.as_ref().and_then(|node| node.borrow().clone());
        self.facts_told(told)
    }

    /// What to ask for the node object; `None` without an API server.
    pub fn api(&self) -> Option<Api<Node>> {
        self.api.clone()
    }

    /// The facts with the node object that the API server `told`.
    pub fn facts_told(&self, told: Option<Arc<Node>>) -> NodeFacts {
        let mut facts = self.facts_of_object(told);
        if let Some(devices) = self.managers.devices() {
            if devices.is_unrecorded() {
                // Pods that were bound to an earlier machine of this name.
                let told = facts.allocatable.iter_mut();
                let extended = told.filter(|(name, _)| resources::is_extended(name));
                extended.for_each(|(_, amount)| *amount = 0);
            }
            // The node object is older.
            let devices = devices.assignable().into_iter();
            let devices = devices.map(|(name, count)| (name, count as i128 * NANOS));
            facts.allocatable.extend(devices);
        }
        facts
    }

    fn facts_of_object(&self, told: Option<Arc<Node>>) -> NodeFacts {
        let is_told = told.is_some();
        let own = || NodeFacts {
            has_group_policies: self.has_group_policies.load(Ordering::Relaxed),
            ..self.standalone.clone()
        };
        let Some(object) = told.or_else(|| self.last_object.clone()) else {
            return own();
        };
        let mut facts = NodeFacts::of(&object);
        let own = own();
        let is_reported = !facts.allocatable.is_empty();
        // The runtime's own report is newer: the node's status may not be reported yet.
        if !is_told || !is_reported {
            facts.has_group_policies = own.has_group_policies;
        }
        if !is_reported {
            facts.allocatable = own.allocatable;
            return facts;
        }
        facts.allocatable = with_huge_pages_of(&own.allocatable, facts.allocatable);
        facts
    }
}

/// What the object told, with this kubelet's `own` huge pages: they are counted when a kubelet starts,
/// and the object may be older. Webhooks may have set other resources. Memory does not include huge
/// pages.
fn with_huge_pages_of(own: &Amounts, told: Amounts) -> Amounts {
    let is_huge = |name: &str| name.starts_with(HUGE_PAGES);
    let (old, mut all): (Amounts, Amounts) = told.into_iter().partition(|(name, _)| is_huge(name));
    let own = own.iter().filter(|(name, _)| is_huge(name));
    let huge: Amounts = own.map(|(name, amount)| (name.clone(), *amount)).collect();
    let sum = |amounts: &Amounts| {
        amounts
            .values()
            .fold(0, |sum: i128, one| sum.saturating_add(*one))
    };
    let more = sum(&huge).saturating_sub(sum(&old));
    if let Some(memory) = all.get_mut("memory") {
        *memory = memory.saturating_sub(more).max(0);
    }
    all.extend(huge);
    all
}

/// The node's properties that pods may depend on.
#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    /// The node's name.
    pub name: String,
    /// The node's labels.
    pub labels: BTreeMap<String, String>,
    /// The node's taints.
    pub taints: Vec<Taint>,
    /// Allocatable amounts by resource.
    pub allocatable: Amounts,
    /// The runtime supports supplemental groups policies (`features.supplementalGroupsPolicy`).
    pub has_group_policies: bool,
}

impl NodeFacts {
    /// Facts without a node object: the standard and configured labels, and the allocatable that
    /// the object would have.
    pub fn standalone(
        node: &LocalNode,
        labels: &BTreeMap<String, String>,
        allocatable: &Quantities,
    ) -> Self {
        let arch = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let own = [(HOSTNAME, node.name.as_str()), (OS, "linux"), (ARCH, arch)];
        Self {
            name: node.name.clone(),
            labels: own
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .chain(labels.clone())
                .collect(),
            taints: Vec::new(),
            allocatable: resources::amounts(allocatable),
            has_group_policies: false,
        }
    }

    /// Facts from the node object.
    pub fn of(node: &Node) -> Self {
        let allocatable = node.status.as_ref().and_then(|s| s.allocatable.as_ref());
        let features = node.status.as_ref().and_then(|s| s.features.as_ref());
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone());
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: taints.unwrap_or_default(),
            allocatable: allocatable.map(resources::amounts).unwrap_or_default(),
            has_group_policies: features.and_then(|f| f.supplemental_groups_policy) == Some(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use kubelet_device_manager::DeviceManager;
    use kubelet_host::machine::Machine;
    use kubelet_node::capacity::{self, CapacityOptions};
    use kubelet_topology_manager::NodeMask;

    use super::*;
    use crate::config::reservation::reservation;

    #[test]
    fn a_node_without_an_object_gives_pods_what_its_object_would_say() {
        let config = serde_json::json!({
            "systemReserved": {"cpu": "500m", "memory": "1Gi"},
            "kubeReserved": {"cpu": "250m"},
            "evictionHard": {"memory.available": "100Mi"}
        });
        let options = CapacityOptions {
            pods_per_core: 5,
            local_storage: false,
            reservation: reservation(&serde_json::from_value(config).unwrap()),
            ..CapacityOptions::default()
        };
        let machine = Machine {
            cpus: 2,
            memory: 4 << 30,
            ..Machine::default()
        };
        let capacity = capacity::read(&machine, Path::new("/"), &options);
        let allocatable = capacity::allocatable(&capacity, &options);
        let facts = NodeFacts::standalone(&LocalNode::default(), &BTreeMap::new(), &allocatable);
        let units = |name: &str| resources::units(facts.allocatable[name]);
        assert_eq!(resources::millis(facts.allocatable["cpu"]), 1250);
        assert_eq!(units("memory"), (3 << 30) - (100 << 20));
        assert_eq!(units("pods"), 10);
        assert_eq!(facts.allocatable.get("ephemeral-storage"), None);
    }

    #[test]
    fn devices_of_an_earlier_machine_are_not_given_to_pods() {
        let dir = tempfile::tempdir().unwrap();
        let devices = DeviceManager::start(dir.path(), NodeMask::default());
        let node = serde_json::json!({
            "metadata": {"name": "node"},
            "status": {"allocatable": {"cpu": "2", "vendor.example/gpu": "8"}}
        });
        let node: Node = serde_json::from_value(node).unwrap();
        let told = watch::Sender::new(Some(Arc::new(node)));
        let managers = ResourceManagers::default().with_devices(devices.clone());
        let source = NodeSource::new(
            NodeFacts::default(),
            Some(told.subscribe()),
            None,
            Arc::new(managers),
        );
        let units = |name: &str| resources::units(source.facts().allocatable[name]);
        assert_eq!((units("cpu"), units("vendor.example/gpu")), (2, 0));
        // An administrator may set them.
        devices.record();
        assert_eq!(units("vendor.example/gpu"), 8);
    }

    #[test]
    fn huge_pages_are_those_of_this_start() {
        let amounts = |amounts: [(&str, &str); 2]| {
            let amounts = amounts.map(|(name, amount)| (name.to_owned(), Quantity(amount.into())));
            Quantities::from(amounts)
        };
        let machine = amounts([("cpu", "4"), ("hugepages-2Mi", "8Mi")]);
        let own = NodeFacts::standalone(&LocalNode::default(), &BTreeMap::new(), &machine);
        let node = serde_json::json!({
            "metadata": {"name": "node"},
            "status": {"allocatable": {
                "cpu": "8", "hugepages-1Gi": "1Gi", "hugepages-2Mi": "0", "memory": "2Gi",
                "kubernetes.io/batch-cpu": "3", "vendor.example/gpu": "8",
            }}
        });
        let node: Node = serde_json::from_value(node).unwrap();
        let told = watch::Sender::new(Some(Arc::new(node)));
        let object = Some(told.subscribe());
        let source = NodeSource::new(own, object, None, Arc::default());
        let facts = source.facts();
        let units = facts.allocatable.iter();
        let units: Vec<_> = units
            .map(|(name, amount)| (&**name, resources::units(*amount)))
            .collect();
        let expected = [
            ("cpu", 8),
            ("hugepages-2Mi", 8 << 20),
            ("kubernetes.io/batch-cpu", 3),
            ("memory", (3 << 30) - (8 << 20)),
            ("vendor.example/gpu", 8),
        ];
        assert_eq!(units, expected);
    }

    #[test]
    fn what_the_runtime_can_do_is_known_without_the_api_server() {
        let object = |features: serde_json::Value| {
            let node = serde_json::json!({
                "metadata": {"name": "node", "labels": {"a": "b"}},
                "status": {"allocatable": {"cpu": "2"}, "features": features}
            });
            Arc::new(serde_json::from_value::<Node>(node).unwrap())
        };
        let told = watch::Sender::new(None);
        let last = Some(object(serde_json::json!(null)));
        let source = NodeSource::new(
            NodeFacts::default(),
            Some(told.subscribe()),
            last,
            Arc::default(),
        );
        assert!(!source.facts().has_group_policies);
        source.set_runtime_features(RuntimeFeatures {
            supplemental_groups_policy: true,
            ..RuntimeFeatures::default()
        });
        let facts = source.facts();
        assert!(facts.has_group_policies && facts.labels.contains_key("a"));
        assert_eq!(resources::units(facts.allocatable["cpu"]), 2);
        // The API server's copy is authoritative, as for its scheduler.
        let says_no = serde_json::json!({"supplementalGroupsPolicy": false});
        told.send_replace(Some(object(says_no)));
        assert!(!source.facts().has_group_policies);
    }
}
