//! The pods of an API server in memory, behind a client without sockets: time in tests
//! is paused.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{Method, Request, Response, body::Frame};
use k8s_openapi::api::core::v1::Pod;
use kube::client::{Body, Client};
use kubelet::clock;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tower::BoxError;

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// Pods by namespace and name, with whatever changed of them.
#[derive(Clone, Debug)]
pub struct Api {
    state: Arc<Mutex<State>>,
    /// How much there is in the log.
    changed: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct State {
    pods: BTreeMap<(String, String), Value>,
    revision: u64,
    /// Events by the revision that they made.
    log: Vec<(u64, Value)>,
    /// Changes up to here are forgotten.
    compacted: u64,
    /// Watches of earlier generations have ended.
    generation: u64,
    away: bool,
    requests: Vec<String>,
}

impl Api {
    pub fn new() -> Self {
        Self {
            state: Arc::default(),
            changed: watch::Sender::new(0),
        }
    }

    pub fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { api.answer(request).await }
        });
        Client::new(service, "default")
    }

    /// Every request so far: `PATCH default/web/status`.
    pub fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }

    /// How many requests there were that begin like this.
    pub fn count(&self, beginning: &str) -> usize {
        let requests = self.requests();
        requests.iter().filter(|r| r.starts_with(beginning)).count()
    }

    /// Lets every request fail, and ends the watches; or lets them through again.
    pub fn set_away(&self, away: bool) {
        let mut state = self.state.lock().unwrap();
        state.away = away;
        state.generation += 1;
        drop(state);
        self.wake();
    }

    /// Forgets what changed until now.
    pub fn compact(&self) {
        let mut state = self.state.lock().unwrap();
        state.compacted = state.revision;
        state.generation += 1;
        drop(state);
        self.wake();
    }

    pub fn pod(&self, name: &str) -> Option<Pod> {
        let state = self.state.lock().unwrap();
        let pod = state.pods.get(&("default".to_owned(), name.to_owned()))?;
        Some(serde_json::from_value(pod.clone()).unwrap())
    }

    pub fn phase(&self, name: &str) -> String {
        let status = self.pod(name).and_then(|pod| pod.status);
        status.and_then(|status| status.phase).unwrap_or_default()
    }

    /// The status of a condition; empty where there is none.
    pub fn condition(&self, name: &str, type_: &str) -> String {
        let status = self.pod(name).and_then(|pod| pod.status);
        let conditions = status.and_then(|status| status.conditions);
        let mut conditions = conditions.into_iter().flatten();
        let condition = conditions.find(|condition| condition.type_ == type_);
        condition.map(|c| c.status).unwrap_or_default()
    }

    /// Binds a pod to the node, as a scheduler does.
    pub fn bind(&self, mut pod: Pod) {
        pod.metadata.annotations = None;
        let mut pod = serde_json::to_value(pod).unwrap();
        pod["spec"]["nodeName"] = json!("node");
        let mut state = self.state.lock().unwrap();
        let mut pod = state.created(pod);
        let condition =
            json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": now()});
        pod["status"]["conditions"] = json!([condition]);
        state.put("ADDED", pod);
        drop(state);
        self.wake();
    }

    /// Changes a pod as somebody else would.
    pub fn edit(&self, name: &str, edit: impl FnOnce(&mut Value)) {
        let mut state = self.state.lock().unwrap();
        let mut pod = state.pods[&("default".to_owned(), name.to_owned())].clone();
        edit(&mut pod);
        state.put("MODIFIED", pod);
        drop(state);
        self.wake();
    }

    /// Deletes a pod, as `kubectl delete` does.
    pub fn delete(&self, name: &str, grace: i64) {
        self.state.lock().unwrap().delete("default", name, grace);
        self.wake();
    }

    fn wake(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    async fn answer(&self, request: Request<Body>) -> Result<Answer, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let path = parts
            .uri
            .path()
            .strip_prefix("/api/v1/")
            .unwrap_or_default();
        let query = parts.uri.query().unwrap_or_default();
        let watched = query.contains("watch=true");
        let verb = if watched {
            "WATCH"
        } else {
            parts.method.as_str()
        };
        let place = path.trim_start_matches("namespaces/").replace("/pods", "");
        let mut state = self.state.lock().unwrap();
        if state.away {
            return Err("connection refused".into());
        }
        if !path.contains("pods") {
            return Ok(refuse(404, "NotFound"));
        }
        state.requests.push(format!("{verb} {place}"));
        if parts.method == Method::GET {
            assert!(
                query.contains("fieldSelector=spec.nodeName%3Dnode"),
                "{query}"
            );
            if !watched {
                let pods: Vec<&Value> = state.pods.values().collect();
                let version = state.revision.to_string();
                let list = json!({"metadata": {"resourceVersion": version}, "items": pods});
                return Ok(respond(200, &list));
            }
            let version = query
                .split('&')
                .find_map(|q| q.strip_prefix("resourceVersion="));
            let version: u64 = version.unwrap().parse().unwrap();
            if version < state.compacted {
                return Ok(refuse(410, "Expired"));
            }
            let generation = state.generation;
            drop(state);
            return Ok(self.events(version, generation));
        }
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let mut parts_of_place = place.split('/');
        let namespace = parts_of_place.next().unwrap_or_default().to_owned();
        let name = parts_of_place.next().unwrap_or_default().to_owned();
        let key = (namespace.clone(), name.clone());
        if parts.method == Method::POST {
            let key = (
                namespace,
                body["metadata"]["name"].as_str().unwrap().to_owned(),
            );
            if state.pods.contains_key(&key) {
                return Ok(refuse(409, "AlreadyExists"));
            }
            let pod = state.created(body);
            let answer = respond(201, &state.put("ADDED", pod));
            drop(state);
            self.wake();
            return Ok(answer);
        }
        let Some(pod) = state.pods.get(&key).cloned() else {
            return Ok(refuse(404, "NotFound"));
        };
        let wanted = match parts.method {
            Method::DELETE => &body["preconditions"]["uid"],
            _ => &body["metadata"]["uid"],
        };
        if *wanted != pod["metadata"]["uid"] {
            return Ok(refuse(409, "Conflict"));
        }
        let answer = if parts.method == Method::DELETE {
            let grace = body["gracePeriodSeconds"].as_i64().unwrap();
            respond(200, &state.delete(&namespace, &name, grace))
        } else {
            assert_eq!(parts.method, Method::PATCH);
            let mut patched = pod.clone();
            merge(&mut patched["status"], &body["status"]);
            let answer = match patched == pod {
                true => pod,
                false => state.put("MODIFIED", patched),
            };
            respond(200, &answer)
        };
        drop(state);
        self.wake();
        Ok(answer)
    }

    /// The events after a version, for as long as the watch lives.
    fn events(&self, version: u64, generation: u64) -> Answer {
        let changed = self.changed.subscribe();
        let events = stream::unfold(
            (self.clone(), changed, version),
            move |(api, mut changed, mut version)| async move {
                loop {
                    {
                        let state = api.state.lock().unwrap();
                        if state.generation != generation {
                            return None;
                        }
                        let next = state.log.iter().find(|(at, _)| *at > version);
                        if let Some((at, event)) = next {
                            version = *at;
                            let line = format!("{event}\n");
                            drop(state);
                            let frame = Ok::<_, BoxError>(Frame::data(Bytes::from(line)));
                            return Some((frame, (api, changed, version)));
                        }
                    }
                    changed.changed().await.ok()?;
                }
            },
        );
        Response::new(StreamBody::new(events).boxed_unsync())
    }
}

