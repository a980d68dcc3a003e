//! Spans as a collector receives them.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use hyper::{Request, Response, StatusCode};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::transport::Server;
use tower::{ServiceExt as _, service_fn};
use tracing::{Instrument as _, subscriber::with_default};
use tracing_subscriber::{Registry, layer::SubscriberExt as _};

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// A collector in memory.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        self.0.lock().push(request.into_inner());
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    async fn listen() -> (Self, String) {
        let collector = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = Server::builder().add_service(TraceServiceServer::new(collector.clone()));
        let incoming = TcpListenerStream::new(listener);
        tokio::spawn(server.serve_with_incoming(incoming));
        (collector, address)
    }

    /// The spans, in the order of their ends.
    fn spans(&self) -> Vec<Span> {
        let requests = self.0.lock();
        let scopes = requests
            .iter()
            .flat_map(|request| &request.resource_spans)
            .flat_map(|resource| &resource.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let texts = attributes.iter().map(|attribute| {
        let value = attribute
            .value
            .as_ref()
            .and_then(|value| value.value.as_ref());
        let value = match value {
            Some(Value::StringValue(text)) => text.clone(),
            Some(Value::IntValue(number)) => number.to_string(),
            other => format!("{other:?}"),
        };
        (attribute.key.clone(), value)
    });
    texts.collect()
}

fn export(endpoint: &str, sampling_rate_per_million: u32) -> Export {
    let options = ExportOptions {
        endpoint: endpoint.to_owned(),
        sampling_rate_per_million,
    };
    Export::new(&options, "node-1").unwrap()
}

/// Runs work with an export, in a thread without another subscriber, and waits for the spans.
async fn run<F>(export: Export, work: impl FnOnce() -> F + Send + 'static)
where
    F: Future<Output = ()>,
{
    let runtime = tokio::runtime::Handle::current();
    let work = move || {
        let subscriber = Registry::default().with(export.layer());
        with_default(subscriber, || runtime.block_on(work()));
        export.finish(PATIENCE);
    };
    kubelet_host::repeatable::blocking(work).await.unwrap();
}

/// What a service received.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<String>>>);

async fn call(received: Received, status: &'static str) {
    let service = service_fn(move |request: Request<()>| {
        let traceparent = request.headers().get("traceparent");
        let text = traceparent.map(|value| value.to_str().unwrap().to_owned());
        received.0.lock().push(text.unwrap_or_default());
        let answer = Response::builder()
            .header("grpc-status", status)
            .header("grpc-message", "no such container")
            .body(());
        async move { Ok::<_, Infallible>(answer.unwrap()) }
    });
    let path = "/runtime.v1.RuntimeService/ContainerStatus";
    let request = Request::builder().uri(path).body(()).unwrap();
    TracedCalls(service).oneshot(request).await.unwrap();
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_a_sync_is_a_child_of_its_span() {
    let (collector, address) = Collector::listen().await;
    let received = Received::default();
    let calls = received.clone();
    run(export(&address, 1_000_000), move || async move {
        let pod = json!({"metadata": {"uid": "u1", "name": "web", "namespace": "default"}});
        let pod = serde_json::from_value(pod).unwrap();
        let span = pod_operation("syncPod", &pod, Some("update"));
        let work = async {
            call(calls.clone(), "0").await;
            call(calls, "5").await;
            Err::<(), _>("the pod has no network")
        };
        traced(span, work).await.unwrap_err();
    })
    .await;

    let spans = collector.spans();
    let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
    let name = "runtime.v1.RuntimeService/ContainerStatus";
    assert_eq!(names, [name, name, "syncPod"]);
    let sync = &spans[2];
    assert!(sync.parent_span_id.is_empty());
    let status = sync.status.as_ref().unwrap();
    assert_eq!(
        (status.code, status.message.as_str()),
        (2, "the pod has no network")
    );
    let attributes = texts(&sync.attributes);
    for (key, value) in [
        ("k8s.pod.uid", "u1"),
        ("k8s.pod", "default/web"),
        ("k8s.pod.name", "web"),
        ("k8s.namespace.name", "default"),
        ("k8s.pod.update_type", "update"),
    ] {
        assert_eq!(attributes[key], value, "{attributes:?}");
    }
    for (span, traceparent) in spans.iter().zip(received.0.lock().iter()) {
        assert_eq!(span.parent_span_id, sync.span_id);
        let (trace, span) = (hex(&span.trace_id), hex(&span.span_id));
        assert_eq!(*traceparent, format!("00-{trace}-{span}-01"));
    }
    let attributes = texts(&spans[1].attributes);
    assert_eq!(attributes["rpc.service"], "runtime.v1.RuntimeService");
    assert_eq!(attributes["rpc.method"], "ContainerStatus");
    assert_eq!(attributes["rpc.grpc.status_code"], "5");
    let statuses: Vec<_> = spans[..2]
        .iter()
        .map(|span| span.status.as_ref().map_or(0, |status| status.code))
        .collect();
    assert_eq!(statuses, [0, 2]);

    let requests = collector.0.lock();
    let resource = requests[0].resource_spans[0].resource.as_ref().unwrap();
    let resource = texts(&resource.attributes);
    assert_eq!(resource["service.name"], "kubelet");
    assert_eq!(resource["host.name"], "node-1");
}

/// A request with a parent, whose trace is sampled.
fn request() -> Request<()> {
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let request = Request::builder()
        .uri("/pods")
        .header("traceparent", parent);
    request.body(()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_who_is_trusted_has_requests_traced() {
    let (collector, address) = Collector::listen().await;
    run(export(&address, 0), || async {
        for is_trusted in [true, false] {
            let span = server_request(&request(), "pods", is_trusted);
            async {}.instrument(span.clone()).await;
            answered(&span, StatusCode::INTERNAL_SERVER_ERROR);
        }
    })
    .await;
    let spans = collector.spans();
    assert_eq!(spans.len(), 1, "{spans:?}");
    assert_eq!(hex(&spans[0].trace_id), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(hex(&spans[0].parent_span_id), "b7ad6b7169203331");
    assert_eq!(spans[0].name, "/pods");
    assert_eq!(
        texts(&spans[0].attributes)["http.response.status_code"],
        "500"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_may_have_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("otlp.sock");
    let collector = Collector::default();
    let server = Server::builder().add_service(TraceServiceServer::new(collector.clone()));
    let incoming = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
    tokio::spawn(server.serve_with_incoming(incoming));
    let endpoint = format!("unix://{}", path.display());
    run(export(&endpoint, 1_000_000), || async {
        drop(garbage_collection("Images/GarbageCollect").entered());
    })
    .await;
    assert_eq!(collector.spans()[0].name, "Images/GarbageCollect");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_away_delays_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let work = run(export(&address, 1_000_000), || async {
        drop(garbage_collection("Containers/GarbageCollect").entered());
    });
    tokio::time::timeout(Duration::from_secs(60), work)
        .await
        .unwrap();
}

#[test]
fn without_an_export_no_header_is_sent() {
    let mut request = request();
    request.headers_mut().clear();
    assert!(client_request(&mut request).is_disabled());
    assert!(request.headers().is_empty());
}
