//! A pod of a run, and what was done to it.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
use kubelet::sources::update::{PodOperation, Source};
use tokio::time::Instant;

use crate::pods::{self, Expect, Planned};

/// What the sources did to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// It was added, or came back.
    Added,
    /// It was changed.
    Changed,
    /// It was marked for deletion.
    Deleted,
    /// It was removed.
    Removed,
}

/// A pod that was given to the kubelet.
pub struct Subject {
    pub uid: String,
    pub slot: usize,
    pub pod: Pod,
    pub source: Source,
    pub expect: Expect,
    /// Whether its source has it.
    pub present: bool,
    /// Whether it is marked for deletion.
    pub deleting: bool,
    /// Something else than its own containers ended something of it.
    pub disturbed: bool,
    /// It was removed and came back.
    pub came_back: bool,
    /// What was done to it, in order.
    pub deeds: Vec<(Instant, Deed)>,
    /// As it was last seen.
    pub status: Option<Arc<PodStatus>>,
    /// The restarts of each container as they were last seen.
    pub restarts: BTreeMap<String, i32>,
}

impl Subject {
    pub fn new(slot: usize, planned: Planned) -> Self {
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
            deeds: Vec::new(),
            status: None,
            restarts: BTreeMap::new(),
        }
    }

    /// Notes what is done to it just now.
    pub fn note(&mut self, operation: PodOperation) {
        let deed = match operation {
            PodOperation::Add | PodOperation::Restore => Deed::Added,
            PodOperation::Update => Deed::Changed,
            PodOperation::Delete => Deed::Deleted,
            PodOperation::Remove => Deed::Removed,
            PodOperation::Reconcile => return,
        };
        self.deeds.push((Instant::now(), deed));
    }

    /// When something was done to it first in a time.
    pub fn done(&self, deed: Deed, from: Instant, to: Instant) -> Option<Instant> {
        let mut deeds = self.deeds.iter();
        deeds.find_map(|(at, done)| (*done == deed && from <= *at && *at <= to).then_some(*at))
    }

    pub fn spec(&self) -> &PodSpec {
        self.pod.spec.as_ref().unwrap()
    }

    /// Its place in the order in which containers are started, and the container.
    pub fn container(&self, name: &str) -> Option<(usize, &Container)> {
        let mut containers = pods::containers(&self.pod).enumerate();
        containers.find(|(_, container)| container.name == name)
    }

    /// Whether a container was added to it for debugging.
    pub fn is_ephemeral(&self, name: &str) -> bool {
        let mut ephemeral = self.spec().ephemeral_containers.iter().flatten();
        ephemeral.any(|container| container.name == name)
    }

    /// How many of its containers initialise it.
    pub fn init_containers(&self) -> usize {
        self.spec().init_containers.as_ref().map_or(0, Vec::len)
    }
}
