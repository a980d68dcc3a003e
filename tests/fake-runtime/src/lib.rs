//! A CRI v1 runtime in memory. It implements every verb of `RuntimeService` and `ImageService`;
//! tests can inject errors, delays, hangs and container exits.
//!
//! It is served over an in-process transport, so that tests of the kubelet can run on tokio's
//! paused time, or over a unix socket for tests across processes.

#![forbid(unsafe_code)]

mod commands;
mod connections;
mod convert;
mod fault;
mod history;
mod image_names;
mod image_service;
mod lag;
mod lists;
mod objects;
mod runtime_service;
mod stops;
mod updates;
mod world;

use std::{
    fmt,
    sync::{Arc, atomic::AtomicUsize},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use cri_proto::runtime::v1 as cri;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::Status;

pub use connections::Serving;
pub use fault::{Fault, RandomFaults, Times, Verb};
pub use history::{ContainerEvent, ContainerHistory, EndCause};
pub use objects::{Behaviour, Container, Exec, Sandbox, Usage};

/// A function that answers `ExecSync`.
pub type ExecHandler = dyn Fn(&Container, &[String]) -> cri::ExecSyncResponse + Send + Sync;

/// The fake runtime. Clones share their state.
#[derive(Clone)]
pub struct FakeRuntime(Arc<Inner>);

impl fmt::Debug for FakeRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeRuntime").finish_non_exhaustive()
    }
}

struct Inner {
    world: Mutex<World>,
    faults: fault::Faults,
    exec: Mutex<Arc<ExecHandler>>,
    /// The number of `ExecSync` commands that are running.
    commands: AtomicUsize,
    streaming_url: Mutex<Option<String>>,
    /// The command of the last `Exec`.
    streamed: Mutex<Vec<String>>,
    /// The number of times that all connections were broken.
    broken: watch::Sender<u32>,
}

use world::World;

impl Default for FakeRuntime {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeRuntime {
    /// A runtime without sandboxes, containers or images. It uses tokio's clock, so it must be
    /// created inside a tokio runtime.
    pub fn new() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        Self::at(since_epoch.unwrap_or_default())
    }

    /// [`Self::new`] with a clock that starts this long after the epoch.
    pub fn at(since_epoch: Duration) -> Self {
        Self(Arc::new(Inner {
            world: Mutex::new(World::new(since_epoch)),
            faults: fault::Faults::default(),
            exec: Mutex::new(Arc::new(|_, _| cri::ExecSyncResponse::default())),
            commands: AtomicUsize::new(0),
            streaming_url: Mutex::new(None),
            streamed: Mutex::default(),
            broken: watch::Sender::new(0),
        }))
    }

    // === faults ===

    /// Injects a fault into the calls of a verb. The faults of a verb apply in the order in which
    /// they were added.
    pub fn fault(&self, verb: Verb, fault: Fault, times: Times) {
        self.0.faults.add(verb, fault, times);
    }

    /// Injects the same fault into every verb, like a runtime that is down.
    pub fn fault_all(&self, fault: &Fault, times: Times) {
        for verb in Verb::ALL {
            self.0.faults.add(*verb, fault.clone(), times);
        }
    }

    /// Calls `chance` for the fault of each call that has no other fault.
    pub fn faults_by_chance(&self, chance: impl Fn(Verb) -> Option<Fault> + Send + Sync + 'static) {
        self.0.faults.by_chance(Arc::new(chance));
    }

    /// Removes all faults. Calls that hang keep hanging.
    pub fn clear_faults(&self) {
        self.0.faults.clear();
    }

    /// The number of calls of a verb, including those that failed by a fault.
    pub fn calls(&self, verb: Verb) -> usize {
        self.0.faults.calls(verb)
    }

    // === state ===

    /// Sets a condition of the runtime's status: `RuntimeReady` or `NetworkReady`.
    pub fn set_ready(&self, condition: &str, ready: bool) {
        let unready = &mut self.0.world.lock().unready;
        if ready {
            unready.remove(condition);
        } else {
            unready.insert(condition.to_owned());
        }
    }

    /// Puts an image on the node and makes it pullable. Returns its id.
    pub fn add_image(&self, reference: &str) -> String {
        let mut world = self.0.world.lock();
        world.pullable.insert(image_names::normalised(reference));
        world.add_image(reference)
    }

    /// Sets the user of an image on the node.
    pub fn set_image_user(&self, id: &str, uid: Option<i64>, username: &str) {
        if let Some(image) = self.0.world.lock().images.get_mut(id) {
            image.uid = uid.map(|value| cri::Int64Value { value });
            username.clone_into(&mut image.username);
        }
    }

    /// Edits an image on the node: its size, whether it is pinned.
    pub fn edit_image(&self, id: &str, edit: impl FnOnce(&mut cri::Image)) {
        if let Some(image) = self.0.world.lock().images.get_mut(id) {
            edit(image);
        }
    }

    /// Makes a reference pullable without putting the image on the node.
    pub fn add_pullable_image(&self, reference: &str) {
        let name = image_names::normalised(reference);
        self.0.world.lock().pullable.insert(name);
    }

