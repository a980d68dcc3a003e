//! The pod fields that container rules depend on.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Volume;

/// The fields of a pod that the rules of its containers depend on.
pub(super) struct PodContext<'a> {
    /// The pod's volumes by name.
    pub volumes: BTreeMap<&'a str, &'a Volume>,
    pub host_network: bool,
    /// Whether the pod has its own user namespace.
    pub user_namespace: bool,
    pub termination_grace_period: i64,
    /// Whether the containers run once, unless they have their own restart policy.
    pub never_restarts: bool,
    /// Whether the pod sets its operating system (`spec.os.name`).
    pub names_os: bool,
}
