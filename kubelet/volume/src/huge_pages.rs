//! Page sizes of `emptyDir` volumes in huge pages.

use k8s_openapi::{
    api::core::v1::{Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use kubelet_pod_spec::resources;

const RESOURCE: &str = "hugepages-";

/// The page size in bytes: the one that the medium names (`HugePages-2Mi`), or else the one that
/// the pod requests. In both cases the pod or a container must request such pages.
///
/// # Errors
/// A message for humans: the medium is unknown, no such pages are requested, or several sizes are
/// and the medium names none.
pub(super) fn page_size(medium: &str, pod: &Pod) -> Result<i64, String> {
    let wanted = match medium.strip_prefix("HugePages-") {
        Some(size) => {
            Some(bytes(size).ok_or_else(|| format!("unknown storage medium {medium:?}"))?)
        }
        None if medium == "HugePages" => None,
        None => return Err(format!("unknown storage medium {medium:?}")),
    };
    let mut requested = requested(pod);
    requested.sort_unstable();
    requested.dedup();
    match (wanted, requested.as_slice()) {
        (None, [size]) => Ok(*size),
        (None, [_, _, ..]) => Err(format!(
            "medium: {medium} can't be used if container requests multiple huge page sizes"
        )),
        (Some(size), sizes) if sizes.contains(&size) => Ok(size),
        _ => Err(format!(
            "medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
        )),
    }
}

/// The page sizes that a pod requests.
fn requested(pod: &Pod) -> Vec<i64> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let containers = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers);
    let of_containers = containers.filter_map(|container| container.resources.as_ref());
    let resources = spec.resources.iter().chain(of_containers);
    resources.flat_map(sizes).collect()
}

/// The page sizes in requests and limits: a limit without a request counts as a request.
fn sizes(resources: &ResourceRequirements) -> Vec<i64> {
    let lists = [&resources.requests, &resources.limits];
    let names = lists.into_iter().flatten().flat_map(|list| list.keys());
    names
        .filter_map(|name| bytes(name.strip_prefix(RESOURCE)?))
        .collect()
}

fn bytes(size: &str) -> Option<i64> {
    resources::quantity_units(&Quantity(size.to_owned())).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(sizes: &[&str]) -> Pod {
        let limits: serde_json::Map<_, _> = sizes
            .iter()
            .map(|size| (format!("hugepages-{size}"), "4Mi".into()))
            .collect();
        serde_json::from_value(serde_json::json!({
            "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}
        }))
        .unwrap()
    }

    #[test]
    fn pages_are_those_that_are_asked_for() {
        assert_eq!(page_size("HugePages", &pod(&["2Mi"])), Ok(2 << 20));
        assert_eq!(
            page_size("HugePages-1Gi", &pod(&["2Mi", "1Gi"])),
            Ok(1 << 30)
        );
        for (medium, sizes) in [
            ("HugePages", &["2Mi", "1Gi"][..]),
            ("HugePages", &[]),
            ("HugePages-1Gi", &["2Mi"]),
            ("HugePages-x", &["2Mi"]),
            ("HugePagesX", &["2Mi"]),
        ] {
            page_size(medium, &pod(sizes)).unwrap_err();
        }
    }
}
