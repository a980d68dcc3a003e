//! What other parts of the kubelet know about the node.

use tokio::sync::watch;

/// Of what the node has too little.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Memory.
    pub memory: bool,
    /// Room on disks.
    pub disk: bool,
    /// Process ids.
    pub pid: bool,
}

/// What other parts of the kubelet know about the node. Asked again for each status, so
/// each answer comes at once.
pub trait Findings: Send + Sync {
    /// Why pods are not run as they should, beside what the runtime says itself; none
    /// when they are.
    fn problems(&self) -> Vec<String>;

    /// Whether the node is being shut down. The cluster is told at once when that changes.
    fn shutting_down(&self) -> watch::Receiver<bool>;

    /// Of what the node has too little.
    fn pressure(&self) -> Pressure;

    /// The attachable volumes that pods use, by their unique names; `None` while nobody
    /// knows, which leaves what the object says.
    fn volumes_in_use(&self) -> Option<Vec<String>>;
}
