//! Refusal of resizes.

/// Why a resize is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResizeRefusal {
    /// The node cannot grant it at present.
    Deferred(String),
    /// The node can never grant it.
    Infeasible {
        /// Details for people.
        message: String,
        /// The kind of limitation, for a metric.
        detail: &'static str,
    },
}

impl ResizeRefusal {
    /// The reason of the pod's condition.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Deferred(_) => "Deferred",
            Self::Infeasible { .. } => "Infeasible",
        }
    }

    /// Details for people.
    pub fn message(&self) -> &str {
        match self {
            Self::Deferred(message) | Self::Infeasible { message, .. } => message,
        }
    }
}
