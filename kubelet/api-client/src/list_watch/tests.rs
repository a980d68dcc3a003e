use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response};
use k8s_openapi::api::core::v1::Service;
use kube::client::{Body, Client};
use parking_lot::Mutex;
use serde_json::{Value, json};
use test_api_server::by_path::ByPath;
use tower::BoxError;

use super::*;

#[tokio::test(start_paused = true)]
async fn an_event_that_cannot_be_read_is_passed_over() {
    const PATH: &str = "/api/v1/services";
    let server = ByPath::new();
    let api = Api::<Service>::all(server.client());
    let mut changes = ListWatch::new(api, String::new());
    let ObjectChange::Replaced(services) = changes.next().await else {
        panic!("nothing was listed");
    };
    assert_eq!(services.len(), 1, "that of the cluster itself");
    let bad = json!({"metadata": {"namespace": "ns", "name": "bad"}, "spec": "nonsense"});
    server.put(PATH, bad);
    server.put(
        PATH,
        json!({"metadata": {"namespace": "ns", "name": "good"}}),
    );
    let ObjectChange::Updated(service) = changes.next().await else {
        panic!("no service came");
    };
    assert_eq!(service.metadata.name.as_deref(), Some("good"));
    assert_eq!(server.watches(), 1, "the same watch went on");
}

/// The requests that a server received, and its next responses.
#[derive(Clone)]
struct Script(Arc<Mutex<(Asked, Answers)>>);

/// Time and query of each request.
type Asked = Vec<(Instant, String)>;
/// Status code and body of each response.
type Answers = VecDeque<(u16, Value)>;

impl Script {
    fn new(answers: Vec<(u16, Value)>) -> Self {
        Self(Arc::new(Mutex::new((Vec::new(), answers.into()))))
    }

    /// The objects of a server with these responses. It does not answer once they run out. Watches
    /// end at once.
    fn changes(&self) -> ListWatch<Service> {
        let script = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let script = script.clone();
            async move {
                let answer = {
                    let mut script = script.0.lock();
                    let query = request.uri().query().unwrap_or_default().to_owned();
                    script.0.push((Instant::now(), query));
                    script.1.pop_front()
                };
                let Some((code, body)) = answer else {
                    return std::future::pending().await;
                };
                let body = Full::new(Bytes::from(body.to_string()));
                let answer = Response::builder().status(code).body(body);
                Ok::<_, BoxError>(answer.unwrap())
            }
        });
        ListWatch::new(Api::all(Client::new(service, "default")), String::new())
    }

    /// The requests, each with its delay after the previous one.
    fn asked(&self) -> Vec<(String, Duration)> {
        let script = self.0.lock();
        let mut last = script.0[0].0;
        let asked = script.0.iter().map(|(at, query)| {
            let version = query.split('&').find(|q| q.starts_with("resourceVersion="));
            let watch = if query.contains("watch=") {
                "watch "
            } else {
                ""
            };
            let what = format!("{watch}{}", version.unwrap_or_default());
            let after = *at - last;
            last = *at;
            (what, after)
        });
        asked.collect()
    }
}

fn list(version: &str) -> (u16, Value) {
    (
        200,
        json!({"metadata": {"resourceVersion": version}, "items": []}),
    )
}

fn refusal(code: u16, reason: &str, details: Value) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "status": "Failure", "code": code, "reason": reason,
        "message": "no", "details": details
    });
    (code, status)
}

/// Asks for changes until the server no longer answers.
async fn exhaust(script: &Script) -> Vec<(String, Duration)> {
    let mut changes = script.changes();
    let all = async {
        loop {
            changes.next().await;
        }
    };
    let answered = async {
        while !script.0.lock().1.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = all => {}
        () = answered => {}
    }
    script.asked()
}

fn whats(asked: &[(String, Duration)]) -> Vec<&str> {
    asked.iter().map(|(what, _)| &**what).collect()
}

#[tokio::test(start_paused = true)]
async fn lists_come_from_the_servers_cache() {
    let too_large = json!({"causes": [{"reason": "ResourceVersionTooLarge", "message": "m"}]});
    let script = Script::new(vec![
        list("7"),
        refusal(410, "Expired", json!({})),
        // The list asks for version 7 or later; the cache may be newer, or not have it yet.
        refusal(504, "Timeout", too_large),
        list("9"),
        refusal(410, "Expired", json!({})),
        refusal(410, "Expired", json!({})),
        list("11"),
    ]);
    let asked = exhaust(&script).await;
    let expected = [
        "resourceVersion=0",
        "watch resourceVersion=7",
        "resourceVersion=7",
        "",
        "watch resourceVersion=9",
        "resourceVersion=9",
        "",
    ];
    assert_eq!(whats(&asked)[..expected.len()], expected);
}

#[tokio::test(start_paused = true)]
async fn versions_that_expire_again_and_again_are_no_flood() {
    let answers = (0..20).flat_map(|_| [list("7"), refusal(410, "Expired", json!({}))]);
    let script = Script::new(answers.collect());
    let asked = exhaust(&script).await;
    let lists = asked.iter().filter(|(what, _)| !what.starts_with("watch"));
    let waited: Vec<Duration> = lists.skip(1).map(|(_, after)| *after).collect();
    assert_eq!(waited.len(), 19);
    assert!(
        waited.iter().all(|after| *after >= RETRY_BASE),
        "{waited:?}"
    );
    assert!(waited[18] >= RETRY_MAX, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn the_server_is_left_alone_for_as_long_as_it_wants() {
    let wanted = json!({"retryAfterSeconds": 45});
    let script = Script::new(vec![
        refusal(429, "TooManyRequests", wanted.clone()),
        list("7"),
        refusal(503, "ServiceUnavailable", wanted),
        refusal(410, "Expired", json!({})),
    ]);
    let asked = exhaust(&script).await;
    let expected = [
        "resourceVersion=0",
        "resourceVersion=0",
        "watch resourceVersion=7",
        "watch resourceVersion=7",
    ];
    assert_eq!(whats(&asked), expected);
    let waited = [asked[1].1, asked[3].1];
    assert!(
        waited.iter().all(|after| after.as_secs() >= 45),
        "{waited:?}"
    );
}
