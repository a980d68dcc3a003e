//! A fake Docker engine: just enough of the API on a unix socket, with calls that can
//! be made to hang, an event stream that can be broken, and changes behind its back.

#![allow(dead_code, reason = "not every test uses all of it")]

mod by_hand;
pub mod certificates;
pub mod node;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    convert::Infallible,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::{BodyExt as _, StreamBody, combinators::BoxBody};
use hyper::{
    Request, Response, StatusCode,
    body::{Frame, Incoming},
    service::service_fn,
    upgrade::OnUpgrade,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixListener,
    sync::{broadcast, watch},
    task::JoinHandle,
};
use tokio_stream::wrappers::BroadcastStream;

type Body = BoxBody<Bytes, Infallible>;

/// What the first process of a container is said to be; no process has it.
const PID: u32 = u32::MAX >> 1;
const PAUSE: &str = "dockershim.local/pause:1";
const PAUSE_ID: &str = "sha256:aaaa000000000000000000000000000000000000000000000000000000000000";
/// Of every image.
const PASSWD: &str = "web:x:1000:1001::/:\n";
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
    calls: Mutex<HashMap<String, usize>>,
    next: Mutex<u64>,
    /// The first process of what is started.
    pid: AtomicU32,
    /// Of all images, in bytes.
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
            calls: Mutex::default(),
            next: Mutex::default(),
            pid: AtomicU32::new(PID),
            layers_size: AtomicU64::new(0),
        });
        let server = serve(&socket, Arc::clone(&state));
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
        self.server = serve(&self.socket, Arc::clone(&self.state));
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

fn serve(socket: &PathBuf, state: Arc<State>) -> JoinHandle<()> {
    let listener = UnixListener::bind(socket).unwrap();
    tokio::spawn(async move {
        // Dropped with this task, which ends the connections.
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let state = Arc::clone(&state);
            connections.spawn(async move {
                let service = service_fn(move |request| answer(Arc::clone(&state), request));
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .with_upgrades()
                    .await;
            });
        }
    })
}

