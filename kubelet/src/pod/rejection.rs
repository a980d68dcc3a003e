//! Why a pod is not run.

/// Why a pod is not run: reason and message of its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// One word.
    pub reason: String,
    /// Details for people.
    pub message: String,
}

impl Rejection {
    pub(crate) fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// One of the rules that are the scheduler's too.
    pub(crate) fn predicate(name: &str, what: &str) -> Self {
        Self::new(name, format!("Predicate {name} failed: {what}"))
    }
}
