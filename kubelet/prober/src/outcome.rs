//! What a probe found.

/// The result of one run of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The container passed.
    Success,
    /// The container passed, with a warning.
    Warning(String),
    /// The container failed, and why.
    Failure(String),
}
