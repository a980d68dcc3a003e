//! Rules of resource requests and limits.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::ResourceRequirements, apimachinery::pkg::api::resource::Quantity,
};

use super::{
    field::{Faults, Path},
    names,
};
use crate::config::quantity::{self, NANOS};

type ResourceList = BTreeMap<String, Quantity>;

pub(super) fn validate(requirements: &ResourceRequirements, path: &Path, faults: &mut Faults) {
    let empty = ResourceList::new();
    let limits = requirements.limits.as_ref().unwrap_or(&empty);
    let requests = requirements.requests.as_ref().unwrap_or(&empty);
    let limits = amounts(limits, &path.child("limits"), faults);
    let request_path = path.child("requests");
    for (name, request) in amounts(requests, &request_path, faults) {
        let Some(limit) = limits.get(name) else {
            if !may_overcommit(name) && requirements.limits.is_some() {
                faults.required(
                    &path.child("limits"),
                    "Limit must be set for non overcommitable resources",
                );
            }
            continue;
        };
        let text = |list: &ResourceList| list.get(name).map(|amount| amount.0.clone());
        let shown = text(requests).unwrap_or_default();
        let limit_shown = requirements
            .limits
            .as_ref()
            .and_then(text)
            .unwrap_or_default();
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
}

/// The amounts of a list, in billionths; those at fault are left out.
fn amounts<'a>(
    list: &'a ResourceList,
    path: &Path,
    faults: &mut Faults,
) -> BTreeMap<&'a str, i128> {
    let mut amounts = BTreeMap::new();
    for (name, Quantity(text)) in list {
        let path = path.key(name);
        faults.text(&path, name, resource_name);
        match quantity::parse(text) {
            Err(error) => faults.invalid(&path, text, error),
            Ok(amount) if amount < 0 => {
                faults.invalid(&path, text, "must be greater than or equal to 0");
            }
            Ok(amount) if !is_native(name) && amount % NANOS != 0 => {
                faults.invalid(&path, text, "must be an integer");
            }
            Ok(amount) => {
                amounts.insert(name.as_str(), amount);
            }
        }
    }
    amounts
}

fn resource_name(name: &str) -> names::Rule {
    names::qualified_name(name)?;
    if is_native(name) || name.contains('/') {
        Ok(())
    } else {
        Err("must be a standard resource type or fully qualified")
    }
}

/// A resource that Kubernetes itself knows.
fn is_native(name: &str) -> bool {
    may_overcommit(name) || name.starts_with("hugepages-")
}

/// A resource of which more may be promised than there is.
fn may_overcommit(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage")
}
