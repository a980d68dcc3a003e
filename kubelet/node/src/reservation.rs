//! Resources that are reserved from pods.

use std::collections::BTreeMap;

use kubelet_pod_spec::amount_or_share::AmountOrShare;

/// Resources that are reserved from pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reservation {
    /// By resource, in billionths: the system's and Kubernetes' reservations added up.
    pub amounts: BTreeMap<String, i128>,
    /// Hard eviction threshold of memory.
    pub memory: AmountOrShare,
    /// Hard eviction threshold of local storage.
    pub storage: AmountOrShare,
}

impl Reservation {
    /// The reserved amount of a resource with `capacity`, both in billionths.
    pub fn amount(&self, resource: &str, capacity: i128) -> i128 {
        let reserved = self.amounts.get(resource).copied().unwrap_or_default();
        reserved
            + match resource {
                "memory" => self.memory.of(capacity),
                "ephemeral-storage" => self.storage.of(capacity),
                _ => 0,
            }
    }
}
