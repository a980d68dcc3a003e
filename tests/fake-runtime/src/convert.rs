//! Conversion of sandboxes and containers to CRI messages, and the filters of CRI.

use std::collections::BTreeMap;

use cri_proto::runtime::v1 as cri;

use super::objects::{Container, Sandbox};

pub(super) fn sandbox_status(sandbox: &Sandbox) -> cri::PodSandboxStatus {
    cri::PodSandboxStatus {
        id: sandbox.id.clone(),
        metadata: sandbox.config.metadata.clone(),
        state: sandbox.state.into(),
        created_at: sandbox.created_at,
        network: Some(cri::PodSandboxNetworkStatus {
            ip: sandbox.ip.clone(),
            additional_ips: second_ip(sandbox),
        }),
        linux: Some(cri::LinuxPodSandboxStatus {
            namespaces: Some(cri::Namespace {
                options: sandbox
                    .config
                    .linux
                    .as_ref()
                    .and_then(|l| l.security_context.as_ref())
                    .and_then(|s| s.namespace_options.clone()),
            }),
        }),
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
        runtime_handler: sandbox.runtime_handler.clone(),
    }
}

fn second_ip(sandbox: &Sandbox) -> Vec<cri::PodIp> {
    let ip = Some(&sandbox.second_ip).filter(|ip| !ip.is_empty());
    ip.map(|ip| cri::PodIp { ip: ip.clone() })
        .into_iter()
        .collect()
}

pub(super) fn listed_sandbox(sandbox: &Sandbox) -> cri::PodSandbox {
    cri::PodSandbox {
        id: sandbox.id.clone(),
        metadata: sandbox.config.metadata.clone(),
        state: sandbox.state.into(),
        created_at: sandbox.created_at,
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
        runtime_handler: sandbox.runtime_handler.clone(),
    }
}

