//! Requests and limits of a pod as a whole: the sum of its containers, or its pod-level resources.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{
    names,
    quantity::{self, NANOS},
    restart_rules::is_sidecar,
};

/// Quantities by resource, as in the API.
pub type ResourceList = BTreeMap<String, Quantity>;

/// Amounts by resource, in billionths.
pub type Amounts = BTreeMap<String, i128>;

/// One side of resource requirements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Amounts that are reserved.
    Requests,
    /// Amounts that must not be exceeded.
    Limits,
}

impl Side {
    /// This side of `requirements`.
    pub fn of(self, requirements: &ResourceRequirements) -> Option<&ResourceList> {
        match self {
            Self::Requests => requirements.requests.as_ref(),
            Self::Limits => requirements.limits.as_ref(),
        }
    }

    fn of_container(self, container: &Container) -> Amounts {
        container
            .resources
            .as_ref()
            .and_then(|requirements| self.of(requirements))
            .map(amounts)
            .unwrap_or_default()
    }
}

/// Whether `name` is a huge page resource.
pub fn is_huge_pages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Whether the resource is supported at pod level.
pub fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || is_huge_pages(name)
}

/// The pod-level amounts.
pub fn pod_level(spec: &PodSpec, side: Side) -> Amounts {
    let mut own = spec
        .resources
        .as_ref()
        .and_then(|requirements| side.of(requirements))
        .map(amounts)
        .unwrap_or_default();
    own.retain(|name, _| is_pod_level(name));
    own
}

/// Whether the pod has pod-level resources.
pub fn has_pod_level(spec: &PodSpec) -> bool {
    let sides = [Side::Requests, Side::Limits];
    sides
        .into_iter()
        .any(|side| !pod_level(spec, side).is_empty())
}

/// The amounts that the containers need together: the sum of regular containers and sidecars, but
/// at least each init container plus the sidecars before it.
pub fn of_containers(spec: &PodSpec, side: Side) -> Amounts {
    let mut total = Amounts::new();
    for container in &spec.containers {
        add(&mut total, &side.of_container(container));
    }
    let mut sidecars = Amounts::new();
    let mut least = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        let mut amounts = side.of_container(container);
        if is_sidecar(container) {
            add(&mut total, &amounts);
            add(&mut sidecars, &amounts);
            amounts.clone_from(&sidecars);
        } else {
            add(&mut amounts, &sidecars);
        }
        raise(&mut least, &amounts);
    }
    raise(&mut total, &least);
    total
}

/// The amounts that the pod needs, without its overhead. Pod-level amounts take precedence over
/// those of the containers.
pub fn of_pod(spec: &PodSpec, side: Side) -> Amounts {
    let mut total = of_containers(spec, side);
    total.extend(pod_level(spec, side));
    total
}

/// The pod's requests, including its overhead.
pub fn requests(spec: &PodSpec) -> Amounts {
    let mut total = of_pod(spec, Side::Requests);
    if let Some(overhead) = &spec.overhead {
        add(&mut total, &amounts(overhead));
    }
    total
}

/// The pod's limit of a resource, including its overhead if there is one. It bounds the pod only if
/// the resource [is limited](is_limited).
pub fn limit(spec: &PodSpec, name: &str) -> i128 {
    match of_pod(spec, Side::Limits).get(name).copied() {
        None | Some(0) => 0,
        Some(limit) => limit.saturating_add(amount(spec.overhead.as_ref(), name)),
    }
}

/// Whether the pod, or each of its containers, limits a resource.
pub fn is_limited(spec: &PodSpec, name: &str) -> bool {
    let own = spec.resources.as_ref();
    if amount(own.and_then(|own| own.limits.as_ref()), name) != 0 {
        return true;
    }
    let limits = |container: &Container| {
        let own = container.resources.as_ref();
        amount(own.and_then(|own| own.limits.as_ref()), name) != 0
    };
    let init = spec.init_containers.iter().flatten();
    spec.containers.iter().chain(init).all(limits)
}

/// The amounts of a list; invalid quantities are left out.
pub fn amounts(list: &ResourceList) -> Amounts {
    list.iter()
        .filter_map(|(name, quantity)| Some((name.clone(), quantity::parse(&quantity.0).ok()?)))
        .collect()
}

/// The amount of one resource in billionths; zero if it is missing.
pub fn amount(list: Option<&ResourceList>, name: &str) -> i128 {
    list.and_then(|list| list.get(name))
        .and_then(|quantity| quantity::parse(&quantity.0).ok())
        .unwrap_or_default()
}

/// Converts billionths to the units in which the resource is compared: millicores of CPU, whole
/// units of other resources.
pub fn counted(name: &str, billionths: i128) -> i64 {
    match name {
        "cpu" => millis(billionths),
        _ => units(billionths),
    }
}

/// Converts billionths to whole units, rounded up.
pub fn units(billionths: i128) -> i64 {
    rounded_up(billionths, NANOS)
}

