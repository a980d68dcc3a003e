//! The kubelet's decision to end a pod.

/// The outcome of a pod that the kubelet decided to end, rather than its containers: its deadline
/// passed, or the node needs its resources. It fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the pod fails even if all its containers exit with 0. Otherwise it succeeds then, as
    /// upstream, without reason and message.
    pub always_fails: bool,
    /// The reason, such as `DeadlineExceeded` or `Evicted`.
    pub reason: String,
    /// The message.
    pub message: String,
    /// Message of the condition `DisruptionTarget`, if the pod is disrupted for the node or for
    /// other pods.
    pub disruption: Option<String>,
}
