//! Requests and limits of containers as text (`resourceFieldRef`).

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceFieldSelector, ResourceRequirements};

use crate::{
    quantity,
    resources::{self, ResourceList, Side, amount, millis, units},
};

/// Resources whose limit defaults to the node's allocatable amount.
const DEFAULTED: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// Why there is no value.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ResourceFieldError {
    /// The resource is not supported.
    #[error("unsupported container resource : {0}")]
    Unsupported(String),
    /// The pod has no container with this name.
    #[error("container {0} not found")]
    NoContainer(String),
}

/// The resource that `selector` selects, in units of its divisor, rounded up. The container is the
/// one that the selector names, or else `container`. Without a limit of its own, it has the pod's
/// limit, or else the node's `allocatable` amount.
///
/// # Errors
/// See [`ResourceFieldError`].
pub fn value(
    selector: &ResourceFieldSelector,
    spec: &PodSpec,
    container: &Container,
    allocatable: &ResourceList,
) -> Result<String, ResourceFieldError> {
    let (container, limited_by_node) = match selector.container_name.as_deref() {
        None | Some("") => (container, true),
        Some(name) => named(spec, name)?,
    };
    let unsupported = || ResourceFieldError::Unsupported(selector.resource.clone());
    let (side, name) = match selector.resource.split_once('.') {
        Some(("limits", name)) => (Side::Limits, name),
        Some(("requests", name)) => (Side::Requests, name),
        _ => return Err(unsupported()),
    };
    if !DEFAULTED.contains(&name) && !resources::is_huge_pages(name) {
        return Err(unsupported());
    }
    let nothing = ResourceRequirements::default();
    let own = container.resources.as_ref().unwrap_or(&nothing);
    let mut found = amount(side.of(own), name);
    if found == 0 && side == Side::Limits && limited_by_node && DEFAULTED.contains(&name) {
        found = limit_around(spec, name, allocatable);
    }
    let divisor = selector
        .divisor
        .as_ref()
        .and_then(|divisor| quantity::parse(&divisor.0).ok())
        .filter(|divisor| *divisor > 0)
        .unwrap_or(quantity::NANOS);
    let (found, divisor) = if name == "cpu" {
        (millis(found), millis(divisor))
    } else {
        (units(found), units(divisor))
    };
    let rounded_up = found / divisor + i64::from(found % divisor > 0);
    Ok(rounded_up.to_string())
}

/// The container with this name, and whether its limits default to the node's amounts.
fn named<'a>(spec: &'a PodSpec, name: &str) -> Result<(&'a Container, bool), ResourceFieldError> {
    let init = spec.init_containers.iter().flatten();
    let all = spec.containers.iter().map(|container| (container, true));
    all.chain(init.map(|container| (container, false)))
        .find(|(container, _)| container.name == name)
        .ok_or_else(|| ResourceFieldError::NoContainer(name.to_owned()))
}

/// The limit that applies to a container without one.
fn limit_around(spec: &PodSpec, name: &str, allocatable: &ResourceList) -> i128 {
    let of_pod = resources::pod_level(spec, Side::Limits);
    match of_pod.get(name) {
        Some(limit) if *limit != 0 && allocatable.contains_key(name) => *limit,
        _ => amount(Some(allocatable), name),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn selected(spec: &Value, selector: Value) -> Result<String, ResourceFieldError> {
        let spec: PodSpec = serde_json::from_value(spec.clone()).unwrap();
        let selector = serde_json::from_value(selector).unwrap();
        let allocatable: ResourceList =
            serde_json::from_value(json!({"cpu": "3500m", "memory": "8Gi"})).unwrap();
        value(&selector, &spec, &spec.containers[0], &allocatable)
    }

    #[test]
    fn values_are_rounded_up_to_the_divisor() {
        let spec = json!({"containers": [{"name": "c", "resources": {
            "requests": {"cpu": "250m", "memory": "1500Ki", "ephemeral-storage": "1Gi"},
            "limits": {"cpu": "1500m", "memory": "2Mi", "hugepages-2Mi": "4Mi"}
        }}]});
        for (resource, divisor, expected) in [
            ("requests.cpu", "0", "1"),
            ("requests.cpu", "1m", "250"),
            ("limits.cpu", "1", "2"),
            ("requests.memory", "1", "1536000"),
            ("requests.memory", "1Mi", "2"),
            ("limits.memory", "1Mi", "2"),
            ("requests.ephemeral-storage", "1Gi", "1"),
            ("limits.hugepages-2Mi", "1Mi", "4"),
            ("requests.hugepages-2Mi", "1", "0"),
        ] {
            let selector = json!({"resource": resource, "divisor": divisor});
            assert_eq!(
                selected(&spec, selector).as_deref(),
                Ok(expected),
                "{resource}"
            );
        }
    }

    #[test]
    fn what_is_not_limited_is_limited_by_pod_or_node() {
        let mut spec = json!({
            "containers": [{"name": "c"}, {"name": "d", "resources": {"limits": {"cpu": "1"}}}],
            "initContainers": [{"name": "i"}]
        });
        let of = |container: &str, resource: &str| json!({"containerName": container, "resource": resource, "divisor": "1m"});
        assert_eq!(
            selected(&spec, json!({"resource": "limits.cpu"})).unwrap(),
            "4"
        );
        assert_eq!(selected(&spec, of("c", "limits.cpu")).unwrap(), "3500");
        assert_eq!(selected(&spec, of("d", "limits.cpu")).unwrap(), "1000");
        assert_eq!(selected(&spec, of("i", "limits.cpu")).unwrap(), "0");
        assert_eq!(selected(&spec, of("c", "requests.cpu")).unwrap(), "0");
        spec["resources"] = json!({"limits": {"cpu": "2"}});
        assert_eq!(selected(&spec, of("c", "limits.cpu")).unwrap(), "2000");
        assert_eq!(
            selected(&spec, of("x", "limits.cpu"))
                .unwrap_err()
                .to_string(),
            "container x not found"
        );
        assert_eq!(
            selected(&spec, of("c", "limits.x.y/z"))
                .unwrap_err()
                .to_string(),
            "unsupported container resource : limits.x.y/z"
        );
    }
}
