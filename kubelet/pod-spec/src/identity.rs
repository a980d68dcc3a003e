//! Identity of pods, and the distinction of static and mirror pods.

use std::{fmt, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use tracing::{Span, info_span};

use crate::names;

/// Annotation: the pod's source (`file`, `http`, `api`).
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Annotation: hash of a static pod's manifest; equal to its first UID.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// Annotation: time when the kubelet first saw the pod, in RFC 3339 format.
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
/// Annotation on mirror pods: the hash of the static pod that they mirror.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// UID of a pod. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodUid(Arc<str>);

impl PodUid {
    /// The UID of `pod`; empty if it has none.
    pub fn of(pod: &Pod) -> Self {
        Self::from(pod.metadata.uid.as_deref().unwrap_or_default())
    }

    /// A UID that the runtime reports; `None` if it is not a valid directory name. A pod's files
    /// are removed by its UID, so a UID must always be one.
    pub fn parse(uid: &str) -> Option<Self> {
        let is_name = !uid.is_empty() && names::path_segment(uid).is_ok();
        is_name.then(|| Self::from(uid))
    }

    /// The UID as a string.
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

/// The span of work for one pod: its log lines name the pod.
pub fn span(full_name: &str, uid: &PodUid) -> Span {
    info_span!("pod", pod = full_name, pod_uid = %uid)
}

/// `name_namespace`, which is unique among the pods that may run at the same time.
pub fn full_name(pod: &Pod) -> String {
    format!("{}_{}", name(pod), namespace(pod))
}

/// `name_namespace(uid)`, as in upstream's messages.
pub fn name_with_uid(pod: &Pod) -> String {
    format!("{}({})", full_name(pod), PodUid::of(pod))
}

/// The pod's name; empty if it has none.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// The pod's namespace; empty if it has none.
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

/// Whether the pod is a mirror pod: it represents a static pod at the API server and is not run
/// itself.
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, CONFIG_MIRROR).is_some()
}

/// Whether `mirror` represents the current version of `pod`.
pub fn is_mirror_of(mirror: &Pod, pod: &Pod) -> bool {
    let mirrored = annotation(mirror, CONFIG_MIRROR);
    mirrored.is_some() && mirrored == annotation(pod, CONFIG_HASH)
}

/// Whether the pod has a regular, init or ephemeral container with this name.
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
