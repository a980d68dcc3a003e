//! The kubelet's decision to end a pod.

use kubelet_pod_spec::phase::Phase;

/// The outcome of a pod that the kubelet decided to end, rather than its containers: its deadline
/// passed, or the node needs its resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The final phase, whatever the containers' exit codes.
    pub phase: Phase,
    /// The reason, such as `DeadlineExceeded` or `Evicted`.
    pub reason: String,
    /// The message.
    pub message: String,
    /// Message of the condition `DisruptionTarget`, if the pod is disrupted for the node or for
    /// other pods.
    pub disruption: Option<String>,
}
