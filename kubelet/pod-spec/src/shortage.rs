//! Shortage of a resource on the node, in upstream's words.

use std::fmt;

/// A request that exceeds what is left of a resource. Units are millicores of CPU, bytes, or the
/// number of other resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The name of the resource.
    pub resource: String,
    /// The requested amount.
    pub requested: i64,
    /// The amount that is already in use.
    pub used: i64,
    /// The total amount.
    pub capacity: i64,
}

impl Shortage {
    /// Checks whether the request exceeds what is left.
    pub fn find(resource: &str, requested: i64, used: i64, capacity: i64) -> Option<Self> {
        (used.saturating_add(requested) > capacity).then(|| Self {
            resource: resource.to_owned(),
            requested,
            used,
            capacity,
        })
    }

    /// The missing amount.
    pub const fn missing(&self) -> i64 {
        let left = self.capacity.saturating_sub(self.used);
        self.requested.saturating_sub(left)
    }

    /// The reason in the status of a pod that is rejected for this shortage.
    pub fn reason(&self) -> String {
        format!("OutOf{}", self.resource)
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            resource,
            requested,
            used,
            capacity,
        } = self;
        write!(
            f,
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, \
             capacity: {capacity}"
        )
    }
}
