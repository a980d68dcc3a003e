//! The message of an eviction, which `kubectl describe pod` shows, and the annotations of its
//! event.

use k8s_openapi::api::core::v1::{Container, Pod};
use kubelet_pod_spec::{
    identity,
    quantity::{self, NANOS},
    resources::{self, Side},
};

use crate::{observation::Observation, signal::Resource, threshold::Threshold, usage::PodUsage};

/// Keys of the annotations, as upstream.
const OFFENDING_CONTAINERS: &str = "offending_containers";
const OFFENDING_CONTAINERS_USAGE: &str = "offending_containers_usage";
const OFFENDING_POD: &str = "offending_pod";
const OFFENDING_POD_USAGE: &str = "offending_pod_usage";
const STARVED_RESOURCE: &str = "starved_resource";

/// Why a pod is evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Explanation {
    pub(crate) message: String,
    pub(crate) annotations: Vec<(&'static str, String)>,
}

/// Explains the eviction of a pod for a threshold, with upstream's sentences. Volumes on the node's
/// disk, which upstream leaves out, follow.
pub(crate) fn explain(
    pod: &Pod,
    usage: Option<&PodUsage>,
    threshold: &Threshold,
    observation: &Observation,
) -> Explanation {
    let resource = threshold.signal.resource();
    let name = resource.as_str();
    let mut message = format!(
        "The node was low on resource: {name}. Threshold quantity: {}, available: {}. ",
        quantity_of(resource, threshold.quantity(observation)),
        amount(resource, observation.available),
    );
    let mut annotations = Vec::new();
    let Some(usage) = usage else {
        return Explanation {
            message,
            annotations,
        };
    };
    if let Some((used, request)) = of_pod(pod, usage, resource) {
        let (pod, used) = (identity::name(pod), amount(resource, used));
        message += &sentence("Pod", pod, &used, &request, name);
        annotations.push((OFFENDING_POD, pod.to_owned()));
        annotations.push((OFFENDING_POD_USAGE, used));
    }
    let (mut offenders, mut offenders_usage) = (Vec::new(), Vec::new());
    for container in containers(pod) {
        let Some(used) = of_container(usage, &container.name, resource) else {
            continue;
        };
        let requests = container.resources.as_ref();
        let requests = requests.and_then(|it| it.requests.as_ref());
        if i128::from(used) * NANOS <= resources::amount(requests, name) {
            continue;
        }
        let request = requests.and_then(|requests| requests.get(name));
        let request = request.map_or("0", |request| &request.0);
        let used = amount(resource, used);
        message += &sentence("Container", &container.name, &used, request, name);
        offenders.push(container.name.as_str());
        offenders_usage.push(used);
    }
    if resource == Resource::EphemeralStorage {
        for (volume, used) in usage.local_volumes.iter().filter(|(_, it)| it.bytes > 0) {
            let used = amount(resource, used.bytes);
            message += &format!("Volume {volume} was using {used}. ");
        }
    }
    annotations.push((OFFENDING_CONTAINERS, offenders.join(",")));
    annotations.push((OFFENDING_CONTAINERS_USAGE, offenders_usage.join(",")));
    annotations.push((STARVED_RESOURCE, name.to_owned()));
    Explanation {
        message,
        annotations,
    }
}

fn sentence(kind: &str, name: &str, used: &str, request: &str, resource: &str) -> String {
    format!(
        "{kind} {name} was using {used}, request is {request}, has larger consumption of {resource}. "
    )
}

/// The memory of a pod with a request of its own, and the request.
fn of_pod(pod: &Pod, usage: &PodUsage, resource: Resource) -> Option<(u64, String)> {
    let spec = pod.spec.as_ref().filter(|_| resource == Resource::Memory)?;
    let request = *resources::pod_level(spec, Side::Requests).get("memory")?;
    Some((usage.memory?, quantity::format("memory", request)))
}

/// The containers with requests: regular and init containers.
fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| {
        let init = spec.init_containers.iter().flatten();
        spec.containers.iter().chain(init)
    })
}

/// What a container uses; `None` for a resource that is not attributed to containers.
fn of_container(usage: &PodUsage, name: &str, resource: Resource) -> Option<u64> {
    let container = usage.containers.get(name)?;
    match resource {
        Resource::Memory => container.memory,
        Resource::EphemeralStorage => {
            Some(container.layer?.bytes.saturating_add(container.logs?.bytes))
        }
        Resource::Inodes | Resource::Pids => None,
    }
}

