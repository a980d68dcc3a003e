//! What a node lacks of a resource, in upstream's words.

use std::fmt;

/// More of a resource is asked for than is left of it: thousandths of CPUs, bytes, or
/// numbers of whatever else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The resource.
    pub resource: String,
    /// What is asked for.
    pub requested: i64,
    /// What others have.
    pub used: i64,
    /// What there is.
    pub capacity: i64,
}

impl Shortage {
    /// Whether, and by how much, there is too little.
    pub fn find(resource: &str, requested: i64, used: i64, capacity: i64) -> Option<Self> {
        (used.saturating_add(requested) > capacity).then(|| Self {
            resource: resource.to_owned(),
            requested,
            used,
            capacity,
        })
    }

    /// By how much there is too little.
    pub const fn missing(&self) -> i64 {
        let left = self.capacity.saturating_sub(self.used);
        self.requested.saturating_sub(left)
    }

    /// The reason of a pod that is rejected for it.
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
