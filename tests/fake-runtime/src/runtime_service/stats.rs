//! The verbs of stats and metrics.

use cri_proto::runtime::v1 as cri;
use tonic::Status;

use crate::{
    convert::{self, labels_match},
    lists::{ResponseStream, chunks},
    objects::Sandbox,
    world::World,
};

pub(super) fn container(
    world: &mut World,
    request: cri::ContainerStatsRequest,
) -> Result<cri::ContainerStatsResponse, Status> {
    let container = world.container(&request.container_id)?;
    Ok(cri::ContainerStatsResponse {
        stats: Some(convert::container_stats(container, world.now())),
    })
}

pub(super) fn list_containers(
    world: &mut World,
    request: cri::ListContainerStatsRequest,
) -> Result<cri::ListContainerStatsResponse, Status> {
    Ok(cri::ListContainerStatsResponse {
        stats: of_containers(world, request.filter),
    })
}

pub(super) fn stream_containers(
    world: &mut World,
    request: cri::StreamContainerStatsRequest,
) -> Result<ResponseStream<cri::StreamContainerStatsResponse>, Status> {
    let stats = of_containers(world, request.filter);
    Ok(chunks(&stats, |container_stats| {
        cri::StreamContainerStatsResponse { container_stats }
    }))
}

fn of_containers(
    world: &World,
    filter: Option<cri::ContainerStatsFilter>,
) -> Vec<cri::ContainerStats> {
    let filter = filter.unwrap_or_default();
    world
        .containers
        .values()
        .filter(|c| c.id.starts_with(&filter.id))
        .filter(|c| c.sandbox_id.starts_with(&filter.pod_sandbox_id))
        .filter(|c| labels_match(&c.config.labels, &filter.label_selector))
        .map(|c| convert::container_stats(c, world.now()))
        .collect()
}

pub(super) fn sandbox(
    world: &mut World,
    request: cri::PodSandboxStatsRequest,
) -> Result<cri::PodSandboxStatsResponse, Status> {
    let sandbox = world.sandbox(&request.pod_sandbox_id)?;
    Ok(cri::PodSandboxStatsResponse {
        stats: Some(of_sandbox(world, sandbox)),
    })
}

pub(super) fn list_sandboxes(
    world: &mut World,
    request: cri::ListPodSandboxStatsRequest,
) -> Result<cri::ListPodSandboxStatsResponse, Status> {
    Ok(cri::ListPodSandboxStatsResponse {
        stats: of_sandboxes(world, request.filter),
    })
}

pub(super) fn stream_sandboxes(
    world: &mut World,
    request: cri::StreamPodSandboxStatsRequest,
) -> Result<ResponseStream<cri::StreamPodSandboxStatsResponse>, Status> {
    let stats = of_sandboxes(world, request.filter);
    Ok(chunks(&stats, |pod_sandbox_stats| {
        cri::StreamPodSandboxStatsResponse { pod_sandbox_stats }
    }))
}

fn of_sandboxes(
    world: &World,
    filter: Option<cri::PodSandboxStatsFilter>,
) -> Vec<cri::PodSandboxStats> {
    let filter = filter.unwrap_or_default();
    world
        .sandboxes
        .values()
        .filter(|s| s.id.starts_with(&filter.id))
        .filter(|s| labels_match(&s.config.labels, &filter.label_selector))
        .map(|s| of_sandbox(world, s))
        .collect()
}

fn of_sandbox(world: &World, sandbox: &Sandbox) -> cri::PodSandboxStats {
    let containers: Vec<_> = world.containers_of(&sandbox.id).collect();
    convert::sandbox_stats(sandbox, &containers, world.now())
}

pub(super) fn list_metric_descriptors(
    _: &mut World,
    _: cri::ListMetricDescriptorsRequest,
) -> Result<cri::ListMetricDescriptorsResponse, Status> {
    Ok(cri::ListMetricDescriptorsResponse {
        descriptors: vec![cri::MetricDescriptor {
            name: convert::METRIC.to_owned(),
            help: "Working set in bytes.".to_owned(),
            label_keys: vec!["container".to_owned()],
        }],
    })
}

pub(super) fn list_metrics(
    world: &mut World,
    _: cri::ListPodSandboxMetricsRequest,
) -> Result<cri::ListPodSandboxMetricsResponse, Status> {
    Ok(cri::ListPodSandboxMetricsResponse {
        pod_metrics: metrics(world),
    })
}

pub(super) fn stream_metrics(
    world: &mut World,
    _: cri::StreamPodSandboxMetricsRequest,
) -> Result<ResponseStream<cri::StreamPodSandboxMetricsResponse>, Status> {
    Ok(chunks(&metrics(world), |pod_sandbox_metrics| {
        cri::StreamPodSandboxMetricsResponse {
            pod_sandbox_metrics,
        }
    }))
}

fn metrics(world: &World) -> Vec<cri::PodSandboxMetrics> {
    let of = |sandbox: &Sandbox| {
        let containers: Vec<_> = world.containers_of(&sandbox.id).collect();
        convert::sandbox_metrics(sandbox, &containers, world.now())
    };
    world.sandboxes.values().map(of).collect()
}
