//! The fake engine's API: requests and responses.

use std::{
    convert::Infallible,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
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
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixListener,
    task::JoinHandle,
};
use tokio_stream::wrappers::BroadcastStream;

use super::{Hang, NEVER, PAUSE, PAUSE_ID, State};

type Body = BoxBody<Bytes, Infallible>;

/// `/etc/passwd` of every image.
const PASSWD: &str = "web:x:1000:1001::/:\n";

/// Serves `socket` until the task is aborted.
pub(super) fn serve(socket: &PathBuf, state: Arc<State>) -> JoinHandle<()> {
    let listener = UnixListener::bind(socket).unwrap();
    tokio::spawn(async move {
        // Dropped with this task, which closes the connections.
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
            "Runtimes": *state.runtimes.lock(),
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
            match state.running(id) {
                None => missing(id),
                Some(true) => reply(StatusCode::NOT_MODIFIED, ""),
                Some(false) if state.removing.lock().contains(*id) => message(
                    StatusCode::CONFLICT,
                    "container is marked for removal and cannot be started",
                ),
                Some(false) => {
                    state.set_running(id, true);
                    state.emit("start", id);
                    empty()
                }
            }
        }
        ("POST", ["containers", id, "stop"]) => {
            state.wait_while_hanging(&Hang::Stop).await;
            match state.running(id) {
                None => missing(id),
                Some(false) => reply(StatusCode::NOT_MODIFIED, ""),
                Some(true) => {
                    state.set_running(id, false);
                    state.emit("die", id);
                    empty()
                }
            }
        }
        ("POST", ["containers", id, "kill"]) => match state.running(id) {
            None => missing(id),
            Some(false) => message(StatusCode::CONFLICT, "container is not running"),
            Some(true) => {
                state.set_running(id, false);
                state.emit("die", id);
                empty()
            }
        },
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
            if !state.removing.lock().insert((*id).to_owned()) {
                let text = format!("removal of container {id} is already in progress");
                return Ok(message(StatusCode::CONFLICT, &text));
            }
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

/// The command of every exec: writes its input back once the input has ended.
async fn cat(streams: OnUpgrade) {
    let mut streams = TokioIo::new(streams.await.unwrap());
    let mut read = Vec::new();
    streams.read_to_end(&mut read).await.unwrap();
    streams.write_all(&read).await.unwrap();
    streams.shutdown().await.unwrap();
}

impl State {
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

    /// Lists containers with a label whose key is in the query, or, with `ancestor`, those of an
    /// image.
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

/// A boxed body must be `Sync`, although it is never polled concurrently.
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
