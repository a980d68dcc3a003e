//! Metrics of pod and container starts.

use k8s_openapi::api::core::v1::{Container, PodSpec};
use kubelet_metrics::{Collector, Counter, Exposition, Family};

use super::start_error::StartError;

/// How runtimes begin the message of a container creation that failed to mount an image.
const MOUNT_FAILED: &str = "ImageVolumeMountFailed";

/// The type of a started container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContainerType {
    Regular,
    Init,
    Ephemeral,
}

impl ContainerType {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Regular => "container",
            Self::Init => "init_container",
            Self::Ephemeral => "ephemeral_container",
        }
    }
}

/// Counters of pod and container starts and their errors.
#[derive(Debug)]
pub struct StartMetrics {
    pods: Family<Counter, 0>,
    pod_errors: Family<Counter, 0>,
    user_namespaced_pods: Family<Counter, 0>,
    user_namespaced_pod_errors: Family<Counter, 0>,
    containers: Family<Counter, 1>,
    container_errors: Family<Counter, 2>,
    image_volumes: Family<Counter, 0>,
    image_volumes_mounted: Family<Counter, 0>,
    image_volume_errors: Family<Counter, 0>,
}

impl Default for StartMetrics {
    fn default() -> Self {
        Self {
            pods: Family::counter(
                "kubelet_started_pods_total",
                "[ALPHA] Cumulative number of pods started",
                [],
            ),
            pod_errors: Family::counter(
                "kubelet_started_pods_errors_total",
                "[ALPHA] Cumulative number of errors when starting pods",
                [],
            ),
            user_namespaced_pods: Family::counter(
                "kubelet_started_user_namespaced_pods_total",
                "[ALPHA] Cumulative number of pods with user namespaces started. This metric will only be collected on Linux.",
                [],
            ),
            user_namespaced_pod_errors: Family::counter(
                "kubelet_started_user_namespaced_pods_errors_total",
                "[ALPHA] Cumulative number of errors when starting pods with user namespaces. This metric will only be collected on Linux.",
                [],
            ),
            containers: Family::counter(
                "kubelet_started_containers_total",
                "[ALPHA] Cumulative number of containers started",
                ["container_type"],
            ),
            container_errors: Family::counter(
                "kubelet_started_containers_errors_total",
                "[ALPHA] Cumulative number of errors when starting containers",
                ["container_type", "code"],
            ),
            image_volumes: Family::counter(
                "kubelet_image_volume_requested_total",
                "[BETA] Number of requested image volumes.",
                [],
            ),
            image_volumes_mounted: Family::counter(
                "kubelet_image_volume_mounted_succeed_total",
                "[BETA] Number of successful image volume mounts.",
                [],
            ),
            image_volume_errors: Family::counter(
                "kubelet_image_volume_mounted_errors_total",
                "[BETA] Number of failed image volume mounts.",
                [],
            ),
        }
    }
}

impl StartMetrics {
    /// Counts a pod start, before its sandbox is created.
    pub(super) fn pod(&self, spec: &PodSpec) {
        self.pods.of([]).increment();
        if spec.host_users == Some(false) {
            self.user_namespaced_pods.of([]).increment();
        }
    }

    /// Counts a failed pod start.
    pub(super) fn pod_failed(&self, spec: Option<&PodSpec>) {
        self.pod_errors.of([]).increment();
        if spec.is_some_and(|spec| spec.host_users == Some(false)) {
            self.user_namespaced_pod_errors.of([]).increment();
        }
    }

