//! The quality of service (QoS) class of a pod, which follows from its resources.

use k8s_openapi::api::core::v1::PodSpec;

use crate::resources::{Amounts, ResourceList, amount};

/// The resources that determine the QoS class.
const COMPUTE: [&str; 2] = ["cpu", "memory"];

/// QoS class of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QosClass {
    /// Every container, or the pod as a whole, has CPU and memory limits and equal requests.
    Guaranteed,
    /// The pod has some CPU or memory request or limit.
    Burstable,
    /// The pod has no CPU or memory requests or limits.
    BestEffort,
}

impl QosClass {
    /// The class as written in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }

    /// The class of a pod. Pod-level resources take precedence over those of containers.
    pub fn of(spec: &PodSpec) -> Self {
        let mut requests = Amounts::new();
        let mut limits = Amounts::new();
        let mut limited = true;
        if let Some(own) = &spec.resources {
            add(&mut requests, own.requests.as_ref());
            let all = add(&mut limits, own.limits.as_ref());
            limited = all || own.limits.as_ref().is_none_or(ResourceList::is_empty);
        } else {
            let init = spec.init_containers.iter().flatten();
            for container in spec.containers.iter().chain(init) {
                let own = container.resources.as_ref();
                add(&mut requests, own.and_then(|own| own.requests.as_ref()));
                limited &= add(&mut limits, own.and_then(|own| own.limits.as_ref()));
            }
        }
        if requests.is_empty() && limits.is_empty() {
            Self::BestEffort
        } else if limited && requests == limits {
            Self::Guaranteed
        } else {
            Self::Burstable
        }
    }
}

/// Adds the compute resources of `list`; returns whether it has all of them.
fn add(total: &mut Amounts, list: Option<&ResourceList>) -> bool {
    let mut all = true;
    for name in COMPUTE {
        let amount = amount(list, name);
        if amount > 0 {
            let sum = total.entry(name.to_owned()).or_default();
            *sum = sum.saturating_add(amount);
        } else {
            all = false;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use QosClass::{BestEffort, Burstable, Guaranteed};

    fn class(pod: &Value, containers: &[Value]) -> QosClass {
        let containers: Vec<Value> = containers
            .iter()
            .map(|resources| json!({"name": "c", "resources": resources}))
            .collect();
        let mut spec = json!({"containers": containers});
        if !pod.is_null() {
            spec["resources"] = pod.clone();
        }
        let mut pod = k8s_openapi::api::core::v1::Pod {
            spec: Some(serde_json::from_value(spec).unwrap()),
            ..Default::default()
        };
        crate::defaults::set_defaults(&mut pod);
        QosClass::of(&pod.spec.unwrap())
    }

    #[test]
    fn classes_follow_from_requests_and_limits() {
        let limits = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        let equal = json!({
            "requests": {"cpu": "1000m", "memory": "1024Mi"},
            "limits": {"cpu": "1", "memory": "1Gi"}
        });
        let less = json!({"requests": {"cpu": "1m"}, "limits": {"cpu": "1", "memory": "1Gi"}});
        let none = json!({});
        for (pod, containers, expected) in [
            (&Value::Null, vec![none.clone()], BestEffort),
            (
                &Value::Null,
                vec![json!({"limits": {"ephemeral-storage": "1"}})],
                BestEffort,
            ),
            (
                &Value::Null,
                vec![json!({"requests": {"cpu": "1"}})],
                Burstable,
            ),
            (
                &Value::Null,
                vec![json!({"limits": {"memory": "1"}})],
                Burstable,
            ),
            (&Value::Null, vec![limits.clone()], Guaranteed),
            (
                &Value::Null,
                vec![equal.clone(), limits.clone()],
                Guaranteed,
            ),
            (&Value::Null, vec![less.clone()], Burstable),
            (&Value::Null, vec![limits.clone(), none.clone()], Burstable),
            (&limits, vec![none.clone()], Guaranteed),
            (&less, vec![none.clone()], Burstable),
            (
                &json!({"requests": {"cpu": "2"}}),
                vec![limits.clone()],
                Burstable,
            ),
        ] {
            assert_eq!(class(pod, &containers), expected, "{pod} {containers:?}");
        }
    }
}
