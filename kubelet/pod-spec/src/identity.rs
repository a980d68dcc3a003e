//! What tells pods apart, and static pods from the API server's.

use std::{fmt, sync::Arc};

use k8s_openapi::api::core::v1::Pod;

use crate::names;

/// Annotation: where the pod was read from (`file`, `http`, `api`).
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Annotation: hash of the manifest of a static pod; equals its first UID.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// Annotation: when the kubelet first saw the pod, RFC 3339.
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
/// Annotation: on mirror pods, the hash of the static pod that they mirror.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// UID of a pod. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodUid(Arc<str>);

impl PodUid {
    /// The UID of `pod`; empty when it has none.
    pub fn of(pod: &Pod) -> Self {
        Self::from(pod.metadata.uid.as_deref().unwrap_or_default())
    }

    /// The UID that a runtime tells; none where it cannot name a directory, which
    /// a UID of a pod always can: files of pods are removed by it.
    pub fn told(uid: &str) -> Option<Self> {
        let is_name = !uid.is_empty() && names::path_segment(uid).is_ok();
        is_name.then(|| Self::from(uid))
    }

    /// The UID as it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for PodUid {
    fn from(uid: &str) -> Self {
        Self(Arc::from(uid))
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `name_namespace`: unique among the pods that may run at the same time.
pub fn full_name(pod: &Pod) -> String {
    format!("{}_{}", name(pod), namespace(pod))
}

/// `name_namespace(uid)`, as upstream's messages name a pod.
pub fn name_with_uid(pod: &Pod) -> String {
    format!("{}({})", full_name(pod), PodUid::of(pod))
}

/// The pod's name; empty when it has none.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// The pod's namespace; empty when it has none.
pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// The value of an annotation.
pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata
        .annotations
        .as_ref()?
        .get(key)
        .map(String::as_str)
}

/// Whether the pod comes from a file or URL rather than the API server.
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, CONFIG_SOURCE).is_some_and(|source| source != "api")
}

/// Whether the pod stands for a static pod at the API server, and is not run itself.
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, CONFIG_MIRROR).is_some()
}

/// Whether `mirror` stands for `pod` as it is now.
pub fn is_mirror_of(mirror: &Pod, pod: &Pod) -> bool {
    let mirrored = annotation(mirror, CONFIG_MIRROR);
    mirrored.is_some() && mirrored == annotation(pod, CONFIG_HASH)
}

/// Whether the pod has a container of this name, of whatever kind.
pub fn has_container(pod: &Pod, container: &str) -> bool {
    let Some(spec) = &pod.spec else {
        return false;
    };
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    spec.containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .map(|container| container.name.as_str())
        .chain(ephemeral.map(|container| container.name.as_str()))
        .any(|name| name == container)
}
