//! What the containers of a pod request of the managers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kubelet_memory_manager::Amounts;
use kubelet_pod_spec::{
    qos::QosClass,
    resources::{self, amount, is_huge_pages, millis, units},
    restart_rules::is_sidecar,
};

/// When a container runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It ends before later containers start.
    Init,
    /// It starts before the regular containers, and runs beside them.
    Sidecar,
    Regular,
}

/// What a container requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    pub(crate) container: &'a str,
    pub(crate) role: Role,
    /// Exclusive CPUs.
    pub(crate) cpus: usize,
    /// Memory and huge pages in bytes.
    pub(crate) memory: Amounts,
    /// Extended resources, which may be devices.
    pub(crate) devices: BTreeMap<String, usize>,
}

/// The requests of all containers in the order in which they start. Only guaranteed pods request CPUs
/// and memory, and none with pod-level resources, as upstream without `PodLevelResourceManagers`.
pub(crate) fn of_pod(pod: &Pod) -> Vec<Request<'_>> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let is_managed = spec.resources.is_none() && QosClass::of(spec) == QosClass::Guaranteed;
    containers(spec)
        .map(|(role, container)| {
            let resources = container.resources.as_ref().filter(|_| is_managed);
            let requests = resources.and_then(|it| it.requests.as_ref());
            Request {
                container: &container.name,
                role,
                cpus: whole_cpus(amount(requests, "cpu")),
                memory: requests.map(memory).unwrap_or_default(),
                devices: devices(pod, container),
            }
        })
        .collect()
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = (Role, &Container)> {
    let init = spec.init_containers.iter().flatten();
    let init = init.map(|container| match is_sidecar(container) {
        true => (Role::Sidecar, container),
        false => (Role::Init, container),
    });
    let regular = spec.containers.iter();
    init.chain(regular.map(|container| (Role::Regular, container)))
}

/// Containers with a fraction of a CPU share CPUs.
fn whole_cpus(billionths: i128) -> usize {
    let millis = millis(billionths);
    if millis % 1000 != 0 {
        return 0;
    }
    usize::try_from(millis / 1000).unwrap_or_default()
}

fn memory(requests: &resources::ResourceList) -> Amounts {
    let amounts = resources::amounts(requests).into_iter();
    let amounts = amounts.filter(|(name, _)| name == "memory" || is_huge_pages(name));
    let bytes = amounts.filter_map(|(name, it)| Some((name, u64::try_from(units(it)).ok()?)));
    bytes.filter(|(_, bytes)| *bytes > 0).collect()
}

/// Requests and limits of an extended resource are equal.
fn devices(pod: &Pod, container: &Container) -> BTreeMap<String, usize> {
    let resources = container.resources.as_ref();
    let limits = resources.and_then(|it| it.limits.as_ref());
    let amounts = limits.map(resources::amounts).unwrap_or_default();
    let amounts = amounts
        .into_iter()
        .filter(|(name, _)| resources::is_extended(name))
        .filter(|(name, _)| !resources::is_claimed(pod, &container.name, name));
    let counts = amounts.filter_map(|(name, it)| Some((name, usize::try_from(units(it)).ok()?)));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// The most exclusive CPUs that the pod's containers have at one time.
pub(crate) fn cpus_at_once(requests: &[Request<'_>]) -> usize {
    let amounts = requests.iter().map(|it| (it.role, it.cpus as u64));
    usize::try_from(most_at_once(amounts)).unwrap_or(usize::MAX)
}

/// The same for memory and huge pages.
pub(crate) fn memory_at_once(requests: &[Request<'_>]) -> Amounts {
    let names = requests.iter().flat_map(|it| it.memory.keys());
    let at_once = |name: &String| {
        let of = |it: &Request<'_>| it.memory.get(name).copied().unwrap_or_default();
        most_at_once(requests.iter().map(|it| (it.role, of(it))))
    };
    names.map(|name| (name.clone(), at_once(name))).collect()
}

/// The same for each kind of devices.
pub(crate) fn devices_at_once(requests: &[Request<'_>]) -> BTreeMap<String, usize> {
    let names = requests.iter().flat_map(|it| it.devices.keys());
    let at_once = |name: &String| {
        let of = |it: &Request<'_>| it.devices.get(name).copied().unwrap_or_default() as u64;
        let most = most_at_once(requests.iter().map(|it| (it.role, of(it))));
        usize::try_from(most).unwrap_or(usize::MAX)
    };
    names.map(|name| (name.clone(), at_once(name))).collect()
}

fn most_at_once(amounts: impl Iterator<Item = (Role, u64)>) -> u64 {
    let (mut at_start, mut running) = (0_u64, 0_u64);
    for (role, amount) in amounts {
        let all = running.saturating_add(amount);
        match role {
            Role::Init => at_start = at_start.max(all),
            Role::Sidecar | Role::Regular => running = all,
        }
    }
    at_start.max(running)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn container(name: &str, cpu: &str, memory: &str) -> Value {
        let list = json!({"cpu": cpu, "memory": memory});
        json!({"name": name, "resources": {"requests": list, "limits": list}})
    }

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"uid": "u"}, "spec": spec})).unwrap()
    }

    #[test]
    fn only_whole_cpus_of_guaranteed_pods_are_exclusive() {
        let mut burstable = container("c", "2", "1Gi");
        burstable["resources"]["requests"]["cpu"] = json!("1");
        for (spec, cpus, memory) in [
            (
                json!({"containers": [container("c", "2", "1Gi")]}),
                2,
                1 << 30,
            ),
            (
                json!({"containers": [container("c", "2000m", "1Gi")]}),
                2,
                1 << 30,
            ),
            (
                json!({"containers": [container("c", "1500m", "1Gi")]}),
                0,
                1 << 30,
            ),
            (json!({"containers": [burstable]}), 0, 0),
            (
                json!({
                    "containers": [container("c", "2", "1Gi")],
                    "resources": {
                        "requests": {"cpu": "2", "memory": "1Gi"},
                        "limits": {"cpu": "2", "memory": "1Gi"}
                    }
                }),
                0,
                0,
            ),
        ] {
            let pod = pod(spec);
            let requests = of_pod(&pod);
            assert_eq!(requests[0].cpus, cpus, "{pod:?}");
            let bytes = requests[0]
                .memory
                .get("memory")
                .copied()
                .unwrap_or_default();
            assert_eq!(bytes, memory, "{pod:?}");
        }
    }

    #[test]
    fn init_containers_end_before_others_start() {
        let mut sidecar = container("s", "1", "1Gi");
        sidecar["restartPolicy"] = json!("Always");
        let pod = pod(json!({
            "initContainers": [container("i", "5", "1Gi"), sidecar, container("j", "3", "9Gi")],
            "containers": [container("a", "2", "1Gi"), container("b", "3", "1Gi")]
        }));
        let requests = of_pod(&pod);
        let roles: Vec<Role> = requests.iter().map(|request| request.role).collect();
        use Role::{Init, Regular, Sidecar};
        assert_eq!(roles, [Init, Sidecar, Init, Regular, Regular]);
        assert_eq!(cpus_at_once(&requests), 6);
        let memory = memory_at_once(&requests);
        assert_eq!(memory, [("memory".to_owned(), 10 << 30)].into());
        assert_eq!(cpus_at_once(&requests[..1]), 5);
    }
}
