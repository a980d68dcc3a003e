//! Computes the node status.

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::{
    api::core::v1::{DaemonEndpoint, Node, NodeDaemonEndpoints, NodeStatus, NodeSystemInfo},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kubelet_api_client::events::{EventRecorder, Subject};
use kubelet_pod_spec::{json, quantity};
use serde_json::{Map, Value};
use tracing::info;

use super::{
    addresses,
    capacity::{self, Quantities},
    conditions,
    options::NodeOptions,
    runtime_state::RuntimeState,
    status_source::NodeStatusSource,
};

/// Declared features (`declaredFeatures`), by upstream's names, sorted. The scheduler keeps pods
/// that need a feature off nodes that do not declare it. `ExtendWebSocketsToKubelet` is missing:
/// with it the API server passes WebSocket connections on to the kubelet, which would pass them on
/// to the runtime, and not every runtime supports them.
const DECLARED_FEATURES: [&str; 3] = [
    POD_RESIZE,
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];
const POD_RESIZE: &str = "InPlacePodLevelResourcesVerticalScaling";

/// What the node status is computed from.
pub struct Snapshot<'a> {
    /// The node's configuration.
    pub options: &'a NodeOptions,
    /// The hostname.
    pub hostname: &'a str,
    /// The detected address, used when none is configured.
    pub address: Option<IpAddr>,
    /// System information.
    pub system: &'a NodeSystemInfo,
    /// The machine's capacity.
    pub capacity: &'a Quantities,
    /// The runtime's state.
    pub runtime: &'a RuntimeState,
    /// What other parts of the kubelet know about the node.
    pub status_source: &'a dyn NodeStatusSource,
    /// The current time.
    pub now: Time,
    /// Recorder for condition changes.
    pub events: &'a EventRecorder,
}

impl std::fmt::Debug for Snapshot<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").finish_non_exhaustive()
    }
}

impl Snapshot<'_> {
    /// Writes the status to the node object. Fields of other owners, and those whose value is
    /// unknown now, are kept.
    ///
    /// # Errors
    /// A message: the addresses could not be set. The rest of the status is set.
    pub fn apply(&self, node: &mut Node) -> Result<(), String> {
        let addressed = addresses::set(node, self.options, self.hostname, self.address);
        let status = node.status.get_or_insert_default();
        self.set_resources(status);
        self.set_info(status);
        status.daemon_endpoints = Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint {
                port: i32::from(self.options.port),
            }),
        });
        if let Some(images) = self.runtime.images() {
            let most = self.options.max_images.unwrap_or(images.len());
            let images: Vec<_> = images.iter().take(most).cloned().collect();
            // The API server drops empty lists.
            status.images = (!images.is_empty()).then_some(images);
        }
        let handlers = self.runtime.handlers();
        status.runtime_handlers = (!handlers.is_empty()).then_some(handlers);
        if let Some(features) = self.runtime.features() {
            status.features = Some(features);
        }
        let declared = DECLARED_FEATURES.into_iter();
        let declared = declared.filter(|name| self.options.resizes_pods || *name != POD_RESIZE);
        status.declared_features = Some(declared.map(str::to_owned).collect());
        let mut problems = self.runtime.problems();
        problems.extend(self.status_source.problems());
        problems.extend(self.missing(status));
        let conditions = status.conditions.get_or_insert_default();
        let changes = conditions::set(
            conditions,
            self.status_source.pressure(),
            &problems,
            &self.now,
        );
        for reason in changes {
            self.tell(reason);
        }
        if let Some(volumes) = self.status_source.volumes_in_use() {
            status.volumes_in_use = (!volumes.is_empty()).then_some(volumes);
        }
        addressed
    }

    fn set_resources(&self, status: &mut NodeStatus) {
        let capacity = status.capacity.get_or_insert_default();
        capacity::update(capacity, self.capacity);
        let devices = self.status_source.devices();
        capacity.extend(devices.capacity);
        let mut allocatable = capacity::allocatable(capacity, &self.options.capacity);
        allocatable.extend(devices.allocatable);
        status.allocatable = Some(allocatable);
    }

    fn set_info(&self, status: &mut NodeStatus) {
        let before = status.node_info.take().unwrap_or_default();
        if !before.boot_id.is_empty() && before.boot_id != self.system.boot_id {
            info!(boot_id = self.system.boot_id, "the node was rebooted");
        }
        let known = before.container_runtime_version;
        let version = self.runtime.version().map(str::to_owned);
        status.node_info = Some(NodeSystemInfo {
            container_runtime_version: version
                .or_else(|| Some(known).filter(|known| !known.is_empty()))
                .unwrap_or_else(|| "://Unknown".to_owned()),
            ..self.system.clone()
        });
    }

    /// Records an event about a change of the node's status.
    pub fn tell(&self, reason: &str) {
        let message = format_args!("Node {} status is now: {reason}", self.hostname);
        self.events.normal(Subject::Node, reason, message);
    }

    fn missing(&self, status: &NodeStatus) -> Option<String> {
        let mut required = vec!["cpu", "memory", "pods"];
        if self.options.capacity.local_storage {
            required.push("ephemeral-storage");
        }
        let capacity = status.capacity.as_ref();
        required.retain(|name| capacity.is_none_or(|capacity| !capacity.contains_key(*name)));
        (!required.is_empty()).then(|| {
            format!(
                "missing node capacity for resources: {}",
                required.join(", ")
            )
        })
    }
}

