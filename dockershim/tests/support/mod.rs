//! A fake Docker engine: just enough of the API on a unix socket, with calls that can
//! be made to hang, an event stream that can be broken, and changes behind its back.

#![allow(dead_code, reason = "not every test uses all of it")]

mod api;
mod by_hand;
pub mod certificates;
pub mod node;

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

/// What the first process of a container is said to be; no process has it.
const PID: u32 = u32::MAX >> 1;
const PAUSE: &str = "dockershim.local/pause:1";
const PAUSE_ID: &str = "sha256:aaaa000000000000000000000000000000000000000000000000000000000000";
const NEVER: &str = "0001-01-01T00:00:00Z";
const CREATED: &str = "2026-01-01T00:00:00Z";
const STARTED: &str = "2026-01-01T00:00:01Z";
const ENDED: &str = "2026-01-01T00:00:02Z";

/// Calls that can be made to hang; a container's id follows where one is meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Hang {
    Inspect(String),
    Remove(String),
    Start,
    Stop,
    Images,
    Containers,
    DiskUsage,
}

/// The engine as a test sees it.
pub struct FakeEngine {
    pub socket: PathBuf,
    state: Arc<State>,
    server: JoinHandle<()>,
    _directory: tempfile::TempDir,
}

struct State {
    containers: Mutex<BTreeMap<String, Value>>,
    /// One per life of the event stream; replaced when the stream is broken.
    events: Mutex<broadcast::Sender<Value>>,
    /// Reference by id.
    images: Mutex<BTreeMap<String, String>>,
    /// Ids of images that no inspect is answered of.
    broken_images: Mutex<HashSet<String>>,
    hanging: watch::Sender<HashSet<Hang>>,
    /// Ids of what is being removed.
    removing: Mutex<HashSet<String>>,
    calls: Mutex<HashMap<String, usize>>,
    next: Mutex<u64>,
    /// The first process of what is started.
    pid: AtomicU32,
    /// Bytes of the layers of all images.
    layers_size: AtomicU64,
}

impl FakeEngine {
    /// Starts an engine that has the pause image and no containers.
    pub fn start() -> Self {
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
        });
        let server = api::serve(&socket, Arc::clone(&state));
        Self {
            socket,
            state,
            server,
            _directory: directory,
        }
    }

    /// Ends the engine: connections break, the socket goes. Containers stay.
    pub fn stop(&mut self) {
        self.server.abort();
        self.break_events();
        let _ = std::fs::remove_file(&self.socket);
    }

    /// Serves again after [`FakeEngine::stop`].
    pub fn restart(&mut self) {
        self.server = api::serve(&self.socket, Arc::clone(&self.state));
    }

    /// Makes calls hang, or lets them go.
    pub fn hang(&self, what: Hang, hangs: bool) {
        self.state.hanging.send_modify(|hanging| {
            if hangs {
                hanging.insert(what);
            } else {
                hanging.remove(&what);
            }
        });
    }

    /// Ends the event stream under its readers.
    pub fn break_events(&self) {
        *self.state.events.lock() = broadcast::channel(64).0;
    }

    /// A sandbox that somebody made; `started` or not, with an event or without.
    pub fn add_sandbox(&self, pod: &str, started: bool, event: bool) -> String {
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

    /// A container that runs in `sandbox`, and is logged at `log`.
    pub fn add_container(&self, sandbox: &str, name: &str, log: &Path) -> String {
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

    /// A container in `sandbox` that is to be started, with `unified` to be written then.
    pub fn add_created_container(&self, sandbox: &str, name: &str, unified: &str) -> String {
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

    /// The file that the engine logs a container to.
    pub fn engine_log(&self, id: &str) -> PathBuf {
        let directory = self.socket.with_extension("logs");
        directory.join(id).join(format!("{id}-json.log"))
    }

    /// Removes a container; with an event or behind everyone's back.
    pub fn remove(&self, id: &str, event: bool) {
        if event {
            self.state.emit("destroy", id);
        }
        self.state.containers.lock().remove(id);
    }

    /// An image that somebody loaded, without an event; an inspect of it may fail.
    pub fn add_image(&self, reference: &str, broken: bool) -> String {
        let id = format!("sha256:{}", self.state.new_id());
        let mut images = self.state.images.lock();
        images.insert(id.clone(), reference.to_owned());
        if broken {
            self.state.broken_images.lock().insert(id.clone());
        }
        id
    }

    /// Has the engine count so many bytes of layers, those that images share once.
    pub fn set_layers_size(&self, bytes: u64) {
        self.state.layers_size.store(bytes, Ordering::Relaxed);
    }

    /// Ends a container's process, and loses the event.
    pub fn end_unseen(&self, id: &str) {
        self.state.set_running(id, false);
    }

    /// Ends a container's process.
    pub fn end(&self, id: &str) {
        self.state.set_running(id, false);
        self.state.emit("die", id);
    }

    /// What a container was created with, beside its configuration.
    pub fn host_config(&self, id: &str) -> Value {
        self.state.find(id).unwrap()["HostConfig"].clone()
    }

    /// The Docker names of the containers that there are.
    pub fn names(&self) -> Vec<String> {
        let containers = self.state.containers.lock();
        containers
            .values()
            .filter_map(|c| Some(c["Name"].as_str()?.to_owned()))
            .collect()
    }

    /// How often `call` (`METHOD verb`) was made.
    pub fn calls(&self, call: &str) -> usize {
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
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..500 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not so within 5 s: {what}");
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

    /// Whether a container runs, if it is there.
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
        // Without a reader there is nobody to tell.
        let _ = self.events.lock().send(event);
    }
}