fn amount(resource: Resource, count: u64) -> String {
    quantity_of(resource, i128::from(count) * NANOS)
}

/// Formats billionths: bytes with binary suffixes, counts with decimal ones.
fn quantity_of(resource: Resource, billionths: i128) -> String {
    match resource {
        Resource::Memory | Resource::EphemeralStorage => quantity::format("memory", billionths),
        Resource::Inodes | Resource::Pids => quantity::format_count(billionths),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kubelet_pod_spec::amount_or_share::AmountOrShare;
    use kubelet_resource_analyzer::FileUsage;
    use serde_json::{Value, json};

    use super::*;
    use crate::{signal::Signal, usage::ContainerUsage};

    const MIB: u64 = 1 << 20;

    fn explained(spec: Value, usage: Option<&PodUsage>, signal: Signal) -> Explanation {
        let pod = json!({"metadata": {"name": "p"}, "spec": spec});
        let observation = Observation {
            available: 40 * MIB,
            capacity: 800 * MIB,
            ..Observation::default()
        };
        let threshold = Threshold {
            grace_period: Duration::from_secs(1),
            ..Threshold::hard(signal, AmountOrShare::Share(0.125))
        };
        let pod = serde_json::from_value(pod).unwrap();
        explain(&pod, usage, &threshold, &observation)
    }

    fn usage() -> PodUsage {
        let files = |bytes| FileUsage { bytes, inodes: 1 };
        let container = ContainerUsage {
            memory: Some(30 * MIB),
            layer: Some(files(20 * MIB)),
            logs: Some(files(5 * MIB)),
        };
        PodUsage {
            memory: Some(33 * MIB),
            processes: Some(4),
            containers: [("c".to_owned(), container)].into(),
            local_volumes: [
                ("scratch".to_owned(), files(7 * MIB)),
                ("empty".to_owned(), files(0)),
            ]
            .into(),
            ..PodUsage::default()
        }
    }

    fn containers(request: &str) -> Value {
        let requests = json!({"memory": request, "ephemeral-storage": request});
        json!({"containers": [{"name": "c", "resources": {"requests": requests}}]})
    }

    #[test]
    fn the_message_says_signal_threshold_usage_and_requests() {
        let found = explained(containers("16Mi"), Some(&usage()), Signal::MemoryAvailable);
        assert_eq!(
            found.message,
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 40Mi. \
             Container c was using 30Mi, request is 16Mi, has larger consumption of memory. "
        );
        let annotations = [
            ("offending_containers", "c".to_owned()),
            ("offending_containers_usage", "30Mi".to_owned()),
            ("starved_resource", "memory".to_owned()),
        ];
        assert_eq!(found.annotations, annotations);
        let found = explained(containers("64Mi"), Some(&usage()), Signal::MemoryAvailable);
        assert!(!found.message.contains("Container"), "{found:?}");
        assert_eq!(found.annotations[0].1, "");
    }

    #[test]
    fn volumes_are_named() {
        let spec = json!({"containers": [{"name": "c"}]});
        let found = explained(spec, Some(&usage()), Signal::NodeFsAvailable);
        assert_eq!(
            found.message,
            "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, \
             available: 40Mi. Container c was using 25Mi, request is 0, has larger consumption of \
             ephemeral-storage. Volume scratch was using 7Mi. "
        );
    }

    #[test]
    fn a_pods_own_request_comes_first() {
        let mut spec = containers("64Mi");
        spec["resources"] = json!({"requests": {"memory": "32Mi"}});
        let found = explained(spec, Some(&usage()), Signal::AllocatableMemoryAvailable);
        assert!(
            found.message.ends_with(
                "Pod p was using 33Mi, request is 32Mi, has larger consumption of memory. "
            ),
            "{found:?}"
        );
        assert_eq!(found.annotations[0], ("offending_pod", "p".to_owned()));
        assert_eq!(found.annotations[1].1, "33Mi");
    }

    #[test]
    fn counts_are_decimal_and_nobody_is_blamed_without_numbers() {
        let found = explained(containers("0"), Some(&usage()), Signal::PidAvailable);
        assert_eq!(
            found.message,
            "The node was low on resource: pids. Threshold quantity: 104857600, available: \
             41943040. "
        );
        let found = explained(containers("0"), None, Signal::MemoryAvailable);
        assert!(found.message.ends_with("available: 40Mi. "), "{found:?}");
        assert_eq!(found.annotations, []);
    }
}
