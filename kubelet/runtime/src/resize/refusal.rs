//! Refusal of resizes.

/// Why a resize is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResizeRefusal {
    /// The node cannot grant it at present.
    Deferred(String),
    /// The node can never grant it.
    Infeasible(String),
}

impl ResizeRefusal {
    /// The reason of the pod's condition.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Deferred(_) => "Deferred",
            Self::Infeasible(_) => "Infeasible",
        }
    }

    /// Details for people.
    pub fn message(&self) -> &str {
        match self {
            Self::Deferred(why) | Self::Infeasible(why) => why,
        }
    }
}
