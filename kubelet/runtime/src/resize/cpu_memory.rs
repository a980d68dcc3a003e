//! CPU and memory of containers and pods.

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use kubelet_pod_spec::resources::{Side, amount, millis, units};

use crate::resources;

/// Requests and limits, in millicores and bytes; zero if there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CpuMemory {
    pub(super) cpu_request: i64,
    pub(super) cpu_limit: i64,
    pub(super) memory_request: i64,
    pub(super) memory_limit: i64,
}

impl CpuMemory {
    /// The effective resources of a container of the pod.
    pub(super) fn of_container(container: &Container, spec: &PodSpec) -> Self {
        Self::of(Some(&resources::effective(
            container.resources.as_ref(),
            spec,
        )))
    }

    /// The resources in `resources`.
    pub(super) fn of(resources: Option<&ResourceRequirements>) -> Self {
        let of = |side: Side, name| amount(resources.and_then(|own| side.of(own)), name);
        Self {
            cpu_request: millis(of(Side::Requests, "cpu")),
            cpu_limit: millis(of(Side::Limits, "cpu")),
            memory_request: units(of(Side::Requests, "memory")),
            memory_limit: units(of(Side::Limits, "memory")),
        }
    }
}