/// Whether two statuses differ in more than heartbeat times. Other notations of a quantity and
/// omitted empty fields, as in the API server's copy, do not count.
pub fn has_changed(old: &NodeStatus, new: &NodeStatus) -> bool {
    let conditions = |status: &NodeStatus| status.conditions.clone().unwrap_or_default();
    if !conditions::are_same(&conditions(old), &conditions(new)) {
        return true;
    }
    if amounts(old.capacity.as_ref()) != amounts(new.capacity.as_ref())
        || amounts(old.allocatable.as_ref()) != amounts(new.allocatable.as_ref())
    {
        return true;
    }
    // An API server before 1.36 drops this field.
    let declared = old.declared_features.as_ref();
    let rest = |status: &NodeStatus| {
        let features = status.declared_features.as_ref();
        let rest = NodeStatus {
            capacity: None,
            allocatable: None,
            conditions: None,
            declared_features: features.filter(|_| declared.is_some()).cloned(),
            ..status.clone()
        };
        // Serializing to memory cannot fail.
        without_empty(json::to_value(&rest).unwrap_or_default())
    };
    rest(old) != rest(new)
}

fn amounts(quantities: Option<&Quantities>) -> BTreeMap<&str, Result<i128, &str>> {
    let quantities = quantities.into_iter().flatten();
    quantities
        .map(|(name, amount)| {
            let value = quantity::parse(&amount.0).map_err(|_| amount.0.as_str());
            (name.as_str(), value)
        })
        .collect()
}

/// Removes empty values; `None` if nothing is left.
fn without_empty(value: Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::String(text) if text.is_empty() => None,
        Value::Number(number) if number.as_i64() == Some(0) => None,
        Value::Array(items) => {
            let items: Vec<Value> = items
                .into_iter()
                // Elements keep their place even when empty.
                .map(|item| without_empty(item).unwrap_or_default())
                .collect();
            (!items.is_empty()).then_some(Value::Array(items))
        }
        Value::Object(fields) => {
            let fields: Map<String, Value> = fields
                .into_iter()
                .filter_map(|(key, value)| Some((key, without_empty(value)?)))
                .collect();
            (!fields.is_empty()).then_some(Value::Object(fields))
        }
        value => Some(value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn another_form_of_the_same_is_no_change() {
        let status = |json| serde_json::from_value::<NodeStatus>(json).unwrap();
        let own = status(json!({
            "capacity": {"memory": "1048576Ki", "ephemeral-storage": "5000"},
            "runtimeHandlers": [{"name": "", "features": {"userNamespaces": false}}],
            "images": [{"names": [], "sizeBytes": 0}],
        }));
        let servers = status(json!({
            "capacity": {"memory": "1Gi", "ephemeral-storage": "5k"},
            "runtimeHandlers": [{"features": {"userNamespaces": false}}],
            "images": [{}],
        }));
        assert!(!has_changed(&own, &servers));
        let other = status(json!({
            "capacity": {"memory": "1Gi", "ephemeral-storage": "5k"},
            "runtimeHandlers": [{"features": {"userNamespaces": true}}],
            "images": [{}],
        }));
        assert!(has_changed(&own, &other));
    }

    #[test]
    fn features_that_the_server_does_not_keep_are_no_change() {
        let declares = |names: &[&str]| NodeStatus {
            declared_features: Some(names.iter().map(|&name| name.to_owned()).collect()),
            ..NodeStatus::default()
        };
        assert!(!has_changed(&NodeStatus::default(), &declares(&["A"])));
        assert!(has_changed(&declares(&["A"]), &declares(&["A", "B"])));
    }
}
