//! The state of the fake runtime: sandboxes, containers and images in memory, and their
//! transitions.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cri_proto::runtime::v1 as cri;
use tokio::{sync::broadcast, time::Instant};
use tonic::Status;

use super::{
    history::{ContainerEvent, ContainerHistory, EndCause, Histories},
    objects::{Behaviour, Container, Sandbox, Usage},
};

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
    pub(super) lag: Option<super::lag::Lag>,
    pub(super) dual_stack: bool,
    pub(super) user_namespaces: bool,
    pub(super) group_policies: bool,
    pub(super) started_twice: Vec<String>,
    /// The history of every container ever created.
    pub(super) histories: Histories,
    pub(super) events: broadcast::Sender<cri::ContainerEventResponse>,
    /// Whether events are suppressed.
    pub(super) is_mute: bool,
    made: u64,
    epoch: (Instant, Duration),
}

/// The content of a checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Checkpoint {
    pub(super) containers: Vec<cri::ContainerConfig>,
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

    // === images ===

    pub(super) fn add_image(&mut self, reference: &str) -> String {
        let reference = super::image_names::normalised(reference);
        let id = image_id(&reference);
        let image = self.images.entry(id.clone()).or_insert_with(|| cri::Image {
            id: id.clone(),
            size: 1 << 20,
            ..cri::Image::default()
        });
        let names = if reference.contains('@') {
            &mut image.repo_digests
        } else {
            &mut image.repo_tags
        };
        if !names.contains(&reference) {
            names.push(reference);
        }
        id
    }

    /// Puts an image on the node as a pull does: it has a digest too.
    pub(super) fn pull_image(&mut self, reference: &str) -> String {
        let id = self.add_image(reference);
        if let Some(image) = self.images.get_mut(&id) {
            let digest =
                super::image_names::resolved(&super::image_names::normalised(reference), &id);
            if !image.repo_digests.contains(&digest) {
                image.repo_digests.push(digest);
            }
        }
        id
    }

    /// Finds an image by id or reference.
    pub(super) fn image(&self, name: &str) -> Option<&cri::Image> {
        self.images.get(name).or_else(|| {
            let name = super::image_names::normalised(name);
            self.images
                .values()
                .find(|image| image.repo_tags.contains(&name) || image.repo_digests.contains(&name))
        })
    }

    // === sandboxes ===

    pub(super) fn run_sandbox(
        &mut self,
        config: cri::PodSandboxConfig,
        runtime_handler: String,
    ) -> Result<String, Status> {
        let Some(metadata) = config.metadata.clone() else {
            return Err(Status::invalid_argument("config.metadata is not set"));
        };
        if self
            .sandboxes
            .values()
            .any(|s| s.config.metadata.as_ref() == Some(&metadata))
        {
            return Err(Status::already_exists(format!(
                "sandbox {}_{}_{}_{} already exists",
                metadata.name, metadata.namespace, metadata.uid, metadata.attempt
            )));
        }
        let id = self.next_id();
        let n = self.made;
        let on_host = config
            .linux
            .as_ref()
            .and_then(|l| l.security_context.as_ref())
            .and_then(|s| s.namespace_options.as_ref())
            .is_some_and(|n| n.network() == cri::NamespaceMode::Node);
        let ip = if on_host {
            String::new()
        } else {
            format!("10.88.{}.{}", (n / 250) % 250, n % 250 + 2)
        };
        let sandbox = Sandbox {
            id: id.clone(),
            config,
            runtime_handler,
            state: cri::PodSandboxState::SandboxReady,
            created_at: self.now(),
            second_ip: if self.dual_stack && !ip.is_empty() {
                format!("fd00::{n:x}")
            } else {
                String::new()
            },
            ip,
        };
        self.sandboxes.insert(id.clone(), sandbox);
        self.publish(&id, &id, cri::ContainerEventType::ContainerCreatedEvent);
        self.publish(&id, &id, cri::ContainerEventType::ContainerStartedEvent);
        Ok(id)
    }

    /// Stops a sandbox and ends its containers, which record `end` as the cause.
    pub(super) fn stop_sandbox(&mut self, id: &str, end: EndCause) {
        let running: Vec<String> = self.running_in(id);
        for container in running {
            self.exit(&container, end, 137);
        }
        let Some(sandbox) = self.sandboxes.get_mut(id) else {
            return;
        };
        if sandbox.state == cri::PodSandboxState::SandboxReady {
            sandbox.state = cri::PodSandboxState::SandboxNotready;
            self.publish(id, id, cri::ContainerEventType::ContainerStoppedEvent);
        }
    }

    pub(super) fn remove_sandbox(&mut self, id: &str) {
        self.stop_sandbox(id, EndCause::SandboxStop);
        let of_sandbox: Vec<String> = self
            .containers
            .values()
            .filter(|c| c.sandbox_id == id)
            .map(|c| c.id.clone())
            .collect();
        for container in of_sandbox {
            self.remove_container(&container);
        }
        if self.sandboxes.contains_key(id) {
            self.publish(id, id, cri::ContainerEventType::ContainerDeletedEvent);
            self.sandboxes.remove(id);
        }
    }

    /// Finds a sandbox by its id or an unambiguous prefix of it.
    pub(super) fn sandbox_id(&self, id: &str) -> Option<String> {
        unambiguous(&self.sandboxes, id)
    }

    pub(super) fn running_in(&self, sandbox: &str) -> Vec<String> {
        self.containers
            .values()
            .filter(|c| c.sandbox_id == sandbox)
            .filter(|c| c.state == cri::ContainerState::ContainerRunning)
            .map(|c| c.id.clone())
            .collect()
    }

    // === containers ===

    pub(super) fn create_container(
        &mut self,
        sandbox: &str,
        config: cri::ContainerConfig,
    ) -> Result<String, Status> {
        let Some(in_sandbox) = self.sandbox_id(sandbox) else {
            return Err(Status::not_found(format!("no sandbox {sandbox}")));
        };
        if self.sandboxes[&in_sandbox].state != cri::PodSandboxState::SandboxReady {
            return Err(Status::failed_precondition(format!(
                "sandbox {in_sandbox} does not run"
            )));
        }
        let Some(metadata) = config.metadata.clone() else {
            return Err(Status::invalid_argument("config.metadata is not set"));
        };
        let image = config
            .image
            .as_ref()
            .map_or("", |spec| spec.image.as_str())
            .to_owned();
        let Some(image_id) = self.image(&image).map(|image| image.id.clone()) else {
            return Err(Status::not_found(format!("no image {image:?}")));
        };
        if self
            .containers
            .values()
            .any(|c| c.sandbox_id == in_sandbox && c.config.metadata.as_ref() == Some(&metadata))
        {
            return Err(Status::already_exists(format!(
                "container {} (attempt {}) already exists in sandbox {in_sandbox}",
                metadata.name, metadata.attempt
            )));
        }
        let id = self.next_id();
        let spec = config.image.as_ref();
        self.histories.begin(ContainerHistory {
            id: id.clone(),
            pod_uid: self.sandboxes[&in_sandbox].pod_uid().to_owned(),
            sandbox_id: in_sandbox.clone(),
            name: metadata.name,
            attempt: metadata.attempt,
            image: spec.map_or_else(String::new, |spec| spec.user_specified_image.clone()),
            events: Vec::new(),
        });
        let container = Container {
            id: id.clone(),
            sandbox_id: in_sandbox.clone(),
            config,
            state: cri::ContainerState::ContainerCreated,
            created_at: self.now(),
            started_at: 0,
            finished_at: 0,
            exit_code: 0,
            reason: String::new(),
            image_id,
            usage: Usage::default(),
            is_lost: false,
        };
        self.containers.insert(id.clone(), container);
        self.publish(
            &in_sandbox,
            &id,
            cri::ContainerEventType::ContainerCreatedEvent,
        );
        Ok(id)
    }

    /// Starts a container. Returns its behaviour.
    pub(super) fn start_container(&mut self, id: &str) -> Result<Behaviour, Status> {
        let now = self.now();
        let container = self.container_mut(id)?;
        if container.state != cri::ContainerState::ContainerCreated {
            return Err(Status::failed_precondition(format!(
                "container {id} was started before"
            )));
        }
        container.state = cri::ContainerState::ContainerRunning;
        container.started_at = now;
        let (sandbox, name) = (container.sandbox_id.clone(), container.name().to_owned());
        let pod = self.sandboxes.get(&sandbox).map_or("", Sandbox::pod_uid);
        let twice = self.containers.values().filter(|other| {
            other.state == cri::ContainerState::ContainerRunning
                && other.id != id
                && other.name() == name
                && self.sandboxes.get(&other.sandbox_id).map(Sandbox::pod_uid) == Some(pod)
        });
        let twice: Vec<String> = twice
            .map(|other| format!("{name} of pod {pod}: {id} beside {}", other.id))
            .collect();
        self.started_twice.extend(twice);
        self.histories.note(id, ContainerEvent::Started);
        self.open_log(id);
        self.publish(&sandbox, id, cri::ContainerEventType::ContainerStartedEvent);
        Ok(self.behaviour(&name))
    }

    /// Creates a container's log file, empty, if it is missing and its directory exists.
    pub(super) fn open_log(&self, id: &str) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let dir = self.sandboxes.get(&container.sandbox_id);
        let dir = dir.map_or("", |sandbox| sandbox.config.log_directory.as_str());
        if dir.is_empty() || container.config.log_path.is_empty() {
            return;
        }
        let path = std::path::Path::new(dir).join(&container.config.log_path);
        // Most tests do not need the log, so errors are ignored.
        let _ = std::fs::File::options()
            .create(true)
            .append(true)
            .open(path);
    }

    pub(super) fn behaviour(&self, name: &str) -> Behaviour {
        self.behaviours.get(name).cloned().unwrap_or_default()
    }

    /// Ends a container if it is running.
    pub(super) fn exit(&mut self, id: &str, end: EndCause, code: i32) {
        let reason = if code == 0 { "Completed" } else { "Error" };
        self.exit_because(id, end, code, reason);
    }

    pub(super) fn exit_because(&mut self, id: &str, end: EndCause, code: i32, reason: &str) {
        let now = self.now();
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        if container.state != cri::ContainerState::ContainerRunning {
            return;
        }
        container.state = cri::ContainerState::ContainerExited;
        container.exit_code = code;
        container.finished_at = now;
        container.reason = reason.to_owned();
        let sandbox = container.sandbox_id.clone();
        self.histories.note(id, ContainerEvent::Ended(end, code));
        self.publish(&sandbox, id, cri::ContainerEventType::ContainerStoppedEvent);
    }

    pub(super) fn remove_container(&mut self, id: &str) {
        self.exit(id, EndCause::Removal, 137);
        if let Some(container) = self.containers.get(id) {
            let sandbox = container.sandbox_id.clone();
            self.histories.note(id, ContainerEvent::Removed);
            self.publish(&sandbox, id, cri::ContainerEventType::ContainerDeletedEvent);
            self.containers.remove(id);
        }
    }

    /// Finds a container by its id or an unambiguous prefix of it.
    pub(super) fn container_id(&self, id: &str) -> Option<String> {
        unambiguous(&self.containers, id)
    }

    pub(super) fn container(&self, id: &str) -> Result<&Container, Status> {
        self.container_id(id)
            .and_then(|id| self.containers.get(&id))
            .ok_or_else(|| Status::not_found(format!("no container {id}")))
    }

    pub(super) fn container_mut(&mut self, id: &str) -> Result<&mut Container, Status> {
        self.container_id(id)
            .and_then(|id| self.containers.get_mut(&id))
            .ok_or_else(|| Status::not_found(format!("no container {id}")))
    }

    pub(super) fn running(&self, id: &str) -> Result<&Container, Status> {
        let container = self.container(id)?;
        if container.reported_state() == cri::ContainerState::ContainerRunning {
            Ok(container)
        } else {
            Err(Status::failed_precondition(format!(
                "container {id} does not run"
            )))
        }
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
            pod_sandbox_status: self
                .sandboxes
                .get(sandbox)
                .map(super::convert::sandbox_status),
            containers_statuses: self
                .containers
                .values()
                .filter(|c| c.sandbox_id == sandbox)
                .map(|c| super::convert::container_status(c, self))
                .collect(),
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

fn image_id(reference: &str) -> String {
    let seed = reference.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    });
    format!(
        "sha256:{:016x}{:016x}{:016x}{:016x}",
        scatter(seed),
        scatter(seed ^ 1),
        scatter(seed ^ 2),
        scatter(seed ^ 3)
    )
}

/// Spreads counters over the whole range, so that short prefixes of ids differ.
fn scatter(n: u64) -> u64 {
    let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
