//! Why pods go on with what they have.

/// Why a pod is not granted what it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has to wait.
    Deferred(String),
    /// This node can never give it that.
    Infeasible(String),
}

impl Refusal {
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