async fn answer(
    state: Arc<State>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let method = request.method().to_string();
    let path = request.uri().path().to_owned();
    let asked = request.uri().query().unwrap_or_default().to_owned();
    let name = query(&asked, "name");
    let streams = hyper::upgrade::on(&mut request);
    let body = request
        .into_body()
        .collect()
        .await
        .map(|b| b.to_bytes())
        .unwrap_or_default();
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let parts = match parts.first() {
        Some(version) if version.starts_with("v1.") => &parts[1..],
        _ => &parts[..],
    };
    let verb = if parts[0] == "containers" {
        parts.last().copied().unwrap_or_default()
    } else {
        parts[0]
    };
    *state
        .calls
        .lock()
        .entry(format!("{method} {verb}"))
        .or_default() += 1;
    Ok(match (method.as_str(), parts) {
        ("GET", ["_ping"]) => ok(json!("OK")),
        ("GET", ["info"]) => ok(json!({
            "ServerVersion": "99.0",
            "CgroupDriver": "cgroupfs",
            "DockerRootDir": "/",
            "Runtimes": { "runc": {} },
            "SystemTime": "2026-01-01T00:00:00Z",
        })),
        ("GET", ["events"]) => stream(&state),
        ("POST", ["exec", _, "start"]) => {
            tokio::spawn(cat(streams));
            reply(StatusCode::SWITCHING_PROTOCOLS, "")
        }
        ("GET", ["system", "df"]) => {
            state.wait_while_hanging(&Hang::DiskUsage).await;
            assert_eq!(query(&asked, "type"), "image");
            let size = state.layers_size.load(Ordering::Relaxed);
            ok(json!({ "LayersSize": size, "Images": [], "BuildCache": null }))
        }
        ("POST", ["images", "load"]) => {
            let pause = (PAUSE_ID.to_owned(), PAUSE.to_owned());
            state.images.lock().extend([pause]);
            ok(json!({ "stream": "Loaded" }))
        }
        ("GET", ["images", "json"]) => {
            state.wait_while_hanging(&Hang::Images).await;
            let images = state.images.lock();
            let line = |(id, reference): (&String, &String)| {
                json!({
                    "Id": id, "ParentId": "", "RepoTags": [reference], "RepoDigests": [],
                    "Created": 0, "Size": 1000, "SharedSize": -1, "Labels": null,
                    "Containers": -1,
                })
            };
            ok(images.iter().map(line).collect())
        }
        ("GET", ["images", name @ .., "json"]) => state.inspect_image(&name.join("/")),
        ("GET", ["containers", "json"]) => {
            state.wait_while_hanging(&Hang::Containers).await;
            ok(state.list(&asked))
        }
        ("POST", ["containers", "create"]) => state.create(&name, &body),
        ("GET", ["containers", id, "json"]) => {
            state
                .wait_while_hanging(&Hang::Inspect((*id).to_owned()))
                .await;
            match state.find(id) {
                Some(container) => ok(container),
                None => missing(id),
            }
        }
        ("GET", ["containers", id, "archive"]) if state.find(id).is_some() => {
            let file = query(&asked, "path");
            match file.rsplit("%2F").next() {
                Some("passwd") => reply_bytes(StatusCode::OK, tar_of("passwd", PASSWD)),
                _ => missing(&file),
            }
        }
        ("POST", ["containers", id, "start"]) => {
            state.wait_while_hanging(&Hang::Start).await;
            state.set_running(id, true);
            state.emit("start", id);
            empty()
        }
        ("POST", ["containers", id, "stop"]) => {
            state.set_running(id, false);
            state.emit("die", id);
            empty()
        }
        ("POST", ["containers", _, "checkpoints"]) => {
            let wanted: Value = serde_json::from_slice(&body).unwrap();
            let text = |key: &str| wanted[key].as_str().unwrap();
            let directory = PathBuf::from(text("CheckpointDir")).join(text("CheckpointID"));
            std::fs::create_dir(&directory).unwrap();
            std::fs::write(directory.join("pages-1.img"), "memory").unwrap();
            reply(StatusCode::CREATED, "")
        }
        ("DELETE", ["containers", _, "checkpoints", _]) => empty(),
        ("DELETE", ["containers", id]) => {
            state
                .wait_while_hanging(&Hang::Remove((*id).to_owned()))
                .await;
            state.emit("destroy", id);
            match state.containers.lock().remove(*id) {
                Some(_) => empty(),
                None => missing(id),
            }
        }
        _ => message(
            StatusCode::NOT_IMPLEMENTED,
            "the fake engine has no such call",
        ),
    })
}

