//! The pods that run, told from the runtime alone.

use std::collections::{BTreeMap, HashMap};

use cri_proto::runtime::v1;
use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::labels;
use crate::{CriClient, CriError};

/// The pods with a ready sandbox or a running container.
///
/// # Errors
/// The runtime cannot be listed.
pub async fn running_pods(cri: &CriClient) -> Result<Vec<Pod>, CriError> {
    let (sandboxes, containers) =
        tokio::try_join!(cri.list_pod_sandboxes(), cri.list_containers())?;
    Ok(assemble(sandboxes, containers))
}

fn assemble(sandboxes: Vec<v1::PodSandbox>, containers: Vec<v1::Container>) -> Vec<Pod> {
    let mut pods: BTreeMap<String, Pod> = BTreeMap::new();
    let mut owners = HashMap::new();
    for sandbox in sandboxes {
        let ready = sandbox.state() == v1::PodSandboxState::SandboxReady;
        let metadata = sandbox.metadata.unwrap_or_default();
        if ready {
            pods.entry(metadata.uid.clone())
                .or_insert_with(|| pod(&metadata));
        }
        owners.insert(sandbox.id, metadata);
    }
    for container in containers {
        if container.state() != v1::ContainerState::ContainerRunning {
            continue;
        }
        let Some(metadata) = owners.get(&container.pod_sandbox_id) else {
            continue;
        };
        let pod = pods
            .entry(metadata.uid.clone())
            .or_insert_with(|| pod(metadata));
        let image = container.image.unwrap_or_default();
        let name = container.labels.get(labels::CONTAINER_NAME).cloned();
        pod.spec.get_or_insert_default().containers.push(Container {
            name: name.unwrap_or_else(|| container.metadata.unwrap_or_default().name),
            image: Some(if image.user_specified_image.is_empty() {
                image.image
            } else {
                image.user_specified_image
            }),
            ..Container::default()
        });
    }
    pods.into_values().collect()
}

fn pod(metadata: &v1::PodSandboxMetadata) -> Pod {
    Pod {
        metadata: ObjectMeta {
            name: Some(metadata.name.clone()),
            namespace: Some(metadata.namespace.clone()),
            uid: Some(metadata.uid.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec::default()),
        status: None,
    }
}
