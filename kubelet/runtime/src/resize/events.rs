//! Events about resizes, in upstream's format.

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use kubelet_api_client::events::{Subject, reason};
use serde::Serialize;

use super::{ResizeRefusal, RuntimeManager};

/// The resources that a pod is resized to, in an event.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResizeSummary<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<ContainerResources<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<ContainerResources<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'a str,
}

#[derive(Serialize)]
struct ContainerResources<'a> {
    name: &'a str,
    resources: ResourceRequirements,
}

/// A change in the state of a resize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ResizeEvent {
    /// It was deferred or is infeasible.
    Refused(ResizeRefusal),
    /// It was granted.
    Started,
    /// It is complete.
    Completed,
    /// It failed, and will be retried.
    Failed(String),
}

impl RuntimeManager {
    /// Records an event about the resize of a pod to the resources in `pod`. `generation` is that
    /// of the pod spec that requested it.
    pub(super) fn record_resize_event(
        &self,
        pod: &Pod,
        generation: Option<i64>,
        event: &ResizeEvent,
    ) {
        let (reason, what, error) = match event {
            ResizeEvent::Refused(refusal) => {
                let reason = match refusal {
                    ResizeRefusal::Deferred(_) => reason::RESIZE_DEFERRED,
                    ResizeRefusal::Infeasible { .. } => reason::RESIZE_INFEASIBLE,
                };
                (reason, refusal.reason(), refusal.message())
            }
            ResizeEvent::Started => (reason::RESIZE_STARTED, "started", ""),
            ResizeEvent::Completed => (reason::RESIZE_COMPLETED, "completed", ""),
            ResizeEvent::Failed(why) => (reason::RESIZE_ERROR, "error", why.as_str()),
        };
        let summary = summary(pod, generation, error);
        let message = format_args!("Pod resize {what}: {summary}");
        let subject = Subject::Pod(pod);
        match event {
            ResizeEvent::Started | ResizeEvent::Completed => {
                self.events.normal(subject, reason, message)
            }
            ResizeEvent::Refused(_) | ResizeEvent::Failed(_) => {
                self.events.warning(subject, reason, message)
            }
        }
    }
}

fn summary(pod: &Pod, generation: Option<i64>, error: &str) -> String {
    fn resources(container: &Container) -> ContainerResources<'_> {
        ContainerResources {
            name: &container.name,
            resources: container.resources.clone().unwrap_or_default(),
        }
    }
    let spec = pod.spec.iter();
    let init = spec.clone().flat_map(|spec| &spec.init_containers);
    let summary = ResizeSummary {
        init_containers: init.flatten().map(resources).collect(),
        containers: spec
            .flat_map(|spec| &spec.containers)
            .map(resources)
            .collect(),
        generation: generation.unwrap_or_default(),
        error,
    };
    // Serialisation cannot fail: the values were deserialised from JSON.
    serde_json::to_string(&summary).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_resize_is_told_as_upstream_tells_it() {
        let pod = json!({"metadata": {}, "spec": {
            "initContainers": [{"name": "i"}],
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}],
        }});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(
            summary(&pod, Some(2), ""),
            r#"{"initContainers":[{"name":"i","resources":{}}],"containers":[{"name":"c","resources":{"requests":{"cpu":"100m"}}}],"generation":2}"#
        );
        let failed = summary(&Pod::default(), None, "no room");
        assert_eq!(failed, r#"{"generation":0,"error":"no room"}"#);
    }
}
