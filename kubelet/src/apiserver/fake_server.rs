//! An API server of objects in memory, behind a client without sockets: time in tests is
//! paused.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{Method, Request, Response, body::Frame};
use kube::client::{Body, Client};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::BoxError;

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// Objects by the path that they are created at and their name.
#[derive(Clone, Debug)]
pub(crate) struct FakeServer {
    state: Arc<Mutex<State>>,
    /// How often something happened.
    changed: watch::Sender<usize>,
    watches: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<(String, String), Value>,
    revision: u64,
    /// Revision, path and event.
    log: Vec<(u64, String, Value)>,
    /// Watches of earlier generations have ended.
    generation: u64,
    mood: Mood,
    requests: Vec<String>,
}

/// How the server answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mood {
    #[default]
    Well,
    /// There are no connections.
    Away,
    /// Requests are never answered.
    Silent,
    /// Every request is refused.
    Forbidding,
}

/// Where the field of a selector is, and its value.
#[derive(Clone)]
struct Selected(String, String);

impl Selected {
    fn is(&self, object: &Value) -> bool {
        object.pointer(&self.0).and_then(Value::as_str) == Some(&*self.1)
    }
}

/// Counts a watch as long as it lives.
struct Watching(Arc<AtomicUsize>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl FakeServer {
    pub(crate) fn new() -> Self {
        Self {
            state: Arc::default(),
            changed: watch::Sender::new(0),
            watches: Arc::default(),
        }
    }

    pub(crate) fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { server.answer(request).await }
        });
        Client::new(service, "default")
    }

    /// Every request so far: `WATCH /api/v1/namespaces/default/secrets`.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.state.lock().requests.clone()
    }

    /// How many watches there are.
    pub(crate) fn watches(&self) -> usize {
        self.watches.load(Ordering::Relaxed)
    }

    /// Has the server answer otherwise from now on, and ends the watches.
    pub(crate) fn turn(&self, mood: Mood) {
        let mut state = self.state.lock();
        state.mood = mood;
        state.generation += 1;
        drop(state);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Puts an object, or another one in its place.
    pub(crate) fn put(&self, path: &str, object: Value) {
        self.change(path, "MODIFIED", object);
    }

    /// Takes an object away.
    pub(crate) fn remove(&self, path: &str, name: &str) {
        let object = self.object(path, name);
        let object = object.unwrap_or_else(|| json!({"metadata": {"name": name}}));
        self.change(path, "DELETED", object);
    }

    /// Has a version of a group have this resource, and no other.
    pub(crate) fn serve(&self, group: &str, version: &str, resource: &str) {
        let resource = json!({
            "name": resource, "singularName": "", "namespaced": false, "kind": "K", "verbs": []
        });
        let list = json!({
            "metadata": {"name": version}, "groupVersion": format!("{group}/{version}"),
            "resources": [resource]
        });
        self.put(&format!("/apis/{group}"), list);
    }

    /// An object as it is now.
    pub(crate) fn object(&self, path: &str, name: &str) -> Option<Value> {
        let state = self.state.lock();
        state
            .objects
            .get(&(path.to_owned(), name.to_owned()))
            .cloned()
    }

    fn change(&self, path: &str, event: &str, mut object: Value) {
        let mut state = self.state.lock();
        state.revision += 1;
        let revision = state.revision;
        object["metadata"]["resourceVersion"] = json!(revision.to_string());
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let key = (path.to_owned(), name);
        match event {
            "DELETED" => state.objects.remove(&key),
            _ => state.objects.insert(key, object.clone()),
        };
        let event = json!({"type": event, "object": object});
        state.log.push((revision, path.to_owned(), event));
        drop(state);
        self.changed.send_modify(|count| *count += 1);
    }

    async fn answer(&self, request: Request<Body>) -> Result<Answer, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let path = parts.uri.path().to_owned();
        let query = parts.uri.query().unwrap_or_default();
        let parameter = |name: &str| {
            let mut parameters = query.split('&').filter_map(|one| one.split_once('='));
            parameters.find_map(|(n, value)| (n == name).then(|| value.to_owned()))
        };
        let watched = parameter("watch").is_some();
        let verb = if watched {
            "WATCH"
        } else {
            parts.method.as_str()
        };
        let (mood, generation) = {
            let mut state = self.state.lock();
            state.requests.push(format!("{verb} {path}"));
            (state.mood, state.generation)
        };
        match mood {
            Mood::Well => {}
            Mood::Away => return Err("connection refused".into()),
            Mood::Silent => std::future::pending().await,
            Mood::Forbidding => return Ok(refuse(403, "Forbidden", "not for this node", "", "")),
        }
        let selected = parameter("fieldSelector").map(|selector| {
            let encoded = [("%3D", "="), ("%3A", ":"), ("%2F", "/")];
            let selector = encoded.iter().fold(selector, |text, (code, character)| {
                text.replace(code, character)
            });
            let (field, value) = selector.split_once('=').unwrap();
            Selected(format!("/{}", field.replace('.', "/")), value.to_owned())
        });
        if watched {
            let version = parameter("resourceVersion").unwrap().parse().unwrap();
            return Ok(self.events(path, selected, version, generation));
        }
        if parts.method != Method::GET {
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            return Ok(match path.strip_suffix("/token") {
                Some(account) => self.token(account, body),
                None => self.write(&parts.method, &path, body),
            });
        }
        let state = self.state.lock();
        if selected.is_some() || path.ends_with("/services") {
            let is_selected = |object: &Value| selected.as_ref().is_none_or(|one| one.is(object));
            let objects = state.objects.iter();
            let listed = objects.filter(|(key, object)| key.0 == path && is_selected(object));
            let listed: Vec<&Value> = listed.map(|(_, object)| object).collect();
            let version = state.revision.to_string();
            let list = json!({"metadata": {"resourceVersion": version}, "items": listed});
            return Ok(respond(200, &list));
        }
        Ok(match state.objects.get(&key(&path)) {
            Some(object) => respond(200, object),
            None => refuse(404, "NotFound", "no such object", "", &path),
        })
    }

    /// A token for the audience that it is asked for. No pod is known.
    fn token(&self, account: &str, mut request: Value) -> Answer {
        let (collection, name) = key(account);
        if self.object(&collection, &name).is_none() {
            return refuse(404, "NotFound", "no account", "serviceaccounts", &name);
        }
        if let Some(pod) = request["spec"]["boundObjectRef"]["name"].as_str() {
            return refuse(404, "NotFound", "no such pod", "pods", pod);
        }
        let audience = request["spec"]["audiences"][0].clone();
        request["status"] =
            json!({"token": audience, "expirationTimestamp": "2030-01-01T00:00:00Z"});
        respond(201, &request)
    }

    fn write(&self, method: &Method, path: &str, mut body: Value) -> Answer {
        let path = path.strip_suffix("/status").unwrap_or(path);
        let (collection, name) = match *method {
            Method::POST => {
                let name = body["metadata"]["name"].as_str().unwrap();
                (path.to_owned(), name.to_owned())
            }
            _ => key(path),
        };
        let known = self.object(&collection, &name);
        match (method, known) {
            (&Method::POST, Some(_)) => return refuse(409, "AlreadyExists", "exists", "", &name),
            (&Method::POST, None) => {}
            (_, None) => return refuse(404, "NotFound", "no such object", "", &name),
            (&Method::PUT, Some(known)) => {
                let version = &body["metadata"]["resourceVersion"];
                if *version != known["metadata"]["resourceVersion"] {
                    return refuse(409, "Conflict", "changed meanwhile", "", &name);
                }
            }
            (&Method::PATCH, Some(mut known)) => {
                merge(&mut known, body);
                body = known;
            }
            (_, Some(known)) => {
                self.remove(&collection, &name);
                return respond(200, &known);
            }
        }
        self.put(&collection, body);
        respond(200, &self.object(&collection, &name).unwrap())
    }

    /// The events after a version, for as long as the watch lives.
    fn events(
        &self,
        path: String,
        selected: Option<Selected>,
        version: u64,
        generation: u64,
    ) -> Answer {
        self.watches.fetch_add(1, Ordering::Relaxed);
        let watching = Watching(Arc::clone(&self.watches));
        let server = self.clone();
        let changed = self.changed.subscribe();
        let events = stream::unfold(version, move |mut version| {
            let (server, path, selected) = (server.clone(), path.clone(), selected.clone());
            let mut changed = changed.clone();
            let _ = &watching;
            async move {
                loop {
                    changed.mark_unchanged();
                    let next = {
                        let state = server.state.lock();
                        if state.generation != generation {
                            return None;
                        }
                        let next = state.log.iter().find(|(at, of, event)| {
                            let object = &event["object"];
                            *at > version
                                && *of == path
                                && selected.as_ref().is_none_or(|one| one.is(object))
                        });
                        next.map(|(at, _, event)| (*at, format!("{event}\n")))
                    };
                    if let Some((at, line)) = next {
                        version = at;
                        return Some((Ok::<_, BoxError>(Frame::data(Bytes::from(line))), version));
                    }
                    changed.changed().await.ok()?;
                }
            }
        });
        Response::new(StreamBody::new(events).boxed_unsync())
    }
}

/// Collection and name of a path.
fn key(path: &str) -> (String, String) {
    let (collection, name) = path.rsplit_once('/').unwrap();
    (collection.to_owned(), name.to_owned())
}

/// A JSON merge patch.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(fields) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (field, value) in fields {
        match value {
            Value::Null => drop(target.as_object_mut().unwrap().remove(&field)),
            value => merge(&mut target[field], value),
        }
    }
}

fn respond(code: u16, body: &Value) -> Answer {
    let body = Full::new(Bytes::from(body.to_string()));
    let body = body.map_err(|never| match never {}).boxed_unsync();
    Response::builder().status(code).body(body).unwrap()
}

fn refuse(code: u16, reason: &str, message: &str, kind: &str, name: &str) -> Answer {
    let status = json!({
        "kind": "Status", "status": "Failure", "code": code, "reason": reason,
        "message": message, "details": {"kind": kind, "name": name}
    });
    respond(code, &status)
}