impl State {
    fn created(&mut self, mut pod: Value) -> Value {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        let uid = pod["metadata"]["uid"].as_str().map(str::to_owned);
        let uid = uid.unwrap_or_else(|| format!("{name}-{}", self.revision + 1));
        pod["metadata"]["uid"] = json!(uid);
        pod["metadata"]["generation"] = json!(1);
        pod["metadata"]["creationTimestamp"] = json!(now());
        pod["status"] = json!({"phase": "Pending", "qosClass": "BestEffort"});
        pod
    }

    fn put(&mut self, event: &str, mut pod: Value) -> Value {
        self.revision += 1;
        pod["kind"] = json!("Pod");
        pod["apiVersion"] = json!("v1");
        pod["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let text = |field: &str| pod["metadata"][field].as_str().unwrap().to_owned();
        let key = (text("namespace"), text("name"));
        if event == "DELETED" {
            self.pods.remove(&key);
        } else {
            self.pods.insert(key, pod.clone());
        }
        let event = json!({"type": event, "object": pod});
        self.log.push((self.revision, event));
        pod
    }

    fn delete(&mut self, namespace: &str, name: &str, grace: i64) -> Value {
        let mut pod = self.pods[&(namespace.to_owned(), name.to_owned())].clone();
        let done = matches!(
            pod["status"]["phase"].as_str(),
            Some("Succeeded" | "Failed")
        );
        if grace == 0 || done {
            return self.put("DELETED", pod);
        }
        pod["metadata"]["deletionTimestamp"] = json!(now());
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        self.put("MODIFIED", pod)
    }
}

fn now() -> String {
    let now = clock::now_time().0;
    now.to_string()
}

fn respond(code: u16, body: &Value) -> Answer {
    let body = Full::new(Bytes::from(body.to_string()));
    let body = body.map_err(|never| match never {}).boxed_unsync();
    Response::builder().status(code).body(body).unwrap()
}

fn refuse(code: u16, reason: &str) -> Answer {
    let status = json!({
        "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason
    });
    respond(code, &status)
}

/// A strategic merge of what the kubelet sends of statuses.
pub fn merge(target: &mut Value, patch: &Value) {
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (field, value) in patch.as_object().unwrap() {
        let key = match field.as_str() {
            "conditions" => Some("type"),
            "podIPs" | "hostIPs" => Some("ip"),
            _ => None,
        };
        match (key, value) {
            _ if field.starts_with('$') => {}
            (_, Value::Null) => {
                target.as_object_mut().unwrap().remove(field);
            }
            (Some(key), Value::Array(elements)) => {
                let mut list = target[field].as_array().cloned().unwrap_or_default();
                for element in elements {
                    let at = list.iter().position(|old| old[key] == element[key]);
                    match (at, element["$patch"] == "delete") {
                        (Some(at), true) => drop(list.remove(at)),
                        (Some(at), false) => merge(&mut list[at], element),
                        (None, true) => {}
                        (None, false) => list.push(element.clone()),
                    }
                }
                if let Some(order) = patch[format!("$setElementOrder/{field}")].as_array() {
                    let place = |one: &Value| order.iter().position(|o| o[key] == one[key]);
                    list.sort_by_key(|one| place(one));
                }
                target[field] = list.into();
            }
            (None, Value::Object(_)) => merge(&mut target[field], value),
            _ => target[field] = value.clone(),
        }
    }
}
