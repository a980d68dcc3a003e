//! Metrics of the API.

use kubelet_metrics::{Counter, Exposition, Family};

/// The label values of the API's versions.
const V1: [&str; 1] = ["v1"];
const V1ALPHA1: [&str; 1] = ["v1alpha1"];

/// Requests and errors.
#[derive(Debug)]
pub(crate) struct Metrics {
    all: Family<Counter, 1>,
    list: Family<Counter, 1>,
    get: Family<Counter, 1>,
    get_errors: Family<Counter, 1>,
    get_allocatable: Family<Counter, 1>,
}

/// A method of version 1.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Method {
    List,
    Get,
    GetAllocatable,
}

impl Default for Metrics {
    fn default() -> Self {
        let counter = |name, help| Family::counter(name, help, ["server_api_version"]);
        Self {
            all: counter(
                "kubelet_pod_resources_endpoint_requests_total",
                "[ALPHA] Cumulative number of requests to the PodResource endpoint. Broken down by server \
                 api version.",
            ),
            list: counter(
                "kubelet_pod_resources_endpoint_requests_list",
                "[ALPHA] Number of requests to the PodResource List endpoint. Broken down by server api \
                 version.",
            ),
            get: counter(
                "kubelet_pod_resources_endpoint_requests_get",
                "[ALPHA] Number of requests to the PodResource Get endpoint. Broken down by server api \
                 version.",
            ),
            get_errors: counter(
                "kubelet_pod_resources_endpoint_errors_get",
                "[ALPHA] Number of requests to the PodResource Get endpoint which returned error. Broken \
                 down by server api version.",
            ),
            get_allocatable: counter(
                "kubelet_pod_resources_endpoint_requests_get_allocatable",
                "[ALPHA] Number of requests to the PodResource GetAllocatableResources endpoint. Broken \
                 down by server api version.",
            ),
        }
    }
}

impl Metrics {
    pub(crate) fn requested(&self, method: Method) {
        self.all.of(V1).increment();
        let counter = match method {
            Method::List => &self.list,
            Method::Get => &self.get,
            Method::GetAllocatable => &self.get_allocatable,
        };
        counter.of(V1).increment();
    }

    /// Counts a request of version v1alpha1, whose method has no counter of its own.
    pub(crate) fn requested_v1alpha1(&self) {
        self.all.of(V1ALPHA1).increment();
    }

    pub(crate) fn get_failed(&self) {
        self.get_errors.of(V1).increment();
    }

    pub(crate) fn collect(&self, page: &mut Exposition) {
        for counter in [
            &self.all,
            &self.list,
            &self.get,
            &self.get_errors,
            &self.get_allocatable,
        ] {
            counter.collect(page);
        }
    }
}
