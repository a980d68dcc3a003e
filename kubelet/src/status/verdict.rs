//! What is said of a pod that is ended for a reason of the node's own.

use kubelet_pod_spec::phase::Phase;

/// The end of a pod that was decided on and does not follow from its containers:
/// its deadline passed, or the node needs what it uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The phase that it ends in, whatever its containers say.
    pub phase: Phase,
    /// One word, such as `DeadlineExceeded` or `Evicted`.
    pub reason: String,
    /// Details for people.
    pub message: String,
    /// What the condition `DisruptionTarget` says, where the pod ends for the sake of
    /// the node or of others.
    pub disruption: Option<String>,
}
