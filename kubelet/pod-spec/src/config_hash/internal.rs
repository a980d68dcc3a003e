//! The pod as upstream has it when it hashes it: with defaults, in the shape of the internal types.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value, json};

use super::quantity::GoQuantity;
use crate::{defaults, resources};

/// Fields of the spec that are fields of the security context in the internal type.
const OF_SECURITY_CONTEXT: [&str; 5] = [
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "shareProcessNamespace",
    "hostUsers",
];

/// Annotations of old API versions, which the conversion drops.
const DROPPED_ANNOTATIONS: [&str; 4] = [
    "pod.beta.kubernetes.io/init-containers",
    "pod.alpha.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-container-statuses",
    "pod.alpha.kubernetes.io/init-container-statuses",
];

type Quantities = BTreeMap<String, GoQuantity>;

/// Converts a pod, as it is written in a manifest, to the JSON of the internal type.
pub(super) fn internal(written: &Pod) -> serde_json::Result<Value> {
    let mut pod = written.clone();
    defaults::set_field_defaults(&mut pod);
    let mut pod = crate::json::to_value(&pod)?;
    let annotations = pod.pointer_mut("/metadata/annotations");
    if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
        for name in DROPPED_ANNOTATIONS {
            annotations.remove(name);
        }
    }
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        for name in OF_SECURITY_CONTEXT {
            if let Some(value) = spec.remove(name) {
                spec["securityContext"][name] = value;
            }
        }
        set_pod_resources(spec);
    }
    if let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) {
        set_pod_ips(status);
    }
    Ok(pod)
}

/// The first of the addresses is that of the older field.
fn set_pod_ips(status: &mut Map<String, Value>) {
    let Some(ip) = status.remove("podIP").filter(|ip| *ip != "") else {
        return;
    };
    let ips = status.get("podIPs").and_then(|ips| ips.get(0));
    if ips.is_none_or(|first| first["ip"] != ip) {
        status.insert("podIPs".to_owned(), json!([{"ip": ip}]));
    }
}

/// Sets the defaults of pod-level resources as the quantities that Go computes.
fn set_pod_resources(spec: &mut Map<String, Value>) {
    let Some(own) = spec.get("resources") else {
        return;
    };
    let mut limits = quantities(own.get("limits"));
    let requests = quantities(own.get("requests"));
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    let mut pages = of_containers(spec, "limits");
    pages.retain(|name, _| {
        let is_set = limits.contains_key(name) || requests.contains_key(name);
        resources::is_huge_pages(name) && !is_set
    });
    add_missing(spec, "limits", &pages);
    limits.extend(pages);
    if limits.is_empty() {
        return;
    }
    let mut more = of_containers(spec, "requests");
    more.retain(|name, _| matches!(name.as_str(), "cpu" | "memory"));
    for (name, limit) in limits {
        if resources::is_pod_level(&name) {
            more.entry(name).or_insert(limit);
        }
    }
    add_missing(spec, "requests", &more);
}

fn add_missing(spec: &mut Map<String, Value>, side: &str, more: &Quantities) {
    if more.is_empty() {
        return;
    }
    let list = &mut spec["resources"][side];
    for (name, quantity) in more {
        if list.get(name).is_none() {
            let quantity = quantity.clone().rounded();
            list[name] = quantity.map_or(Value::Null, |quantity| quantity.to_value());
        }
    }
}

/// As [`resources::of_containers`], in Go's representation.
fn of_containers(spec: &Map<String, Value>, side: &str) -> Quantities {
    let of_container = |container: &Value| quantities(container["resources"].get(side));
    let containers = |kind: &str| {
        spec.get(kind)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    };
    let mut total = Quantities::new();
    for container in containers("containers") {
        add(&mut total, of_container(container));
    }
    let mut sidecars = Quantities::new();
    let mut least = Quantities::new();
    for container in containers("initContainers") {
        let mut own = of_container(container);
        if container["restartPolicy"] == "Always" {
            add(&mut total, own.clone());
            add(&mut sidecars, own);
            own = sidecars.clone();
        } else {
            add(&mut own, sidecars.clone());
        }
        raise(&mut least, own);
    }
    raise(&mut total, least);
    total
}

fn quantities(list: Option<&Value>) -> Quantities {
    let list = list.and_then(Value::as_object).into_iter().flatten();
    list.filter_map(|(name, text)| Some((name.clone(), GoQuantity::parse(text.as_str()?)?)))
        .collect()
}

fn add(total: &mut Quantities, more: Quantities) {
    for (name, quantity) in more {
        let sum = match total.remove(&name) {
            Some(before) => before.clone().plus(&quantity).unwrap_or(before),
            None => quantity,
        };
        total.insert(name, sum);
    }
}

fn raise(total: &mut Quantities, least: Quantities) {
    for (name, quantity) in least {
        let most = match total.remove(&name) {
            Some(before) => quantity.max(before),
            None => quantity,
        };
        total.insert(name, most);
    }
}
