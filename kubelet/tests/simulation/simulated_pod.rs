//! A pod of a run, and the operations on it.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
use kubelet::sources::update::{PodOperation, Source};
use tokio::time::Instant;

use crate::pods::{self, Expect, Planned};

/// A source's operation on a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodEvent {
    /// The pod was added, or came back.
    Added,
    /// The pod was changed.
    Changed,
    /// The pod was marked for deletion.
    Deleted,
    /// The pod was removed.
    Removed,
}

/// A pod given to the kubelet.
pub(crate) struct SimulatedPod {
    pub uid: String,
    pub slot: usize,
    pub pod: Pod,
    pub source: Source,
    pub expect: Expect,
    /// Whether its source still has it.
    pub present: bool,
    /// Whether it is marked for deletion.
    pub deleting: bool,
    /// Whether something other than its own containers has ended part of it.
    pub disturbed: bool,
    /// Whether it was removed and came back.
    pub came_back: bool,
    /// The operations on it, in order.
    pub events: Vec<(Instant, PodEvent)>,
    /// Its last observed status.
    pub status: Option<Arc<PodStatus>>,
    /// The last observed restart count of each container.
    pub restarts: BTreeMap<String, i32>,
}

impl SimulatedPod {
    pub(crate) fn new(slot: usize, planned: Planned) -> Self {
        Self {
            uid: planned.pod.metadata.uid.clone().unwrap(),
            slot,
            pod: planned.pod,
            source: planned.source,
            expect: planned.expect,
            present: true,
            deleting: false,
            disturbed: false,
            came_back: false,
            events: Vec::new(),
            status: None,
            restarts: BTreeMap::new(),
        }
    }

    /// Whether it was last seen evicted.
    pub(crate) fn is_evicted(&self) -> bool {
        let status = self.status.as_deref();
        status.is_some_and(|it| it.reason.as_deref() == Some(kubelet_eviction::REASON))
    }

    /// Records an operation at the current time.
    pub(crate) fn note(&mut self, operation: PodOperation) {
        let event = match operation {
            PodOperation::Add | PodOperation::Restore => PodEvent::Added,
            PodOperation::Update => PodEvent::Changed,
            PodOperation::Delete => PodEvent::Deleted,
            PodOperation::Remove => PodEvent::Removed,
            PodOperation::Reconcile => return,
        };
        self.events.push((Instant::now(), event));
    }

    /// When an operation first happened in a period.
    pub(crate) fn done(&self, event: PodEvent, from: Instant, to: Instant) -> Option<Instant> {
        let mut events = self.events.iter();
        events.find_map(|(at, done)| (*done == event && from <= *at && *at <= to).then_some(*at))
    }

    pub(crate) fn spec(&self) -> &PodSpec {
        self.pod.spec.as_ref().unwrap()
    }

    /// A container, and its place in the start order.
    pub(crate) fn container(&self, name: &str) -> Option<(usize, &Container)> {
        let mut containers = pods::containers(&self.pod).enumerate();
        containers.find(|(_, container)| container.name == name)
    }

    /// Whether a container is an ephemeral container.
    pub(crate) fn is_ephemeral(&self, name: &str) -> bool {
        let mut ephemeral = self.spec().ephemeral_containers.iter().flatten();
        ephemeral.any(|container| container.name == name)
    }

    /// The number of init containers, including sidecars.
    pub(crate) fn init_containers(&self) -> usize {
        self.spec().init_containers.as_ref().map_or(0, Vec::len)
    }
}