/// The command that every exec is: what it reads it writes, once its input has ended.
async fn cat(streams: OnUpgrade) {
    let mut streams = TokioIo::new(streams.await.unwrap());
    let mut read = Vec::new();
    streams.read_to_end(&mut read).await.unwrap();
    streams.write_all(&read).await.unwrap();
    streams.shutdown().await.unwrap();
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

    fn create(&self, name: &str, body: &Bytes) -> Response<Body> {
        let taken = self
            .containers
            .lock()
            .values()
            .any(|c| c["Name"] == format!("/{name}"));
        if taken {
            return message(StatusCode::CONFLICT, "the name is already in use");
        }
        let body: Value = serde_json::from_slice(body).unwrap();
        let image = body["Image"].as_str().unwrap();
        if !self.images.lock().contains_key(image) {
            return message(StatusCode::NOT_FOUND, "No such image");
        }
        let id = self.new_id();
        self.insert(&id, name, &body["Labels"], body["HostConfig"].clone());
        if let Some(container) = self.containers.lock().get_mut(&id) {
            container["Image"] = body["Image"].clone();
        }
        self.emit("create", &id);
        ok(json!({ "Id": id, "Warnings": [] }))
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

    fn find(&self, id_or_name: &str) -> Option<Value> {
        let containers = self.containers.lock();
        let by_name = || {
            containers
                .values()
                .find(|c| c["Name"] == format!("/{id_or_name}"))
        };
        containers.get(id_or_name).or_else(by_name).cloned()
    }

    /// What has a label whose key is in the query.
    fn list(&self, asked: &str) -> Value {
        let of_image = asked.contains("ancestor");
        let is_asked = |c: &&Value| {
            if of_image {
                let hex = c["Image"]
                    .as_str()
                    .and_then(|image| image.rsplit(':').next());
                return hex.is_some_and(|hex| asked.contains(hex));
            }
            let labels = c["Config"]["Labels"].as_object();
            labels.is_some_and(|labels| labels.keys().any(|key| asked.contains(key)))
        };
        let summary = |c: &Value| {
            let running = c["State"]["Running"] == json!(true);
            let fresh = c["State"]["StartedAt"] == json!(NEVER);
            let state = if running {
                "running"
            } else if fresh {
                "created"
            } else {
                "exited"
            };
            json!({
                "Id": c["Id"], "Names": [c["Name"]], "Image": c["Image"], "ImageID": c["Image"],
                "Created": 1_767_225_600, "State": state, "Labels": c["Config"]["Labels"],
            })
        };
        let containers = self.containers.lock();
        containers.values().filter(is_asked).map(summary).collect()
    }

    fn inspect_image(&self, name: &str) -> Response<Body> {
        let name = name.replace("%2F", "/").replace("%3A", ":");
        let images = self.images.lock();
        let named = |(id, reference): &(&String, &String)| **id == name || **reference == name;
        let Some((id, reference)) = images.iter().find(named) else {
            return message(StatusCode::NOT_FOUND, "No such image");
        };
        if self.broken_images.lock().contains(id) {
            return message(StatusCode::INTERNAL_SERVER_ERROR, "layer does not exist");
        }
        ok(json!({
            "Id": id, "RepoTags": [reference], "Size": 1000, "Config": { "User": "65535" },
        }))
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

    async fn wait_while_hanging(&self, what: &Hang) {
        let mut hanging = self.hanging.subscribe();
        let _ = hanging.wait_for(|hanging| !hanging.contains(what)).await;
    }
}

fn query(query: &str, key: &str) -> String {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .find(|(k, _)| *k == key)
        .map(|(_, v)| v.to_owned())
        .unwrap_or_default()
}

fn stream(state: &State) -> Response<Body> {
    let events = BroadcastStream::new(state.events.lock().subscribe());
    let lines = events.filter_map(async |event| {
        let line = format!("{}\n", event.ok()?);
        Some(Ok(Frame::data(Bytes::from(line))))
    });
    Response::new(BoxBody::new(StreamBody::new(SyncStream(Box::pin(lines)))))
}

/// A boxed body must be `Sync`, though nobody polls it from two sides.
struct SyncStream<T>(std::pin::Pin<Box<dyn futures::Stream<Item = T> + Send + Sync>>);

impl<T> futures::Stream for SyncStream<T> {
    type Item = T;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<T>> {
        self.0.as_mut().poll_next(context)
    }
}

fn ok(value: Value) -> Response<Body> {
    reply(StatusCode::OK, &value.to_string())
}

fn empty() -> Response<Body> {
    reply(StatusCode::NO_CONTENT, "")
}

fn missing(id: &str) -> Response<Body> {
    message(StatusCode::NOT_FOUND, &format!("No such container: {id}"))
}

fn message(status: StatusCode, text: &str) -> Response<Body> {
    reply(status, &json!({ "message": text }).to_string())
}

fn tar_of(name: &str, content: &str) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_size(content.len() as u64);
    let mut archive = tar::Builder::new(Vec::new());
    let appended = archive.append_data(&mut header, name, content.as_bytes());
    appended.unwrap();
    archive.into_inner().unwrap()
}

fn reply(status: StatusCode, body: &str) -> Response<Body> {
    reply_bytes(status, body.as_bytes().to_vec())
}

fn reply_bytes(status: StatusCode, body: Vec<u8>) -> Response<Body> {
    let body = http_body_util::Full::new(Bytes::from(body));
    Response::builder()
        .status(status)
        .header("api-version", "1.44")
        .body(body.boxed())
        .unwrap()
}
