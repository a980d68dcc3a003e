//! Rejections of pods.

/// Why a pod is not run: the reason and message of its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// A machine-readable word, such as `OutOfcpu`.
    pub reason: String,
    /// A human-readable explanation.
    pub message: String,
}

impl Rejection {
    pub(crate) fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// A rejection by a rule that the scheduler applies too.
    pub(crate) fn predicate(name: &str, what: &str) -> Self {
        Self::new(name, format!("Predicate {name} failed: {what}"))
    }
}
