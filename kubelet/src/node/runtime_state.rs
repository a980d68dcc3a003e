//! What the container runtime says of itself, as far as the node's status has it.

use std::time::Duration;

use cri_proto::runtime::v1::{Image, RuntimeCondition, StatusResponse};
use k8s_openapi::api::core::v1::{
    ContainerImage, NodeFeatures, NodeRuntimeHandler, NodeRuntimeHandlerFeatures,
};
use tokio::time::{self, Instant};
use tracing::debug;

use crate::runtime::cri::CriClient;

/// Without an answer for so long the runtime is down, as upstream.
const DOWN_AFTER: Duration = Duration::from_secs(30);
/// How long a status may wait for the runtime.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long a list of images is good, as upstream.
const IMAGES_PERIOD: Duration = Duration::from_secs(30);
/// Names of one image in the status, as upstream.
const MAX_NAMES: usize = 5;

/// What the runtime said last.
#[derive(Debug)]
pub struct RuntimeState {
    cri: CriClient,
    answered: Option<Instant>,
    runtime_problem: Option<String>,
    network_problem: Option<String>,
    version: Option<String>,
    handlers: Vec<NodeRuntimeHandler>,
    features: Option<NodeFeatures>,
    images: Option<(Instant, Vec<ContainerImage>)>,
}

impl RuntimeState {
    /// Of a runtime that was not asked yet.
    pub fn new(cri: CriClient) -> Self {
        Self {
            cri,
            answered: None,
            runtime_problem: None,
            network_problem: Some("network state unknown".to_owned()),
            version: None,
            handlers: Vec::new(),
            features: None,
            images: None,
        }
    }

    /// Asks the runtime again. What it does not answer stays as it was.
    pub async fn refresh(&mut self) {
        let cri = self.cri.clone();
        match time::timeout(DEADLINE, cri.status()).await {
            Ok(Ok(status)) => self.take(status),
            Ok(Err(error)) => debug!(%error, "The runtime does not say how it is"),
            Err(_) => debug!("The runtime does not say how it is in time"),
        }
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

    fn take(&mut self, status: StatusResponse) {
        let conditions = status.status.map(|status| status.conditions);
        let conditions = conditions.unwrap_or_default();
        let problem = |kind: &str| {
            let condition = conditions.iter().find(|condition| condition.r#type == kind);
            match condition {
                Some(condition) if condition.status => None,
                Some(condition) => Some(described(condition)),
                None => Some("<nil>".to_owned()),
            }
        };
        self.network_problem = problem("NetworkReady")
            .map(|problem| format!("container runtime network not ready: {problem}"));
        self.runtime_problem = problem("RuntimeReady")
            .map(|problem| format!("container runtime not ready: {problem}"));
        if self.runtime_problem.is_some() {
            return;
        }
        self.answered = Some(Instant::now());
        self.handlers = status
            .runtime_handlers
            .into_iter()
            .map(|handler| {
                let features = handler.features.unwrap_or_default();
                NodeRuntimeHandler {
                    name: Some(handler.name),
                    features: Some(NodeRuntimeHandlerFeatures {
                        recursive_read_only_mounts: Some(features.recursive_read_only_mounts),
                        user_namespaces: Some(features.user_namespaces),
                    }),
                }
            })
            .collect();
        self.handlers.sort_by(|a, b| a.name.cmp(&b.name));
        self.features = status.features.map(|features| NodeFeatures {
            supplemental_groups_policy: Some(features.supplemental_groups_policy),
        });
    }

    /// Why pods cannot be run, in upstream's words; none when they can.
    pub fn problems(&self) -> Vec<String> {
        let reachable = match self.answered {
            None => Some("container runtime status check may not have completed yet"),
            Some(at) if at.elapsed() >= DOWN_AFTER => Some("container runtime is down"),
            Some(_) => None,
        };
        reachable
            .map(str::to_owned)
            .into_iter()
            .chain(self.runtime_problem.clone())
            .chain(self.network_problem.clone())
            .collect()
    }

    /// Name and version, as `containerd://2.1.0`; `None` before the first answer.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// Its handlers, by name.
    pub fn handlers(&self) -> &[NodeRuntimeHandler] {
        &self.handlers
    }

    /// What it can do whatever the handler; `None` when it does not say.
    pub fn features(&self) -> Option<&NodeFeatures> {
        self.features.as_ref()
    }

    /// The images, the largest first; `None` before the first list.
    pub fn images(&self) -> Option<&[ContainerImage]> {
        self.images.as_ref().map(|(_, images)| images.as_slice())
    }
}

fn described(condition: &RuntimeCondition) -> String {
    format!(
        "{}={} reason:{} message:{}",
        condition.r#type, condition.status, condition.reason, condition.message
    )
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
