//! The order in which pending resizes are tried.

use std::cmp::Reverse;

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use kubelet_pod_spec::{identity::PodUid, qos::QosClass, resources};

/// A pod's place among pending resizes, as upstream: first those that request no more than they
/// have, because they need no room and may free some; then by priority, guaranteed pods before
/// others, and by waiting time.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    grows: bool,
    priority: Reverse<i32>,
    is_burstable: bool,
    since: Timestamp,
    /// Makes places unique.
    uid: PodUid,
}

impl Place {
    /// The place of `pod`, which has the resources of `placed`. Its resize is pending since
    /// `since`; `None` if it was not tried before.
    pub(super) fn of(pod: &Pod, placed: &Pod, since: Option<Time>) -> Self {
        let priority = pod.spec.as_ref().and_then(|spec| spec.priority);
        let class = pod.spec.as_ref().map(QosClass::of);
        Self {
            grows: grows(pod, placed),
            priority: Reverse(priority.unwrap_or_default()),
            is_burstable: class != Some(QosClass::Guaranteed),
            since: since.map_or(Timestamp::MAX, |since| since.0),
            uid: PodUid::of(pod),
        }
    }
}

/// Whether the pod requests more of a resource than it has.
fn grows(pod: &Pod, placed: &Pod) -> bool {
    let requests = |pod: &Pod| {
        pod.spec
            .as_ref()
            .map(resources::requests)
            .unwrap_or_default()
    };
    let (wanted, had) = (requests(pod), requests(placed));
    ["cpu", "memory"]
        .iter()
        .any(|name| wanted.get(*name) > had.get(*name))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(uid: &str, priority: Value, resources: &Value) -> Pod {
        let pod = json!({"metadata": {"uid": uid}, "spec": {
            "priority": priority, "containers": [{"name": "c", "resources": resources}]
        }});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn the_undemanding_the_important_and_the_patient_are_first() {
        let list = |cpu: &str| json!({"cpu": cpu, "memory": "1Mi"});
        let burstable = |cpu: &str| json!({"requests": list(cpu)});
        let guaranteed = |cpu: &str| json!({"requests": list(cpu), "limits": list(cpu)});
        let had = pod("any", json!(null), &burstable("2"));
        let at = |second| Some(Time(Timestamp::from_second(second).unwrap()));
        let mut places = [
            Place::of(&pod("new", json!(null), &burstable("3")), &had, None),
            Place::of(&pod("late", json!(0), &burstable("3")), &had, at(2)),
            Place::of(&pod("early", json!(null), &burstable("4")), &had, at(1)),
            Place::of(&pod("guaranteed", json!(0), &guaranteed("3")), &had, at(3)),
            Place::of(&pod("important", json!(1), &burstable("3")), &had, at(4)),
            Place::of(&pod("less", json!(-1), &burstable("1")), &had, at(5)),
        ];
        places.sort_unstable();
        let order = places.map(|place| place.uid.to_string());
        let expected = ["less", "important", "guaranteed", "early", "late", "new"];
        assert_eq!(order, expected);
    }
}
