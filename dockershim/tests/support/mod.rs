//! A fake Docker engine: a part of the API on a unix socket, with calls that can hang, an event
//! stream that can break, and changes without events.

#![allow(dead_code, reason = "not every test uses all of it")]

mod api;
mod by_hand;
pub(crate) mod certificates;
pub(crate) mod node;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    sync::{broadcast, watch},
    task::JoinHandle,
};

/// The PID reported for each container; no process has it.
const PID: u32 = u32::MAX >> 1;
const PAUSE: &str = "dockershim.local/pause:1";
const PAUSE_ID: &str = "sha256:aaaa000000000000000000000000000000000000000000000000000000000000";
const NEVER: &str = "0001-01-01T00:00:00Z";
const CREATED: &str = "2026-01-01T00:00:00Z";
const STARTED: &str = "2026-01-01T00:00:01Z";
const ENDED: &str = "2026-01-01T00:00:02Z";

/// Calls that can hang, with the container's ID if it matters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Hang {
    Inspect(String),
    Remove(String),
    Start,
    Stop,
    Images,
    Containers,
    DiskUsage,
}

/// The engine, as a test uses it.
pub(crate) struct FakeEngine {
    pub socket: PathBuf,
    state: Arc<State>,
    server: JoinHandle<()>,
    _directory: tempfile::TempDir,
}

struct State {
    containers: Mutex<BTreeMap<String, Value>>,
    /// The current event stream; replaced when it breaks.
    events: Mutex<broadcast::Sender<Value>>,
    /// References by image ID.
    images: Mutex<BTreeMap<String, String>>,
    /// IDs of images whose inspect fails.
    broken_images: Mutex<HashSet<String>>,
    hanging: watch::Sender<HashSet<Hang>>,
    /// IDs of containers that are being removed.
    removing: Mutex<HashSet<String>>,
    calls: Mutex<HashMap<String, usize>>,
    next: Mutex<u64>,
    /// The PID of containers that are started.
    pid: AtomicU32,
    /// Total size of the layers of all images, in bytes.
    layers_size: AtomicU64,
    /// Low-level runtimes by name.
    runtimes: Mutex<Value>,
}

impl FakeEngine {
    /// Starts an engine with the pause image and no containers.
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("docker.sock");
        let state = Arc::new(State {
            containers: Mutex::default(),
            events: Mutex::new(broadcast::channel(64).0),
            images: Mutex::new(BTreeMap::from([(PAUSE_ID.into(), PAUSE.into())])),
            broken_images: Mutex::default(),
            hanging: watch::Sender::default(),
            removing: Mutex::default(),
            calls: Mutex::default(),
            next: Mutex::default(),
            pid: AtomicU32::new(PID),
            layers_size: AtomicU64::new(0),
            runtimes: Mutex::new(json!({ "runc": {} })),
        });
        let server = api::serve(&socket, Arc::clone(&state));
        Self {
            socket,
            state,
            server,
            _directory: directory,
        }
    }

    /// Stops the engine: connections break and the socket is removed. Containers stay.
    pub(crate) fn stop(&mut self) {
        self.server.abort();
        self.break_events();
        let _ = std::fs::remove_file(&self.socket);
    }

    /// Serves again after [`FakeEngine::stop`].
    pub(crate) fn restart(&mut self) {
        self.server = api::serve(&self.socket, Arc::clone(&self.state));
    }

    /// Makes calls hang, or resumes them.
    pub(crate) fn hang(&self, what: Hang, hangs: bool) {
        self.state.hanging.send_modify(|hanging| {
            if hangs {
                hanging.insert(what);
            } else {
                hanging.remove(&what);
            }
        });
    }

    /// Adds a low-level runtime, as an administrator who reloads the engine's configuration, with an
    /// event or without.
    pub(crate) fn add_runtime(&self, name: &str, event: bool) {
        self.state.runtimes.lock()[name] = json!({});
        if event {
            let event = json!({ "Type": "daemon", "Action": "reload", "Actor": { "ID": "" } });
            // Sending fails if there is no reader.
            let _ = self.state.events.lock().send(event);
        }
    }

    /// Breaks the event stream.
    pub(crate) fn break_events(&self) {
        *self.state.events.lock() = broadcast::channel(64).0;
    }

    /// Adds a sandbox, started or not, with an event or without.
    pub(crate) fn add_sandbox(&self, pod: &str, started: bool, event: bool) -> String {
        let id = self.state.new_id();
        let labels = json!({ "io.kubernetes.docker.type": "podsandbox", "app": pod });
        self.state.insert(
            &id,
            &format!("k8s_POD_{pod}_default_uid_0"),
            &labels,
            json!({}),
        );
        if started {
            self.state.set_running(&id, true);
        }
        if event {
            self.state.emit("create", &id);
        }
        id
    }

    /// Adds a running container in `sandbox` with its log at `log`.
    pub(crate) fn add_container(&self, sandbox: &str, name: &str, log: &Path) -> String {
        let id = self.state.new_id();
        let labels = json!({
            "io.kubernetes.docker.type": "container",
            "io.kubernetes.sandbox.id": sandbox,
            "io.kubernetes.container.logpath": log,
            "dockershim.log-format": "cri",
        });
        let name = format!("k8s_{name}_pod_default_uid_0");
        let made_by_the_shim = json!({ "ContainerIDFile": "dockershim" });
        self.state.insert(&id, &name, &labels, made_by_the_shim);
        let engine_log = self.engine_log(&id);
        std::fs::create_dir_all(engine_log.parent().unwrap()).unwrap();
        std::fs::write(&engine_log, "").unwrap();
        if let Some(container) = self.state.containers.lock().get_mut(&id) {
            container["LogPath"] = json!(engine_log);
        }
        self.state.set_running(&id, true);
        self.state.emit("start", &id);
        id
    }

    /// Adds a container in `sandbox` that has not started; `unified` are the cgroup settings to
    /// write at its start.
    pub(crate) fn add_created_container(&self, sandbox: &str, name: &str, unified: &str) -> String {
        let id = self.state.new_id();
        let labels = json!({
            "io.kubernetes.docker.type": "container",
            "io.kubernetes.sandbox.id": sandbox,
            "dockershim.unified": unified,
        });
        let name = format!("k8s_{name}_pod_default_uid_0");
        let made_by_the_shim = json!({ "ContainerIDFile": "dockershim" });
        self.state.insert(&id, &name, &labels, made_by_the_shim);
        id
    }

    /// The engine's own log file of a container.
    pub(crate) fn engine_log(&self, id: &str) -> PathBuf {
        let directory = self.socket.with_extension("logs");
        directory.join(id).join(format!("{id}-json.log"))
    }

    /// Removes a container, with an event or without.
    pub(crate) fn remove(&self, id: &str, event: bool) {
        if event {
            self.state.emit("destroy", id);
        }
        self.state.containers.lock().remove(id);
    }

    /// Adds an image, without an event; if `broken`, its inspect fails.
    pub(crate) fn add_image(&self, reference: &str, broken: bool) -> String {
        let id = format!("sha256:{}", self.state.new_id());
        let mut images = self.state.images.lock();
        images.insert(id.clone(), reference.to_owned());
        if broken {
            self.state.broken_images.lock().insert(id.clone());
        }
        id
    }

    /// Sets the total size of layers that the engine reports; shared layers count once.
    pub(crate) fn set_layers_size(&self, bytes: u64) {
        self.state.layers_size.store(bytes, Ordering::Relaxed);
    }

    /// Ends a container without an event.
    pub(crate) fn end_unseen(&self, id: &str) {
        self.state.set_running(id, false);
    }

    /// Ends a container.
    pub(crate) fn end(&self, id: &str) {
        self.state.set_running(id, false);
        self.state.emit("die", id);
    }

    /// The host configuration that a container was created with.
    pub(crate) fn host_config(&self, id: &str) -> Value {
        self.state.find(id).unwrap()["HostConfig"].clone()
    }

    /// The Docker names of all containers.
    pub(crate) fn names(&self) -> Vec<String> {
        let containers = self.state.containers.lock();
        containers
            .values()
            .filter_map(|c| Some(c["Name"].as_str()?.to_owned()))
            .collect()
    }

    /// How often `call` (`METHOD verb`) was received.
    pub(crate) fn calls(&self, call: &str) -> usize {
        self.state
            .calls
            .lock()
            .get(call)
            .copied()
            .unwrap_or_default()
    }
}

