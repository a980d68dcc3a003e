//! The target of a request path: a pod of this node and one of its running containers.

use std::sync::Arc;

use axum::{http::StatusCode, response::Response};
use cri_proto::runtime::v1::ContainerState;
use k8s_openapi::api::core::v1::Pod;
use kubelet_cri_client::{CriError, labels};
use kubelet_pod_spec::identity::PodUid;

use super::{NodeView, response::text};

/// The pod with this name.
///
/// # Errors
/// The response if this node has no such pod.
pub(super) fn pod<V: NodeView>(
    view: &V,
    namespace: &str,
    name: &str,
) -> Result<Arc<Pod>, Box<Response>> {
    view.pod(namespace, name)
        .ok_or_else(|| Box::new(text(StatusCode::NOT_FOUND, "pod does not exist".to_owned())))
}

/// Whether the path has a UID, and the pod has a different one.
pub(super) fn is_another(pod: &Pod, uid: Option<&str>) -> bool {
    uid.is_some_and(|uid| uid != PodUid::of(pod).as_str())
}

/// Whether the pod's spec gives the container a TTY.
pub(super) fn has_terminal(pod: &Pod, container: &str) -> bool {
    let Some(spec) = &pod.spec else {
        return false;
    };
    let main = spec.containers.iter();
    let mut all = main
        .chain(spec.init_containers.iter().flatten())
        .map(|container| (&container.name, container.tty))
        .chain(
            spec.ephemeral_containers
                .iter()
                .flatten()
                .map(|container| (&container.name, container.tty)),
        );
    all.any(|(name, tty)| name == container && tty == Some(true))
}

/// The CRI ID of a running container of the pod; `None` if there is none with this name.
///
/// # Errors
/// The runtime cannot be asked.
pub(super) async fn running_container<V: NodeView>(
    view: &V,
    pod: &Pod,
    container: &str,
) -> Result<Option<String>, CriError> {
    let containers = view.cri().list_containers_of(&PodUid::of(pod)).await?;
    let named = |labels: &std::collections::BTreeMap<String, String>| {
        labels
            .get(labels::CONTAINER_NAME)
            .is_some_and(|name| name == container)
    };
    Ok(containers
        .into_iter()
        .filter(|found| found.state() == ContainerState::ContainerRunning && named(&found.labels))
        .max_by_key(|found| found.created_at)
        .map(|found| found.id))
}
