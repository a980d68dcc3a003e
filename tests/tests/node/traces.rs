//! The kubelet's traces, at a collector.

use std::{sync::Arc, time::Duration};

use e2e::{images, node::Node};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    trace::v1::Span,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::UnixListener;
use tonic::{Request, Response, Status, transport::Server};

const SOON: Duration = Duration::from_secs(120);

#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        let spans = scopes.flat_map(|scope| scope.spans);
        self.0.lock().extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Whether a span with this name has one called `child` below it.
    fn has(&self, name: &str, child: &str) -> bool {
        let spans = self.0.lock();
        let parents = spans.iter().filter(|span| span.name == name);
        let ids: Vec<_> = parents.map(|span| &span.span_id).collect();
        let mut children = spans.iter().filter(|span| span.name == child);
        children.any(|span| ids.contains(&&span.parent_span_id))
    }

    fn names(&self) -> Vec<String> {
        let spans = self.0.lock();
        let mut names: Vec<_> = spans.iter().map(|span| span.name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }
}

#[tokio::test]
async fn what_a_pod_needs_of_the_runtime_is_traced() {
    let mut node = Node::with_shim().await.unwrap();
    let collector = Collector::default();
    let path = node.path("otlp.sock");
    let socket = UnixListener::bind(&path).unwrap();
    let incoming = connections(socket);
    let server = Server::builder().add_service(TraceServiceServer::new(collector.clone()));
    tokio::spawn(server.serve_with_incoming(incoming));
    let configuration = format!(
        "tracing: {{endpoint: \"unix://{}\", samplingRatePerMillion: 1000000}}\n",
        path.display()
    );
    node.start_kubelet_with(&configuration, &[]).await.unwrap();
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
            "name": "c", "image": images::BUSYBOX, "command": ["sleep", "1000"]
        }]}
    });
    node.write_manifest("web.json", &manifest.to_string())
        .unwrap();
    node.await_running("web", SOON).await.unwrap();
    node.remove_manifest("web.json").unwrap();
    let service = "runtime.v1.RuntimeService";
    for (parent, verb) in [
        ("syncPod", "RunPodSandbox"),
        ("syncPod", "CreateContainer"),
        ("syncPod", "StartContainer"),
        ("syncTerminatingPod", "StopContainer"),
    ] {
        let child = format!("{service}/{verb}");
        let told = node.await_until(&child, SOON, async |_| Ok(collector.has(parent, &child)));
        told.await
            .unwrap_or_else(|error| panic!("{error}: {:?}", collector.names()));
    }
    let page = "http://127.0.0.1:10255/pods";
    let answer = node
        .in_net(&["timeout", "5", "busybox", "wget", "-q", "-O", "-", page])
        .unwrap();
    assert!(answer.status.success(), "{answer:?}");
    let served = node.await_until("a served request", SOON, async |_| {
        Ok(collector.names().iter().any(|name| name == "/pods"))
    });
    served.await.unwrap();
    assert!(!node.kubelet_log().contains("otel.name"));
}

/// The connections to a socket.
fn connections(
    socket: UnixListener,
) -> impl futures::Stream<Item = std::io::Result<tokio::net::UnixStream>> {
    futures::stream::unfold(socket, async |socket| {
        let accepted = socket.accept().await.map(|(stream, _)| stream);
        Some((accepted, socket))
    })
}