/// Whether a resource claim gives a container an extended resource, so that no device plugin does.
pub fn is_claimed(pod: &Pod, container: &str, resource: &str) -> bool {
    let status = pod.status.as_ref();
    let claim = status.and_then(|status| status.extended_resource_claim_status.as_ref());
    let mut mappings = claim.into_iter().flat_map(|claim| &claim.request_mappings);
    mappings.any(|it| it.container_name == container && it.resource_name == resource)
}

/// Whether a resource is an extended one, such as that of a device plugin: Kubernetes does not define
/// it.
pub fn is_extended(name: &str) -> bool {
    let is_native = !name.contains('/') || name.contains("kubernetes.io/");
    // Quotas have its name with this prefix.
    let in_quotas = format!("requests.{name}");
    !is_native && !name.starts_with("requests.") && names::qualified_name(&in_quotas).is_ok()
}

/// Names of the extended resources in `requirements`, which device plugins provide.
pub fn extended_resources(requirements: &ResourceRequirements) -> impl Iterator<Item = &str> {
    let lists: [Option<&ResourceList>; 2] =
        [requirements.limits.as_ref(), requirements.requests.as_ref()];
    let mut names: Vec<&str> = lists
        .into_iter()
        .flatten()
        .flat_map(BTreeMap::keys)
        .map(String::as_str)
        .filter(|name| !matches!(*name, "cpu" | "memory" | "ephemeral-storage"))
        .filter(|name| !is_huge_pages(name))
        .collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter()
}

/// A quantity in whole units, rounded up; `None` if it does not parse.
pub fn quantity_units(quantity: &Quantity) -> Option<i64> {
    quantity::parse(&quantity.0).ok().map(units)
}

/// Converts billionths to thousandths, rounded up.
pub fn millis(billionths: i128) -> i64 {
    rounded_up(billionths, NANOS / 1000)
}

fn rounded_up(billionths: i128, unit: i128) -> i64 {
    let rounded = -(-billionths).div_euclid(unit);
    let range = i128::from(i64::MIN)..=i128::from(i64::MAX);
    i64::try_from(rounded.clamp(*range.start(), *range.end())).unwrap_or(i64::MAX)
}

fn add(total: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = total.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

fn raise(total: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let known = total.entry(name.clone()).or_insert(*amount);
        *known = (*known).max(*amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: serde_json::Value) -> PodSpec {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn init_containers_count_beside_the_sidecars_before_them() {
        let cpu = |name: &str, cpu: &str, sidecar: bool| {
            let mut container = serde_json::json!({
                "name": name, "resources": {"requests": {"cpu": cpu}}
            });
            if sidecar {
                container["restartPolicy"] = "Always".into();
            }
            container
        };
        for (init, expected) in [
            (vec![], 1_500),
            (vec![cpu("i", "1", false)], 1_500),
            (vec![cpu("i", "2", false)], 2_000),
            (vec![cpu("s", "1", true)], 2_500),
            (vec![cpu("s", "1", true), cpu("i", "2", false)], 3_000),
            (vec![cpu("i", "2", false), cpu("s", "1", true)], 2_500),
        ] {
            let spec = spec(serde_json::json!({
                "initContainers": init,
                "containers": [cpu("a", "1", false), cpu("b", "500m", false)],
            }));
            let total = of_pod(&spec, Side::Requests);
            assert_eq!(millis(total["cpu"]), expected, "{init:?}");
        }
    }

    #[test]
    fn a_pods_own_word_goes_before_its_containers() {
        let spec = spec(serde_json::json!({
            "resources": {"requests": {"cpu": "3", "x.y/z": "1"}},
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "1", "memory": "1Ki"}}}],
        }));
        let total = of_pod(&spec, Side::Requests);
        assert_eq!(millis(total["cpu"]), 3000);
        assert_eq!(units(total["memory"]), 1024);
        assert_eq!(total.get("x.y/z"), None);
    }

    #[test]
    fn parts_of_a_unit_are_rounded_up() {
        assert_eq!((units(1), units(NANOS), units(-1)), (1, 1, 0));
        assert_eq!((millis(1), millis(NANOS)), (1, 1000));
        assert_eq!(units(i128::MAX), i64::MAX);
    }

    #[test]
    fn extended_resources_have_a_domain_of_their_own() {
        for name in ["x.y/z", "nvidia.com/gpu", "a/b"] {
            assert!(is_extended(name), "{name}");
        }
        for name in [
            "",
            "cpu",
            "z",
            "x.y/",
            "/z",
            "x.y/z/z",
            "kubernetes.io/z",
            "a.kubernetes.io/z",
            "requests.x.y/z",
            "x_y/z",
        ] {
            assert!(!is_extended(name), "{name}");
        }
    }

    #[test]
    fn only_a_device_plugin_gives_extended_resources() {
        let requirements: ResourceRequirements = serde_json::from_value(serde_json::json!({
            "requests": {"cpu": "1", "x.y/z": "1"},
            "limits": {"memory": "1", "hugepages-2Mi": "2Mi", "ephemeral-storage": "1", "x.y/z": "1"}
        }))
        .unwrap();
        let names: Vec<&str> = extended_resources(&requirements).collect();
        assert_eq!(names, ["x.y/z"]);
    }
}
