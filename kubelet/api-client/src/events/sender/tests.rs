use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, Response};
use k8s_openapi::api::core::v1::Pod;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::{task::JoinHandle, time::Instant};
use tower::BoxError;

use super::*;
use crate::events::{EventRecorder, Subject};

const SECOND: Duration = Duration::from_secs(1);

/// The events of an API server.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    events: BTreeMap<String, Value>,
    /// Method and time of each.
    requests: Vec<(Method, Instant)>,
    is_away: bool,
    refusal: Option<Value>,
}

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { server.answer(request).await }
        });
        Client::new(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Result<Response<Full<Bytes>>, BoxError> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let body: Value = serde_json::from_slice(&body)?;
        let mut state = self.0.lock();
        state.requests.push((head.method.clone(), Instant::now()));
        if state.is_away {
            return Err("connection refused".into());
        }
        if let Some(refusal) = &state.refusal {
            return Ok(respond(403, refusal));
        }
        let place = head.uri.path().strip_prefix("/api/v1/namespaces/").unwrap();
        let (namespace, name) = place.split_once("/events").unwrap();
        assert_eq!(namespace, "ns");
        if head.method == Method::POST {
            let name = body["metadata"]["name"].as_str().unwrap().to_owned();
            state.events.insert(name, body.clone());
            return Ok(respond(201, &body));
        }
        assert_eq!(head.method, Method::PATCH);
        assert_eq!(
            head.headers["content-type"],
            "application/strategic-merge-patch+json"
        );
        let Some(event) = state.events.get_mut(name.trim_start_matches('/')) else {
            return Ok(respond(404, &failure(404, "NotFound")));
        };
        for (field, value) in body.as_object().unwrap() {
            event[field] = value.clone();
        }
        Ok(respond(200, event))
    }

    /// Reasons and counts, in order of creation.
    fn counts(&self) -> Vec<(String, i64)> {
        let state = self.0.lock();
        // The names contain the time of creation.
        let counts = state.events.values().map(|event| {
            let reason = event["reason"].as_str().unwrap().to_owned();
            (reason, event["count"].as_i64().unwrap())
        });
        counts.collect()
    }

    fn requests(&self) -> Vec<(Method, Instant)> {
        self.0.lock().requests.clone()
    }

    fn set_away(&self, is_away: bool) {
        self.0.lock().is_away = is_away;
    }
}

fn failure(code: u16, reason: &str) -> Value {
    json!({
        "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason
    })
}

fn respond(code: u16, body: &Value) -> Response<Full<Bytes>> {
    let body = Full::new(Bytes::from(body.to_string()));
    Response::builder().status(code).body(body).unwrap()
}

fn start(server: &Server) -> (EventRecorder, JoinHandle<()>) {
    start_until(server, CancellationToken::new())
}

fn start_until(server: &Server, cancel: CancellationToken) -> (EventRecorder, JoinHandle<()>) {
    let (recorder, queue) = EventRecorder::new("node");
    let sender = EventSender::new(server.client(), queue);
    (recorder, tokio::spawn(sender.run(cancel)))
}

fn tell(recorder: &EventRecorder, reason: &str) {
    let metadata = json!({"name": "p", "namespace": "ns", "uid": "u"});
    let pod: Pod = serde_json::from_value(json!({"metadata": metadata})).unwrap();
    recorder.normal(Subject::Pod(&pod), reason, "m");
}

#[tokio::test(start_paused = true)]
async fn what_repeats_is_counted_where_it_is() {
    let server = Server::default();
    let (recorder, sender) = start(&server);
    for reason in ["Pulled", "BackOff", "BackOff", "BackOff"] {
        tell(&recorder, reason);
        sleep(SECOND).await;
    }
    let counts = [("Pulled".to_owned(), 1), ("BackOff".to_owned(), 3)];
    assert_eq!(server.counts(), counts);
    // An event that the API server has deleted is created again.
    server.0.lock().events = BTreeMap::new();
    tell(&recorder, "BackOff");
    drop(recorder);
    sender.await.unwrap();
    assert_eq!(server.counts(), [("BackOff".to_owned(), 4)]);
    let state = server.0.lock();
    let event = state.events.values().next().unwrap();
    let seconds = |field: &str| {
        let time = event[field].as_str().unwrap();
        time.parse::<jiff::Timestamp>().unwrap().as_second()
    };
    assert!((2..=4).contains(&(seconds("lastTimestamp") - seconds("firstTimestamp"))));
    let Some(Value::Object(object)) = event.get("involvedObject") else {
        panic!("{event}");
    };
    let expected = json!({
        "apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "ns", "uid": "u"
    });
    assert_eq!(Map::clone(object), *expected.as_object().unwrap());
}

#[tokio::test(start_paused = true)]
async fn events_wait_for_the_api_server() {
    let server = Server::default();
    server.set_away(true);
    let (recorder, sender) = start(&server);
    for reason in ["Pulling", "Pulled", "Created"] {
        tell(&recorder, reason);
    }
    sleep(SECOND * 60).await;
    assert_eq!(server.counts(), []);
    let asked = server.requests();
    assert!((6..=8).contains(&asked.len()), "{asked:?}");
    assert!(asked[1].1 - asked[0].1 <= RETRY_PERIOD);
    for pair in asked[1..].windows(2) {
        assert_eq!((pair[1].1 - pair[0].1).as_secs(), RETRY_PERIOD.as_secs());
    }
    server.set_away(false);
    drop(recorder);
    sender.await.unwrap();
    let counts = server.counts();
    let reasons: Vec<&str> = counts.iter().map(|(reason, _)| reason.as_str()).collect();
    assert_eq!(reasons, ["Pulling", "Pulled", "Created"]);
}

#[tokio::test(start_paused = true)]
async fn an_event_is_given_up_after_a_while() {
    let server = Server::default();
    server.set_away(true);
    let (recorder, sender) = start(&server);
    tell(&recorder, "Pulling");
    drop(recorder);
    sender.await.unwrap();
    assert_eq!(server.requests().len(), 12);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_not_tried_again() {
    let server = Server::default();
    server.0.lock().refusal = Some(failure(403, "Forbidden"));
    let (recorder, sender) = start(&server);
    tell(&recorder, "Pulling");
    tell(&recorder, "Pulled");
    drop(recorder);
    sender.await.unwrap();
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_stopping_kubelet_sends_what_it_has_recorded() {
    let (server, cancel) = (Server::default(), CancellationToken::new());
    let (recorder, sender) = start_until(&server, cancel.clone());
    tell(&recorder, "Pulling");
    tell(&recorder, "Pulled");
    cancel.cancel();
    sender.await.unwrap();
    let sent = server.counts().into_iter().map(|(reason, _)| reason);
    assert_eq!(sent.collect::<Vec<_>>(), ["Pulling", "Pulled"]);
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_stops_within_a_second_without_the_api_server() {
    let (server, cancel) = (Server::default(), CancellationToken::new());
    server.set_away(true);
    let (recorder, sender) = start_until(&server, cancel.clone());
    tell(&recorder, "Pulling");
    sleep(SECOND * 60).await;
    let cancelled = Instant::now();
    cancel.cancel();
    sender.await.unwrap();
    assert_eq!(cancelled.elapsed().as_secs(), SECOND.as_secs());
}
