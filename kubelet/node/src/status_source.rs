//! What other parts of the kubelet know about the node.

use tokio::sync::watch;

use crate::capacity::Quantities;

/// The resources under pressure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Memory.
    pub memory: bool,
    /// Disk space.
    pub disk: bool,
    /// Process IDs.
    pub pid: bool,
}

/// Resources that device plugins offer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceResources {
    /// All devices, by resource.
    pub capacity: Quantities,
    /// Those that pods can have.
    pub allocatable: Quantities,
}

/// Supplies the parts of the node's status that other parts of the kubelet know. It is called for
/// each status, so the methods must not block.
pub trait NodeStatusSource: Send + Sync {
    /// Why the node is not ready, apart from what the runtime reports; empty when it is.
    fn problems(&self) -> Vec<String>;

    /// Whether the node is shutting down. A change is reported to the cluster at once.
    fn shutting_down(&self) -> watch::Receiver<bool>;

    /// The resources under pressure.
    fn pressure(&self) -> Pressure;

    /// The resources that device plugins offer.
    fn devices(&self) -> DeviceResources;

    /// Whether this machine is new or reinstalled: the extended resources of an older node object are
    /// those of another machine.
    fn is_new_machine(&self) -> bool;

    /// The node object is this machine's.
    fn registered(&self);

    /// Unique names of the attachable volumes in use (`volumesInUse`). `None` while unknown; the
    /// node object's value is then kept.
    fn volumes_in_use(&self) -> Option<Vec<String>>;
}