    /// Makes a reference pullable for a single registry user.
    pub fn add_private_image(&self, reference: &str, user: &str) {
        self.add_pullable_image(reference);
        let private = &mut self.0.world.lock().private;
        private.insert(image_names::normalised(reference), user.to_owned());
    }

    /// Every pull that no fault prevented, in order.
    pub fn pulls(&self) -> Vec<cri::PullImageRequest> {
        self.0.world.lock().pulls.clone()
    }

    /// The images on the node.
    pub fn images(&self) -> Vec<cri::Image> {
        self.0.world.lock().images.values().cloned().collect()
    }

    /// The sandboxes, oldest first.
    pub fn sandboxes(&self) -> Vec<Sandbox> {
        let mut all: Vec<_> = self.0.world.lock().sandboxes.values().cloned().collect();
        all.sort_by(|a, b| (a.created_at, &a.id[16..]).cmp(&(b.created_at, &b.id[16..])));
        all
    }

    /// The containers, oldest first.
    pub fn containers(&self) -> Vec<Container> {
        let mut all: Vec<_> = self.0.world.lock().containers.values().cloned().collect();
        all.sort_by(|a, b| (a.created_at, &a.id[16..]).cmp(&(b.created_at, &b.id[16..])));
        all
    }

    /// The running containers of a name, oldest first.
    pub fn running(&self, name: &str) -> Vec<Container> {
        let mut all = self.containers();
        all.retain(|c| c.name() == name && c.state == cri::ContainerState::ContainerRunning);
        all
    }

    /// Ends a running container, given by its id, or all running containers with this name in the
    /// pod spec. Returns how many ended.
    pub fn exit_container(&self, id_or_name: &str, code: i32) -> usize {
        let reason = if code == 0 { "Completed" } else { "Error" };
        self.exit_container_because(id_or_name, code, reason)
    }

    /// [`Self::exit_container`] with this reason in the container's status.
    pub fn exit_container_because(&self, id_or_name: &str, code: i32, reason: &str) -> usize {
        let mut world = self.0.world.lock();
        let ended: Vec<String> = world
            .containers
            .values()
            .filter(|c| c.state == cri::ContainerState::ContainerRunning)
            .filter(|c| c.id == id_or_name || c.name() == id_or_name)
            .map(|c| c.id.clone())
            .collect();
        for id in &ended {
            world.exit_because(id, EndCause::Itself, code, reason);
        }
        ended.len()
    }

    /// Ends all containers and sandboxes, as a reboot does.
    pub fn reboot(&self) {
        let mut world = self.0.world.lock();
        let ids: Vec<String> = world.sandboxes.keys().cloned().collect();
        for id in ids {
            world.stop_sandbox(&id, EndCause::Itself);
        }
    }

    /// Ends a sandbox and its containers, as when its init process is killed.
    pub fn exit_sandbox(&self, id: &str) {
        self.0.world.lock().stop_sandbox(id, EndCause::Itself);
    }

    /// Runs a sandbox of a pod as a client other than a kubelet does: only its metadata identifies
    /// the pod.
    pub fn add_sandbox_of(&self, name: &str, uid: &str) {
        let config = cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata {
                name: name.to_owned(),
                uid: uid.to_owned(),
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            ..cri::PodSandboxConfig::default()
        };
        // The only error is that the sandbox already exists.
        let _ = self.0.world.lock().run_sandbox(config, String::new());
    }

    /// Ends every event stream. Clients can open a new one.
    pub fn break_events(&self) {
        self.0.world.lock().break_events();
    }

    /// Suppresses all events, or delivers them again.
    pub fn mute_events(&self, is_mute: bool) {
        self.0.world.lock().is_mute = is_mute;
    }

    /// Switches the events off, so that their streams end at once, or on again.
    pub fn switch_events_off(&self, are_off: bool) {
        let mut world = self.0.world.lock();
        world.has_no_events = are_off;
        world.break_events();
    }

    /// Ends the sandboxes of a pod and their containers. Returns how many sandboxes ended.
    pub fn exit_sandboxes_of(&self, pod_uid: &str) -> usize {
        let mut world = self.0.world.lock();
        let ready = world.sandboxes.values().filter(|sandbox| {
            sandbox.state == cri::PodSandboxState::SandboxReady && sandbox.pod_uid() == pod_uid
        });
        let ready: Vec<String> = ready.map(|sandbox| sandbox.id.clone()).collect();
        for id in &ready {
            world.stop_sandbox(id, EndCause::Itself);
        }
        ready.len()
    }

    /// The starts at which another container of the same pod and name was already running.
    pub fn started_twice(&self) -> Vec<String> {
        self.0.world.lock().started_twice.clone()
    }

    /// The number of containers of a pod and name that were ever created.
    pub fn creations(&self, pod_uid: &str, name: &str) -> u32 {
        let world = self.0.world.lock();
        let histories = world.histories.all().iter();
        let created =
            histories.filter(|history| history.pod_uid == pod_uid && history.name == name);
        u32::try_from(created.count()).unwrap_or(u32::MAX)
    }