/// The status of a container, with its sandbox and its image as far as they still exist.
pub(super) fn container_status(
    container: &Container,
    sandbox: Option<&Sandbox>,
    image: Option<&cri::Image>,
) -> cri::ContainerStatus {
    let config = &container.config;
    let log_path = sandbox
        .map(|s| format!("{}/{}", s.config.log_directory, config.log_path))
        .unwrap_or_default();
    let (image, image_ref) = image_names(container, image);
    cri::ContainerStatus {
        id: container.id.clone(),
        metadata: config.metadata.clone(),
        state: container.reported_state().into(),
        created_at: container.created_at,
        started_at: container.started_at,
        finished_at: container.finished_at,
        exit_code: container.exit_code,
        image: Some(image),
        image_ref,
        reason: container.reason.clone(),
        message: String::new(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        mounts: config.mounts.clone(),
        log_path,
        resources: Some(cri::ContainerResources {
            linux: config.linux.as_ref().and_then(|l| l.resources.clone()),
            windows: None,
        }),
        image_id: container.image_id.clone(),
        user: container_user(config),
        stop_signal: config.stop_signal,
    }
}

/// The image name and the resolved image in a container's status. They are, as in containerd, the
/// first tag and the first digest that the image has now, whatever the container was created with.
fn image_names(container: &Container, image: Option<&cri::Image>) -> (cri::ImageSpec, String) {
    let tag = image.and_then(|image| image.repo_tags.first());
    let digest = image.and_then(|image| image.repo_digests.first());
    let spec = match tag {
        Some(tag) => cri::ImageSpec {
            image: tag.clone(),
            ..cri::ImageSpec::default()
        },
        None => container.config.image.clone().unwrap_or_default(),
    };
    let resolved = digest.unwrap_or(&container.image_id);
    (spec, resolved.clone())
}

/// The user in the container's config; `None` if the config leaves it to the image.
fn container_user(config: &cri::ContainerConfig) -> Option<cri::ContainerUser> {
    let context = config.linux.as_ref()?.security_context.as_ref()?;
    let uid = context.run_as_user.as_ref()?.value;
    let gid = context.run_as_group.as_ref().map_or(0, |gid| gid.value);
    let mut supplemental_groups = vec![gid];
    supplemental_groups.extend(&context.supplemental_groups);
    Some(cri::ContainerUser {
        linux: Some(cri::LinuxContainerUser {
            uid,
            gid,
            supplemental_groups,
        }),
    })
}

pub(super) fn listed_container(container: &Container) -> cri::Container {
    let config = &container.config;
    cri::Container {
        id: container.id.clone(),
        pod_sandbox_id: container.sandbox_id.clone(),
        metadata: config.metadata.clone(),
        image: config.image.clone(),
        image_ref: container.image_id.clone(),
        state: container.reported_state().into(),
        created_at: container.created_at,
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        image_id: container.image_id.clone(),
    }
}

pub(super) fn container_stats(container: &Container, now: i64) -> cri::ContainerStats {
    let value = |value| Some(cri::UInt64Value { value });
    cri::ContainerStats {
        attributes: Some(cri::ContainerAttributes {
            id: container.id.clone(),
            metadata: container.config.metadata.clone(),
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
        }),
        cpu: Some(cri::CpuUsage {
            timestamp: now,
            usage_core_nano_seconds: value(container.usage.cpu_nanos),
            ..cri::CpuUsage::default()
        }),
        memory: Some(cri::MemoryUsage {
            timestamp: now,
            working_set_bytes: value(container.usage.memory_bytes),
            ..cri::MemoryUsage::default()
        }),
        ..cri::ContainerStats::default()
    }
}

/// The stats of a sandbox with these containers.
pub(super) fn sandbox_stats(
    sandbox: &Sandbox,
    containers: &[&Container],
    now: i64,
) -> cri::PodSandboxStats {
    let value = |value| Some(cri::UInt64Value { value });
    cri::PodSandboxStats {
        attributes: Some(cri::PodSandboxAttributes {
            id: sandbox.id.clone(),
            metadata: sandbox.config.metadata.clone(),
            labels: sandbox.config.labels.clone(),
            annotations: sandbox.config.annotations.clone(),
        }),
        linux: Some(cri::LinuxPodSandboxStats {
            cpu: Some(cri::CpuUsage {
                timestamp: now,
                usage_core_nano_seconds: value(containers.iter().map(|c| c.usage.cpu_nanos).sum()),
                ..cri::CpuUsage::default()
            }),
            memory: Some(cri::MemoryUsage {
                timestamp: now,
                working_set_bytes: value(containers.iter().map(|c| c.usage.memory_bytes).sum()),
                ..cri::MemoryUsage::default()
            }),
            containers: containers.iter().map(|c| container_stats(c, now)).collect(),
            ..cri::LinuxPodSandboxStats::default()
        }),
        windows: None,
    }
}

/// The metrics of a sandbox with these containers.
pub(super) fn sandbox_metrics(
    sandbox: &Sandbox,
    containers: &[&Container],
    now: i64,
) -> cri::PodSandboxMetrics {
    cri::PodSandboxMetrics {
        pod_sandbox_id: sandbox.id.clone(),
        metrics: Vec::new(),
        container_metrics: containers
            .iter()
            .map(|c| cri::ContainerMetrics {
                container_id: c.id.clone(),
                metrics: vec![cri::Metric {
                    name: METRIC.to_owned(),
                    timestamp: now,
                    metric_type: cri::MetricType::Gauge.into(),
                    label_values: vec![c.name().to_owned()],
                    value: Some(cri::UInt64Value {
                        value: c.usage.memory_bytes,
                    }),
                }],
            })
            .collect(),
    }
}

/// The only metric that the fake runtime reports.
pub(super) const METRIC: &str = "container_memory_working_set_bytes";

pub(super) fn sandbox_matches(sandbox: &Sandbox, filter: &cri::PodSandboxFilter) -> bool {
    sandbox.id.starts_with(&filter.id)
        && filter
            .state
            .is_none_or(|wanted| wanted.state() == sandbox.state)
        && labels_match(&sandbox.config.labels, &filter.label_selector)
}

pub(super) fn container_matches(container: &Container, filter: &cri::ContainerFilter) -> bool {
    container.id.starts_with(&filter.id)
        && container.sandbox_id.starts_with(&filter.pod_sandbox_id)
        && filter
            .state
            .is_none_or(|wanted| wanted.state() == container.reported_state())
        && labels_match(&container.config.labels, &filter.label_selector)
}

pub(super) fn labels_match(
    labels: &BTreeMap<String, String>,
    wanted: &BTreeMap<String, String>,
) -> bool {
    wanted
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}