    /// Counts the image volumes of a pod at a container start, and the container's mounts of them.
    /// As upstream, any failure but that of a mount counts as a success of the mounts.
    pub(super) fn image_volumes(
        &self,
        spec: &PodSpec,
        container: &Container,
        failure: Option<&StartError>,
    ) {
        let volumes = spec.volumes.iter().flatten();
        let of_images: Vec<&str> = volumes
            .filter(|volume| volume.image.is_some())
            .map(|volume| volume.name.as_str())
            .collect();
        if of_images.is_empty() {
            return;
        }
        let mounts = container.volume_mounts.iter().flatten();
        let mounts = mounts.filter(|mount| of_images.contains(&mount.name.as_str()));
        let count = |number: usize| u64::try_from(number).unwrap_or_default();
        self.image_volumes.of([]).add(count(of_images.len()));
        let outcome = match failure {
            Some(StartError::Create(error)) if error.words().starts_with(MOUNT_FAILED) => {
                &self.image_volume_errors
            }
            _ => &self.image_volumes_mounted,
        };
        outcome.of([]).add(count(mounts.count()));
    }

    /// Counts a container start. `failure` is the waiting reason if it failed.
    pub(super) fn container(&self, kind: ContainerType, failure: Option<&'static str>) {
        let kind = kind.as_str();
        self.containers.of([kind]).increment();
        if let Some(code) = failure {
            self.container_errors.of([kind, code]).increment();
        }
    }
}

impl Collector for StartMetrics {
    fn collect(&self, page: &mut Exposition) {
        self.pods.collect(page);
        self.pod_errors.collect(page);
        self.user_namespaced_pods.collect(page);
        self.user_namespaced_pod_errors.collect(page);
        self.containers.collect(page);
        self.container_errors.collect(page);
        self.image_volumes.collect(page);
        self.image_volumes_mounted.collect(page);
        self.image_volume_errors.collect(page);
    }
}

#[cfg(test)]
mod tests {
    use kubelet_cri_client::CriError;
    use serde_json::json;

    use super::*;

    #[test]
    fn starts_are_counted_by_kind_and_failures_by_reason() {
        let metrics = StartMetrics::default();
        let spec = PodSpec {
            host_users: Some(false),
            ..PodSpec::default()
        };
        metrics.pod(&PodSpec::default());
        metrics.pod(&spec);
        metrics.pod_failed(Some(&spec));
        metrics.container(ContainerType::Init, None);
        metrics.container(ContainerType::Regular, Some("ErrImagePull"));
        let mut page = Exposition::default();
        metrics.collect(&mut page);
        let text = page.into_text();
        for line in [
            "kubelet_started_pods_total 2\n",
            "kubelet_started_pods_errors_total 1\n",
            "kubelet_started_user_namespaced_pods_total 1\n",
            "kubelet_started_user_namespaced_pods_errors_total 1\n",
            "kubelet_started_containers_total{container_type=\"container\"} 1\n",
            "kubelet_started_containers_total{container_type=\"init_container\"} 1\n",
            "kubelet_started_containers_errors_total{container_type=\"container\",code=\"ErrImagePull\"} 1\n",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }

    #[test]
    fn image_volumes_are_counted_by_the_outcome_of_their_mounts() {
        let metrics = StartMetrics::default();
        let spec = json!({
            "containers": [{"name": "c", "volumeMounts": [
                {"name": "i", "mountPath": "/i"},
                {"name": "e", "mountPath": "/e"},
            ]}],
            "volumes": [
                {"name": "i", "image": {"reference": "i"}},
                {"name": "unused", "image": {"reference": "u"}},
                {"name": "e", "emptyDir": {}},
            ],
        });
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        let created = |words: &str| {
            StartError::Create(CriError::Status {
                verb: "CreateContainer",
                object: String::new(),
                status: Box::new(tonic::Status::unknown(words)),
            })
        };
        let container = &spec.containers[0];
        metrics.image_volumes(&spec, container, None);
        let failure = created("ImageVolumeMountFailed: no layers");
        metrics.image_volumes(&spec, container, Some(&failure));
        let other = created("no space left");
        metrics.image_volumes(&spec, container, Some(&other));
        metrics.image_volumes(&PodSpec::default(), container, None);
        let mut page = Exposition::default();
        metrics.collect(&mut page);
        let text = page.into_text();
        for line in [
            "\nkubelet_image_volume_requested_total 6\n",
            "\nkubelet_image_volume_mounted_succeed_total 2\n",
            "\nkubelet_image_volume_mounted_errors_total 1\n",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