    /// The history of every container ever created, oldest first.
    pub fn histories(&self) -> Vec<ContainerHistory> {
        self.0.world.lock().histories.all().to_vec()
    }

    fn note(&self, container: &str, event: ContainerEvent) {
        self.0.world.lock().histories.note(container, event);
    }

    /// Sets how containers of a name behave. It applies to `ExecSync` and stops at once, otherwise
    /// from the next start on.
    pub fn behave(&self, container: &str, behaviour: Behaviour) {
        self.0
            .world
            .lock()
            .behaviours
            .insert(container.to_owned(), behaviour);
    }

    /// Sets the usage that the stats verbs report for a container.
    pub fn set_usage(&self, id: &str, usage: Usage) {
        if let Ok(container) = self.0.world.lock().container_mut(id) {
            container.usage = usage;
        }
    }

    /// Removes an annotation from all containers, as if another kubelet had created them.
    pub fn remove_annotation(&self, name: &str) {
        for container in self.0.world.lock().containers.values_mut() {
            container.config.annotations.remove(name);
        }
    }

    /// Answers `ExecSync` with `handler`. By default every command succeeds and prints nothing.
    pub fn on_exec<F>(&self, handler: F)
    where
        F: Fn(&Container, &[String]) -> cri::ExecSyncResponse + Send + Sync + 'static,
    {
        *self.0.exec.lock() = Arc::new(handler);
    }

    /// Sets the base URL of the streaming server for `Exec`, `Attach` and `PortForward`, which fail
    /// without one.
    pub fn set_streaming_url(&self, url: &str) {
        *self.0.streaming_url.lock() = Some(url.to_owned());
    }

    /// The command of the last `Exec`.
    pub fn streamed_command(&self) -> Vec<String> {
        self.0.streamed.lock().clone()
    }

    /// Sets whether sandboxes get an IPv6 address besides the IPv4 address; by default they do not.
    pub fn set_dual_stack(&self, dual_stack: bool) {
        self.0.world.lock().dual_stack = dual_stack;
    }

    /// Puts running containers, given by id or by their name in the pod spec, in state unknown, as
    /// when the runtime has lost its connection to them. They run on until they are stopped.
    /// Returns how many.
    pub fn lose_sight_of(&self, id_or_name: &str) -> usize {
        let mut world = self.0.world.lock();
        let mut lost = 0;
        for container in world.containers.values_mut() {
            let is_meant = container.id == id_or_name || container.name() == id_or_name;
            if is_meant && container.state == cri::ContainerState::ContainerRunning {
                container.is_lost = true;
                lost += 1;
            }
        }
        lost
    }

    /// Sets whether `Status` reports support for user namespaces; off by default.
    pub fn set_user_namespaces(&self, supported: bool) {
        self.0.world.lock().user_namespaces = supported;
    }

    /// Sets whether `Status` reports support for supplemental groups policies; off by default.
    pub fn set_group_policies(&self, supported: bool) {
        self.0.world.lock().group_policies = supported;
    }

    /// The pod CIDR that the last `UpdateRuntimeConfig` set.
    pub fn pod_cidr(&self) -> String {
        self.0.world.lock().pod_cidr.clone()
    }

    /// Runs `serve` on the state, subject to the verb's fault.
    async fn call<T>(
        &self,
        verb: Verb,
        serve: impl FnOnce(&mut World) -> Result<T, Status>,
    ) -> Result<tonic::Response<T>, Status> {
        let answer = self.0.faults.meet(verb).await?;
        let served = serve(&mut self.0.world.lock());
        answer.to(served).await.map(tonic::Response::new)
    }

    /// Answers a request from the state, subject to the verb's fault.
    async fn respond<Q, R>(
        &self,
        verb: Verb,
        request: tonic::Request<Q>,
        answer: impl FnOnce(&mut World, Q) -> Result<R, Status>,
    ) -> Result<tonic::Response<R>, Status> {
        let request = request.into_inner();
        self.call(verb, |world| answer(world, request)).await
    }

    /// Stops a container: waits until it ends, and kills it after `timeout`.
    async fn stop(&self, id: &str, timeout: Duration) {
        let behaviour = {
            let world = self.0.world.lock();
            match world.container(id) {
                Ok(container) if container.runs() => world.behaviour(container.name()),
                _ => return,
            }
        };
        self.signal(id, &behaviour);
        let (takes, code) = match behaviour.stops_after {
            Some(takes) if takes <= timeout => (takes, behaviour.stop_code),
            _ => (timeout, 137),
        };
        tokio::time::sleep(takes).await;
        self.0.world.lock().exit(id, EndCause::Stop, code);
    }

    /// Ends a started container by itself if its behaviour says so.
    fn run_behaviour(&self, id: String, attempt: u32, behaviour: &Behaviour) {
        let Some((after, mut code)) = behaviour.exits_after else {
            return;
        };
        if attempt < behaviour.fails_first {
            code = 1;
        }
        let world = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            if let Some(inner) = world.upgrade() {
                inner.world.lock().exit(&id, EndCause::Itself, code);
            }
        });
    }
}
