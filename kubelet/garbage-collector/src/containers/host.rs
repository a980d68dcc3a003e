//! What container garbage collection needs of the rest of the kubelet.

use kubelet_pod_spec::identity::PodUid;

/// The states of pods.
pub trait PodStates: Send + Sync {
    /// Whether all sources of pods were read. Before, a pod that is not known may exist.
    fn all_sources_ready(&self) -> bool;

    /// Whether the runtime may have dead containers or sandboxes. Otherwise, it is not asked.
    fn may_have_dead(&self) -> bool;

    /// Whether nothing of the pod is needed any more: it is not known, was evicted, or was deleted
    /// and has ended (upstream: `ShouldPodContentBeRemoved`).
    fn is_removable(&self, uid: &PodUid) -> bool;

    /// Whether the pod no longer runs and will not run again: it is not known, or has ended
    /// (upstream: `ShouldPodRuntimeBeRemoved`).
    fn is_ended(&self, uid: &PodUid) -> bool;
}
