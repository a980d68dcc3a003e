//! Huge page limits.

use cri_proto::runtime::v1::HugepageLimit;
use k8s_openapi::api::core::v1::ResourceRequirements;
use kubelet_pod_spec::{
    huge_pages::{page_size, size_name},
    resources::{Amounts, amounts, units},
};

/// One limit for each huge page size of the machine: the container's limit, else the pod's, else
/// zero.
pub(super) fn limits(
    own: &ResourceRequirements,
    of_pod: &Amounts,
    sizes: &[u64],
) -> Vec<HugepageLimit> {
    let mut asked = of_pod.clone();
    asked.extend(own.limits.as_ref().map(amounts).unwrap_or_default());
    sizes
        .iter()
        .map(|size| {
            let found = asked
                .iter()
                .find(|(name, _)| page_size(name) == Some(*size));
            let limit = found.map_or(0, |(_, amount)| units(*amount));
            HugepageLimit {
                page_size: size_name(*size),
                limit: u64::try_from(limit).unwrap_or_default(),
            }
        })
        .collect()
}
