//! The container runtime's part of the node status.

use std::{sync::Arc, time::Duration};

use cri_proto::runtime::v1::Image;
use k8s_openapi::api::core::v1::{
    ContainerImage, NodeFeatures, NodeRuntimeHandler, NodeRuntimeHandlerFeatures,
};
use kubelet_cri_client::{CriClient, readiness::RuntimeReadiness};
use tokio::time::{self, Instant};

/// Deadline of a runtime request for the status.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long an image list is cached, as upstream.
const IMAGES_PERIOD: Duration = Duration::from_secs(30);
/// Most names per image in the status, as upstream.
const MAX_NAMES: usize = 5;

/// The runtime's last answers.
#[derive(Debug)]
pub struct RuntimeState {
    cri: CriClient,
    readiness: Arc<RuntimeReadiness>,
    version: Option<String>,
    images: Option<(Instant, Vec<ContainerImage>)>,
}

impl RuntimeState {
    /// The state before the first request.
    pub fn new(cri: CriClient, readiness: Arc<RuntimeReadiness>) -> Self {
        Self {
            cri,
            readiness,
            version: None,
            images: None,
        }
    }

    /// Queries the runtime. Values of failed requests are kept.
    pub async fn refresh(&mut self) {
        let cri = self.cri.clone();
        self.readiness.ask().await;
        if let Ok(Ok(version)) = time::timeout(DEADLINE, cri.version()).await {
            self.version = Some(format!(
                "{}://{}",
                version.runtime_name, version.runtime_version
            ));
        }
        let is_due = self
            .images
            .as_ref()
            .is_none_or(|(at, _)| at.elapsed() >= IMAGES_PERIOD);
        if is_due && let Ok(Ok(images)) = time::timeout(DEADLINE, cri.list_images()).await {
            self.images = Some((Instant::now(), listed(images)));
        }
    }

    /// Why the runtime cannot run pods, in upstream's words; empty when it is ready.
    pub fn problems(&self) -> Vec<String> {
        self.readiness.problems()
    }

    /// Name and version, as `containerd://2.1.0`; `None` before the first answer.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// The runtime handlers, sorted by name.
    pub fn handlers(&self) -> Vec<NodeRuntimeHandler> {
        let handlers = self.readiness.handlers().into_iter();
        let handlers = handlers.map(|handler| {
            let features = handler.features.unwrap_or_default();
            NodeRuntimeHandler {
                name: Some(handler.name),
                features: Some(NodeRuntimeHandlerFeatures {
                    recursive_read_only_mounts: Some(features.recursive_read_only_mounts),
                    user_namespaces: Some(features.user_namespaces),
                }),
            }
        });
        let mut handlers: Vec<_> = handlers.collect();
        handlers.sort_by(|a, b| a.name.cmp(&b.name));
        handlers
    }

    /// Features that do not depend on the handler; `None` when the runtime reports none.
    pub fn features(&self) -> Option<NodeFeatures> {
        let features = self.readiness.features()?;
        Some(NodeFeatures {
            supplemental_groups_policy: Some(features.supplemental_groups_policy),
        })
    }

    /// The images, largest first; `None` before the first list.
    pub fn images(&self) -> Option<&[ContainerImage]> {
        self.images.as_ref().map(|(_, images)| images.as_slice())
    }
}

fn listed(mut images: Vec<Image>) -> Vec<ContainerImage> {
    images.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| b.id.cmp(&a.id)));
    images
        .into_iter()
        .map(|image| {
            let names = image.repo_digests.into_iter().chain(image.repo_tags);
            ContainerImage {
                names: Some(names.take(MAX_NAMES).collect()),
                size_bytes: Some(i64::try_from(image.size).unwrap_or(i64::MAX)),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_images_come_first_with_few_names() {
        let image = |id: &str, size, tags: usize| Image {
            id: id.to_owned(),
            size,
            repo_digests: vec![format!("{id}@sha256:0")],
            repo_tags: (0..tags).map(|tag| format!("{id}:{tag}")).collect(),
            ..Image::default()
        };
        let images = listed(vec![image("a", 1, 1), image("c", 9, 9), image("b", 9, 0)]);
        let names: Vec<_> = images
            .iter()
            .map(|image| image.names.as_ref().unwrap().len())
            .collect();
        assert_eq!(names, [5, 1, 2]);
        assert_eq!(images[0].names.as_ref().unwrap()[0], "c@sha256:0");
    }
}