impl Drop for FakeEngine {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Waits until `condition` holds, for 5 seconds at most.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    // Less than the interval at which the shim compares its model, which finds missed events.
    for _ in 0..2500 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("timeout after 25 s: {what}");
}

impl State {
    fn new_id(&self) -> String {
        let mut next = self.next.lock();
        *next += 1;
        format!("{:064x}", *next << 32)
    }

    fn insert(&self, id: &str, name: &str, labels: &Value, host: Value) {
        let container = json!({
            "Id": id,
            "Name": format!("/{name}"),
            "Created": CREATED,
            "Image": PAUSE_ID,
            "State": {
                "Running": false, "Pid": 0, "ExitCode": 0,
                "StartedAt": NEVER, "FinishedAt": NEVER,
            },
            "Config": { "Image": PAUSE_ID, "Labels": labels },
            "HostConfig": host,
            "NetworkSettings": { "Networks": { "bridge": { "IPAddress": "10.0.0.2" } } },
        });
        self.containers.lock().insert(id.to_owned(), container);
    }

    fn set_running(&self, id: &str, running: bool) {
        if let Some(container) = self.containers.lock().get_mut(id) {
            let state = &mut container["State"];
            state["Running"] = json!(running);
            let pid = self.pid.load(Ordering::Relaxed);
            state["Pid"] = json!(if running { pid } else { 0 });
            state["StartedAt"] = json!(STARTED);
            state["FinishedAt"] = json!(if running { NEVER } else { ENDED });
        }
    }

    /// Whether a container runs; `None` if it does not exist.
    fn running(&self, id: &str) -> Option<bool> {
        let container = self.find(id)?;
        Some(container["State"]["Running"] == json!(true))
    }

    fn find(&self, id_or_name: &str) -> Option<Value> {
        let containers = self.containers.lock();
        let by_name = || {
            containers
                .values()
                .find(|c| c["Name"] == format!("/{id_or_name}"))
        };
        containers.get(id_or_name).or_else(by_name).cloned()
    }

    fn emit(&self, action: &str, id: &str) {
        let Some(container) = self.find(id) else {
            return;
        };
        let event = json!({
            "Type": "container",
            "Action": action,
            "Actor": { "ID": id, "Attributes": container["Config"]["Labels"] },
        });
        // Sending fails if there is no reader.
        let _ = self.events.lock().send(event);
    }
}
