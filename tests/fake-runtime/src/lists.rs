//! The responses of the list verbs, in one message or as a stream.

use std::pin::Pin;

use cri_proto::runtime::v1 as cri;
use futures::{Stream, stream};
use tonic::Status;

use super::{
    convert::{self, labels_match},
    objects::Sandbox,
    world::World,
};

/// The number of items in a message of a list stream. It is small, so that tests get several
/// messages.
pub(super) const CHUNK: usize = 8;

pub(super) type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

pub(super) fn chunks<T: Clone, R: Send + 'static>(
    items: &[T],
    part: impl Fn(Vec<T>) -> R,
) -> ResponseStream<R> {
    let messages: Vec<_> = items.chunks(CHUNK).map(|c| Ok(part(c.to_vec()))).collect();
    Box::pin(stream::iter(messages))
}

pub(super) fn sandboxes(
    world: &World,
    filter: Option<cri::PodSandboxFilter>,
) -> Vec<cri::PodSandbox> {
    let filter = filter.unwrap_or_default();
    world
        .listed_sandboxes()
        .values()
        .filter(|s| convert::sandbox_matches(s, &filter))
        .map(convert::listed_sandbox)
        .collect()
}

pub(super) fn containers(
    world: &World,
    filter: Option<cri::ContainerFilter>,
) -> Vec<cri::Container> {
    let filter = filter.unwrap_or_default();
    world
        .listed_containers()
        .values()
        .filter(|c| convert::container_matches(c, &filter))
        .map(convert::listed_container)
        .collect()
}

pub(super) fn container_stats(
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

pub(super) fn sandbox_stats(
    world: &World,
    filter: Option<cri::PodSandboxStatsFilter>,
) -> Vec<cri::PodSandboxStats> {
    let filter = filter.unwrap_or_default();
    world
        .sandboxes
        .values()
        .filter(|s| s.id.starts_with(&filter.id))
        .filter(|s| labels_match(&s.config.labels, &filter.label_selector))
        .map(|s| sandbox_stats_of(world, s))
        .collect()
}

pub(super) fn sandbox_stats_of(world: &World, sandbox: &Sandbox) -> cri::PodSandboxStats {
    let containers: Vec<_> = world.containers_of(&sandbox.id).collect();
    convert::sandbox_stats(sandbox, &containers, world.now())
}

pub(super) fn metrics(world: &World) -> Vec<cri::PodSandboxMetrics> {
    world
        .sandboxes
        .values()
        .map(|s| {
            let containers: Vec<_> = world.containers_of(&s.id).collect();
            convert::sandbox_metrics(s, &containers, world.now())
        })
        .collect()
}
