//! The state of the fake runtime: sandboxes, containers and images in memory, and their
//! transitions.

mod checkpoints;
mod containers;
mod images;
mod sandboxes;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cri_proto::runtime::v1 as cri;
use tokio::{sync::broadcast, time::Instant};

use super::{
    convert,
    history::Histories,
    lag::{Lag, Snapshot},
    objects::{Behaviour, Container, Sandbox},
};

pub(super) use checkpoints::Checkpoint;

/// The number of events that a listener may lag behind before its stream fails.
const EVENT_BACKLOG: usize = 1024;

#[derive(Debug)]
pub(super) struct World {
    pub(super) sandboxes: BTreeMap<String, Sandbox>,
    pub(super) containers: BTreeMap<String, Container>,
    /// The images on the node by id.
    pub(super) images: BTreeMap<String, cri::Image>,
    /// The references that can be pulled.
    pub(super) pullable: BTreeSet<String>,
    /// The only user that may pull a reference.
    pub(super) private: BTreeMap<String, String>,
    pub(super) pulls: Vec<cri::PullImageRequest>,
    pub(super) behaviours: BTreeMap<String, Behaviour>,
    pub(super) checkpoints: BTreeMap<String, Checkpoint>,
    pub(super) pod_cidr: String,
    /// The conditions that are false: `RuntimeReady` or `NetworkReady`.
    pub(super) unready: BTreeSet<String>,
    /// The snapshots for the lists, if they lag.
    pub(super) lag: Option<Lag>,
    pub(super) dual_stack: bool,
    pub(super) user_namespaces: bool,
    pub(super) group_policies: bool,
    pub(super) started_twice: Vec<String>,
    /// The history of every container ever created.
    pub(super) histories: Histories,
    pub(super) events: broadcast::Sender<cri::ContainerEventResponse>,
    /// Whether events are suppressed.
    pub(super) is_mute: bool,
    /// Whether event streams end at once, as those of a runtime whose events are switched off.
    pub(super) has_no_events: bool,
    made: u64,
    epoch: (Instant, Duration),
}

impl World {
    pub(super) fn new(since_epoch: Duration) -> Self {
        Self {
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            images: BTreeMap::new(),
            pullable: BTreeSet::new(),
            private: BTreeMap::new(),
            pulls: Vec::new(),
            behaviours: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            pod_cidr: String::new(),
            unready: BTreeSet::new(),
            lag: None,
            dual_stack: false,
            user_namespaces: false,
            group_policies: false,
            started_twice: Vec::new(),
            histories: Histories::default(),
            events: broadcast::channel(EVENT_BACKLOG).0,
            is_mute: false,
            has_no_events: false,
            made: 0,
            epoch: (Instant::now(), since_epoch),
        }
    }

    /// The wall-clock time in nanoseconds since the epoch. It advances with tokio's clock, so it
    /// stands still while that is paused.
    pub(super) fn now(&self) -> i64 {
        let (start, since_epoch) = self.epoch;
        i64::try_from((since_epoch + start.elapsed()).as_nanos()).unwrap_or(i64::MAX)
    }

    fn next_id(&mut self) -> String {
        self.made += 1;
        format!("{:016x}{:048x}", scatter(self.made), self.made)
    }

    // === what CRI reports ===

    /// The sandboxes that the list verbs report.
    pub(super) fn listed_sandboxes(&self) -> &BTreeMap<String, Sandbox> {
        let snapshot = self.lag.as_ref().and_then(Lag::reported);
        snapshot.map_or(&self.sandboxes, |snapshot| &snapshot.sandboxes)
    }

    /// The containers that the list verbs report.
    pub(super) fn listed_containers(&self) -> &BTreeMap<String, Container> {
        let snapshot = self.lag.as_ref().and_then(Lag::reported);
        snapshot.map_or(&self.containers, |snapshot| &snapshot.containers)
    }

    /// Takes a snapshot for the lists. Returns `false` if they no longer lag.
    pub(super) fn take_snapshot(&mut self) -> bool {
        let Some(lag) = &mut self.lag else {
            return false;
        };
        lag.add(Snapshot {
            sandboxes: self.sandboxes.clone(),
            containers: self.containers.clone(),
        });
        true
    }

    /// The status of a container.
    pub(super) fn container_status(&self, container: &Container) -> cri::ContainerStatus {
        let sandbox = self.sandboxes.get(&container.sandbox_id);
        convert::container_status(container, sandbox, self.images.get(&container.image_id))
    }

    /// The statuses of the containers of a sandbox.
    pub(super) fn container_statuses(&self, sandbox: &str) -> Vec<cri::ContainerStatus> {
        self.containers_of(sandbox)
            .map(|container| self.container_status(container))
            .collect()
    }

    // === events ===

    /// Ends the streams of all listeners.
    pub(super) fn break_events(&mut self) {
        self.events = broadcast::channel(EVENT_BACKLOG).0;
    }

    fn publish(&self, sandbox: &str, id: &str, kind: cri::ContainerEventType) {
        if self.is_mute || self.events.receiver_count() == 0 {
            return;
        }
        let event = cri::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind.into(),
            created_at: self.now(),
            pod_sandbox_status: self.sandboxes.get(sandbox).map(convert::sandbox_status),
            containers_statuses: self.container_statuses(sandbox),
        };
        // The only error is that there is no listener.
        let _ = self.events.send(event);
    }
}

/// The only key with this prefix.
fn unambiguous<T>(map: &BTreeMap<String, T>, prefix: &str) -> Option<String> {
    if prefix.is_empty() {
        return None;
    }
    let mut matches = map
        .range(prefix.to_owned()..)
        .map(|(id, _)| id)
        .take_while(|id| id.starts_with(prefix));
    let first = matches.next()?;
    matches.next().is_none().then(|| first.clone())
}

/// Spreads counters over the whole range, so that short prefixes of ids differ.
fn scatter(n: u64) -> u64 {
    let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
