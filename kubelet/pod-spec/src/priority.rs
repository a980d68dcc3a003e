//! Critical pods.

use k8s_openapi::api::core::v1::Pod;

use super::identity;

/// Lowest priority of the classes that are reserved for Kubernetes.
pub const SYSTEM_CRITICAL: i32 = 2_000_000_000;
const NODE_CRITICAL_CLASS: &str = "system-node-critical";

/// Whether the pod is critical: static pods, mirror pods, and pods with a system priority.
pub fn is_critical(pod: &Pod) -> bool {
    let priority = pod.spec.as_ref().and_then(|spec| spec.priority);
    identity::is_static(pod)
        || identity::annotation(pod, identity::CONFIG_MIRROR).is_some()
        || priority.is_some_and(|priority| priority >= SYSTEM_CRITICAL)
}

/// Whether the pod is critical to the node: a critical pod of the class `system-node-critical`.
pub fn is_node_critical(pod: &Pod) -> bool {
    let class = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.priority_class_name.as_deref());
    class == Some(NODE_CRITICAL_CLASS) && is_critical(pod)
}
