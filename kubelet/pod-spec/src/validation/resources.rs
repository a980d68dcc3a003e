//! Rules of resource requests and limits.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};

use crate::{
    field::{Faults, Path},
    names,
    quantity::{self, NANOS},
    resources::{self, ResourceList, Side, is_huge_pages},
};

/// The owner of the resources.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Container,
    Pod,
}

pub(super) fn validate(requirements: &ResourceRequirements, path: &Path, faults: &mut Faults) {
    validate_of(Owner::Container, requirements, path, faults);
}

/// Validates the overhead of a pod.
pub(super) fn validate_overhead(overhead: &ResourceList, path: &Path, faults: &mut Faults) {
    let requirements = ResourceRequirements {
        limits: Some(overhead.clone()),
        ..ResourceRequirements::default()
    };
    validate(&requirements, path, faults);
}

/// Validates pod-level resources, which must cover those of the containers.
pub(super) fn validate_pod(
    spec: &PodSpec,
    requirements: &ResourceRequirements,
    path: &Path,
    faults: &mut Faults,
) {
    if requirements.claims.is_some() {
        faults.forbidden(
            &path.child("claims"),
            "claims may not be set for Resources at pod-level",
        );
    }
    validate_of(Owner::Pod, requirements, path, faults);
    for (field, side, what) in [
        ("requests", Side::Requests, "requests"),
        ("limits", Side::Limits, "limits"),
    ] {
        let own = side.of(requirements);
        for (name, total) in resources::of_containers(spec, side) {
            let Some(shown) = own.and_then(|own| own.get(&name)) else {
                continue;
            };
            // The sum of the containers' limits may exceed the pod's limit, except for resources
            // that cannot be overcommitted.
            let counts = side == Side::Requests || is_huge_pages(&name);
            if counts && total > resources::amount(own, &name) {
                let total = quantity::format(&name, total);
                faults.invalid(
                    &path.child(field).key(&name),
                    &shown.0,
                    format_args!(
                        "must be greater than or equal to aggregate container {what} of {total}"
                    ),
                );
            }
        }
    }
    let limits = requirements.limits.as_ref();
    for (index, container) in spec.containers.iter().enumerate() {
        let own = container.resources.as_ref();
        for (name, limit) in own.iter().flat_map(|own| own.limits.iter().flatten()) {
            let Some(shown) = limits.and_then(|limits| limits.get(name)) else {
                continue;
            };
            let amount = quantity::parse(&limit.0).unwrap_or_default();
            if amount > resources::amount(limits, name) {
                faults.invalid(
                    &path
                        .child("containers")
                        .index(index)
                        .key(name)
                        .child("limits"),
                    &limit.0,
                    format_args!("must be less than or equal to pod limits of {}", shown.0),
                );
            }
        }
    }
}

fn validate_of(
    owner: Owner,
    requirements: &ResourceRequirements,
    path: &Path,
    faults: &mut Faults,
) {
    let empty = ResourceList::new();
    let limit_list = requirements.limits.as_ref().unwrap_or(&empty);
    let request_list = requirements.requests.as_ref().unwrap_or(&empty);
    let limits = amounts(owner, limit_list, &path.child("limits"), faults);
    let request_path = path.child("requests");
    for (name, request) in amounts(owner, request_list, &request_path, faults) {
        let Some(limit) = limits.get(name) else {
            if !may_overcommit(name) && !limit_list.contains_key(name) {
                faults.required(
                    &path.child("limits"),
                    "Limit must be set for non overcommitable resources",
                );
            }
            continue;
        };
        let text = |list: &ResourceList| list.get(name).map(|amount| amount.0.clone());
        let shown = text(request_list).unwrap_or_default();
        let limit_shown = text(limit_list).unwrap_or_default();
        if !may_overcommit(name) && request != *limit {
            faults.invalid(
                &request_path,
                shown,
                format_args!("must be equal to {name} limit of {limit_shown}"),
            );
        } else if request > *limit {
            faults.invalid(
                &request_path,
                shown,
                format_args!("must be less than or equal to {name} limit of {limit_shown}"),
            );
        }
    }
    let mut names = limit_list.keys().chain(request_list.keys());
    let has_compute = names
        .clone()
        .any(|name| matches!(&**name, "cpu" | "memory"));
    if !has_compute && names.any(|name| is_huge_pages(name)) {
        faults.forbidden(path, "HugePages require cpu or memory");
    }
}

/// The amounts of a list in billionths; invalid ones are reported and left out.
fn amounts<'a>(
    owner: Owner,
    list: &'a ResourceList,
    path: &Path,
    faults: &mut Faults,
) -> BTreeMap<&'a str, i128> {
    let mut amounts = BTreeMap::new();
    for (name, quantity) in list {
        let path = path.key(name);
        let text = &quantity.0;
        match owner {
            Owner::Container => faults.text(&path, name, container_resource),
            Owner::Pod => pod_resource(name, &path, faults),
        }
        match quantity::parse(text) {
            Err(error) => faults.invalid(&path, text, error),
            Ok(amount) if amount < 0 => {
                faults.invalid(&path, text, "must be greater than or equal to 0");
            }
            Ok(amount) if !is_native(name) && amount % NANOS != 0 => {
                faults.invalid(&path, text, "must be an integer");
            }
            Ok(amount) if !is_whole_pages(name, amount) => {
                faults.invalid(
                    &path,
                    text,
                    format_args!("{text} is not positive integer multiple of {name}"),
                );
            }
            Ok(amount) => {
                amounts.insert(name.as_str(), amount);
            }
        }
    }
    amounts
}

fn container_resource(name: &str) -> names::Rule {
    names::qualified_name(name)?;
    if is_native(name) {
        Ok(())
    } else if !name.contains('/') {
        Err("must be a standard resource type or fully qualified")
    } else if name.starts_with("requests.") {
        Err("doesn't follow extended resource name standard")
    } else {
        Ok(())
    }
}

fn pod_resource(name: &str, path: &Path, faults: &mut Faults) {
    if let Err(rule) = names::qualified_name(name) {
        faults.invalid(path, name, rule);
    } else if !resources::is_pod_level(name) {
        faults.one_of(path, name, &["cpu", "hugepages-", "memory"]);
    }
}

/// Whether an amount of huge pages is a multiple of the page size.
fn is_whole_pages(name: &str, amount: i128) -> bool {
    let Some(size) = name.strip_prefix("hugepages-") else {
        return true;
    };
    // An invalid page size is an error even if the amount is zero.
    quantity::parse(size).is_ok_and(|size| size > 0 && amount % size == 0)
}

/// Whether Kubernetes itself defines the resource.
fn is_native(name: &str) -> bool {
    may_overcommit(name) || is_huge_pages(name)
}

/// Whether the resource can be overcommitted.
fn may_overcommit(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage")
}
