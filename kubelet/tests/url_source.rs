//! Updates from the URL source when its document appears and changes.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Redirect},
    routing::get,
};
use kubelet::sources::{
    http::UrlSource,
    pod_config::PodConfig,
    update::{PodOperation, PodUpdate, Source},
};
use kubelet_pod_spec::identity;
use parking_lot::Mutex;
use tokio::{
    net::TcpListener,
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: web:1}]}\n";

/// A server with one document, and a source that polls it.
struct Served {
    document: Arc<Mutex<(u16, String)>>,
    requests: Arc<Mutex<Vec<HeaderMap>>>,
    config: PodConfig,
    updates: mpsc::Receiver<PodUpdate>,
    _cancel: DropGuard,
}

impl Served {
    async fn start(status: u16, body: &str) -> Self {
        let document = Arc::new(Mutex::new((status, body.to_owned())));
        let requests = Arc::<Mutex<Vec<HeaderMap>>>::default();
        let (answer, seen) = (Arc::clone(&document), Arc::clone(&requests));
        let handler = move |headers: HeaderMap| async move {
            seen.lock().push(headers);
            let (status, body) = answer.lock().clone();
            (StatusCode::from_u16(status).unwrap(), body).into_response()
        };
        let routes = Router::new()
            .route("/old", get(|| async { Redirect::temporary("/pods?x=1") }))
            .route("/pods", get(handler));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });

        let (config, updates) = PodConfig::new();
        let cancel = CancellationToken::new();
        let source = UrlSource {
            url: format!("http://{address}/old"),
            headers: [("X-Node".to_owned(), vec!["a".to_owned(), "b".to_owned()])].into(),
            node_name: "node".to_owned(),
            check_frequency: Duration::from_millis(20),
        };
        tokio::spawn(source.run(config.source(Source::Http), cancel.clone()));
        Self {
            document,
            requests,
            config,
            updates,
            _cancel: cancel.drop_guard(),
        }
    }

    fn serve(&self, status: u16, body: &str) {
        *self.document.lock() = (status, body.to_owned());
    }

    async fn next(&mut self) -> PodUpdate {
        let update = timeout(Duration::from_secs(60), self.updates.recv()).await;
        update
            .expect("an update in time")
            .expect("a source that runs")
    }

    /// Waits for several polls; they must cause no update.
    async fn expect_silence(&mut self) {
        let before = self.requests.lock().len();
        while self.requests.lock().len() < before + 3 {
            sleep(Duration::from_millis(10)).await;
        }
        assert!(self.updates.try_recv().is_err());
    }
}

#[tokio::test]
async fn a_document_becomes_pods_of_this_node() {
    let mut served = Served::start(200, POD).await;
    let update = served.next().await;
    assert_eq!(
        (update.operation, update.source),
        (PodOperation::Add, Source::Http)
    );
    let pod = &update.pods[0];
    assert_eq!(identity::full_name(pod), "web-node_default");
    assert_eq!(
        identity::annotation(pod, identity::CONFIG_SOURCE),
        Some("http")
    );
    let uid = pod.metadata.uid.as_deref().unwrap();
    assert_eq!(identity::annotation(pod, identity::CONFIG_HASH), Some(uid));
    let spec = pod.spec.as_ref().unwrap();
    assert!(spec.tolerations.as_deref().unwrap_or_default().is_empty());
    assert!(served.config.seen_all_sources());
    let headers = served.requests.lock()[0].clone();
    let values: Vec<_> = headers.get_all("x-node").iter().collect();
    assert_eq!(values, ["a", "b"]);

    // Unchanged content causes no update; a change does.
    served.expect_silence().await;
    served.serve(200, &POD.replace("web:1", "web:2"));
    assert_eq!(served.next().await.operation, PodOperation::Remove);
    assert_eq!(served.next().await.operation, PodOperation::Add);
}

#[tokio::test]
async fn what_is_no_good_changes_nothing() {
    let mut served = Served::start(200, POD).await;
    served.next().await;
    let list = format!(
        r#"{{"apiVersion":"v1","kind":"PodList","items":[{},{{"metadata":{{"name":"bad"}}}}]}}"#,
        r#"{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#
    );
    for (status, body) in [
        (500, POD),
        (404, ""),
        (200, "kind: Service\napiVersion: v1\n"),
        (200, "not: [yaml"),
        (200, &*list),
    ] {
        served.serve(status, body);
        served.expect_silence().await;
    }
    served.serve(200, POD);
    served.expect_silence().await;
    assert!(served.config.seen_all_sources());
}

#[tokio::test]
async fn nothing_is_no_pods() {
    let mut served = Served::start(500, "").await;
    served.expect_silence().await;
    assert!(!served.config.seen_all_sources(), "nothing is known yet");
    let list = |items: &str| format!(r#"{{"apiVersion":"v1","kind":"PodList","items":[{items}]}}"#);
    let items = ["a", "b"].map(|name| {
        format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{"containers":[{{"name":"c","image":"i"}}]}}}}"#)
    });
    served.serve(200, &list(&items.join(",")));
    assert_eq!(served.next().await.pods.len(), 2);
    served.serve(200, &list(""));
    let update = served.next().await;
    assert_eq!(
        (update.operation, update.pods.len()),
        (PodOperation::Remove, 2)
    );
    served.serve(200, POD);
    assert_eq!(served.next().await.operation, PodOperation::Add);
    served.serve(200, "");
    assert_eq!(served.next().await.operation, PodOperation::Remove);
}

/// Redirects every request to `to`; returns the address and the request headers.
async fn redirect(to: String) -> (SocketAddr, Arc<Mutex<Vec<HeaderMap>>>) {
    let requests = Arc::<Mutex<Vec<HeaderMap>>>::default();
    let seen = Arc::clone(&requests);
    let handler = move |headers: HeaderMap| async move {
        seen.lock().push(headers);
        Redirect::temporary(&to)
    };
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes = Router::new().fallback(handler);
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    (address, requests)
}

#[tokio::test]
async fn headers_stay_on_the_host_that_they_were_given_for() {
    // From one host to another and back: once a redirect left the host, no later request has the
    // headers.
    let (last, at_last) = redirect("/again".to_owned()).await;
    let (elsewhere, at_elsewhere) = redirect(format!("http://127.0.0.1:{}/", last.port())).await;
    let (second, at_second) = redirect(format!("http://127.0.0.2:{}/", elsewhere.port())).await;
    let (first, at_first) = redirect(format!("http://127.0.0.1:{}/", second.port())).await;
    let (config, _updates) = PodConfig::new();
    let cancel = CancellationToken::new();
    let _cancel = cancel.clone().drop_guard();
    let header = |name: &str| (name.to_owned(), vec!["secret".to_owned()]);
    let source = UrlSource {
        url: format!("http://127.0.0.1:{}/", first.port()),
        headers: ["Authorization", "Cookie", "X-Token"].map(header).into(),
        node_name: "node".to_owned(),
        check_frequency: Duration::from_secs(60),
    };
    tokio::spawn(source.run(config.source(Source::Http), cancel));
    let asked = async {
        while at_last.lock().len() < 5 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(60), asked).await.unwrap();
    for (requests, sent) in [
        (at_first, true),
        (at_second, true),
        (at_elsewhere, false),
        (at_last, false),
    ] {
        for headers in &*requests.lock() {
            for name in ["authorization", "cookie", "x-token"] {
                assert_eq!(headers.contains_key(name), sent, "{name} in {headers:?}");
            }
        }
    }
}
