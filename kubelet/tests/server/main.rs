//! The kubelet's servers as people and tools use them.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod health;

use std::{path::Path, sync::Arc, time::Duration};

use fake_runtime::FakeRuntime;
use k8s_openapi::api::core::v1::Pod;
use kubelet::{
    gc_command::{self, GcOptions},
    logs_command::{self, LogsError, LogsOptions},
    status_command::{self, OutputFormat, StatusOptions},
};
use kubelet_cri_client::CriClient;
use kubelet_host::local_node::LocalNode;
use kubelet_logs::{LogError, LogOptions, LogParts};
use kubelet_metrics::Exposition;
use kubelet_resource_analyzer::Usages;
use kubelet_server::{
    ClusterDependencies, HealthCheck, NodeView, Servers,
    options::ServerOptions,
    reports::{EvictedPod, GarbageContainer, GarbageImage, GarbageReport, PressureReport},
    socket_path,
};
use kubelet_stats::{Depth, NodeStats, StatsError};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
    time,
};
use tokio_util::sync::CancellationToken;

/// A node with two pods.
#[derive(Clone)]
struct Node {
    health: Result<(), String>,
    cri: CriClient,
}

impl NodeView for Node {
    fn pressure(&self) -> PressureReport {
        PressureReport {
            conditions: vec!["DiskPressure".to_owned()],
            evicted: vec![EvictedPod {
                namespace: "default".to_owned(),
                name: "big".to_owned(),
                at: "2026-01-01T00:00:00Z".to_owned(),
                message: "The node was low on resource: ephemeral-storage. ".to_owned(),
            }],
        }
    }

    async fn garbage(&self) -> Result<GarbageReport, String> {
        Ok(GarbageReport {
            bytes_to_free: 3 << 20,
            images: vec![GarbageImage {
                id: "sha256:1".to_owned(),
                names: vec!["registry/big:1".to_owned()],
                bytes: 5 << 20,
                unused_seconds: 3600,
                reason: "the image file system is too full".to_owned(),
            }],
            containers: vec![GarbageContainer {
                id: "c1".to_owned(),
                pod_uid: "u1".to_owned(),
                name: "web".to_owned(),
                reason: "its pod is gone".to_owned(),
            }],
            sandboxes: Vec::new(),
        })
    }

    fn local_node(&self) -> Arc<LocalNode> {
        Arc::default()
    }

    fn pods(&self) -> Vec<Pod> {
        serde_json::from_value(json!([
            {
                "metadata": {"name": "web-node", "namespace": "default"},
                "spec": {"nodeName": "node", "containers": [{"name": "web"}]},
                "status": {"phase": "Running", "podIP": "10.0.0.7", "containerStatuses": [{
                    "name": "web", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}},
                }]},
            },
            {"metadata": {"name": "db-node", "namespace": "data"}, "status": {"phase": "Pending"}},
        ]))
        .unwrap()
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let is_it = |pod: &Pod| {
            pod.metadata.namespace.as_deref() == Some(namespace)
                && pod.metadata.name.as_deref() == Some(name)
        };
        self.pods().into_iter().find(is_it).map(Arc::new)
    }

    fn collect(&self, page: &mut Exposition) {
        page.gauge("what_the_node_measures", "Of itself", 7);
    }

    fn collect_probes(&self, page: &mut Exposition) {
        page.gauge("what_probes_found", "Of its pods", 8);
    }

    fn set_verbosity(&self, verbosity: u32) -> Result<(), String> {
        Err(format!("stays as it was, not {verbosity}"))
    }

    async fn stats(&self, _depth: Depth) -> Result<Arc<NodeStats>, StatsError> {
        Ok(Arc::default())
    }

    fn pod_usages(&self) -> Arc<Usages> {
        Arc::default()
    }

    fn cri(&self) -> CriClient {
        self.cri.clone()
    }

    async fn running_pods(&self) -> Result<Vec<Pod>, String> {
        Ok(self.pods().into_iter().take(1).collect())
    }

    fn health(&self, check: HealthCheck) -> Result<(), String> {
        match check {
            HealthCheck::SyncLoop => self.health.clone(),
            HealthCheck::DevicePlugin => Ok(()),
        }
    }

    /// A log of one line; with `follow`, a second line comes once the first was received.
    async fn container_log(
        &self,
        _namespace: &str,
        pod: &str,
        container: &str,
        options: LogOptions,
    ) -> Result<LogParts, LogError> {
        if pod != "web-node" {
            return Err(LogError::NoPod(pod.to_owned()));
        }
        if options.previous {
            return Err(LogError::NoPrevious {
                container: container.to_owned(),
                pod: pod.to_owned(),
            });
        }
        let (parts, receiver) = mpsc::channel(1);
        let first = format!("{container} {:?}\n", options.tail_lines);
        tokio::spawn(async move {
            let _ = parts.send(Ok(first.into())).await;
            if options.follow {
                let _ = parts.send(Ok("more\n".into())).await;
                parts.closed().await;
            }
        });
        Ok(receiver)
    }
}

struct Served {
    root: tempfile::TempDir,
    healthz: String,
    read_only: String,
    cancel: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

async fn serve(health: Result<(), String>) -> Served {
    let root = tempfile::tempdir().unwrap();
    let any = "127.0.0.1:0".parse().ok();
    let options = ServerOptions {
        healthz: any,
        read_only: any,
        secure: None,
    };
    let servers = Servers::bind(&options, root.path(), ClusterDependencies::default())
        .await
        .unwrap();
    let [healthz, read_only, _] = servers
        .addresses()
        .map(|address| address.map_or_else(String::new, |address| address.to_string()));
    let cancel = CancellationToken::new();
    let runtime = FakeRuntime::new();
    let (channel, timeout) = (runtime.channel(), Duration::from_secs(5));
    let cri = CriClient::from_channels(channel.clone(), channel, timeout);
    let task = tokio::spawn(servers.serve(Node { health, cri }, cancel.clone()));
    Served {
        root,
        healthz,
        read_only,
        cancel,
        task,
    }
}

/// The status and body of the response.
async fn request(address: &str, method: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

async fn get(address: &str, path: &str) -> (u16, String) {
    request(address, "GET", path).await
}

#[tokio::test]
async fn pods_are_in_the_apis_own_json() {
    let served = serve(Ok(())).await;
    let (status, body) = get(&served.read_only, "/pods").await;
    let list: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, 200);
    assert_eq!(
        (&list["kind"], &list["apiVersion"], &list["metadata"]),
        (&json!("PodList"), &json!("v1"), &json!({}))
    );
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    assert_eq!(list["items"][0]["metadata"]["name"], "web-node");
    assert_eq!(list["items"][0].get("kind"), None);

    assert_eq!(
        get(&served.read_only, "/runningpods/").await,
        (405, "Debug endpoints are disabled.\n".to_owned())
    );

    assert_eq!(get(&served.read_only, "/nothing").await.0, 404);
    assert_eq!(request(&served.read_only, "POST", "/pods").await.0, 405);
}

#[tokio::test]
async fn a_port_that_is_taken_is_named_with_its_option() {
    let served = serve(Ok(())).await;
    let options = ServerOptions {
        healthz: served.healthz.parse().ok(),
        ..ServerOptions::default()
    };
    let root = tempfile::tempdir().unwrap();
    let error = Servers::bind(&options, root.path(), ClusterDependencies::default())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&served.healthz) && error.contains("--healthz-port"),
        "{error}"
    );
}

#[tokio::test]
async fn an_oversized_head_is_refused() {
    let served = serve(Ok(())).await;
    let path = format!("/healthz?{}", "x".repeat(64 * 1024));
    let mut stream = TcpStream::connect(&served.healthz).await.unwrap();
    // The server may close the connection before the whole request is written.
    let _ = stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: node\r\n\r\n").as_bytes())
        .await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(!answer.contains("200 OK"), "{answer}");
    assert_eq!(
        get(&served.healthz, "/healthz").await.0,
        200,
        "the others are served"
    );
}

#[tokio::test]
async fn an_end_waits_for_nobody_who_idles() {
    let served = serve(Ok(())).await;
    let _idle = TcpStream::connect(&served.healthz).await.unwrap();
    time::sleep(Duration::from_millis(50)).await;
    served.cancel.cancel();
    time::timeout(Duration::from_secs(3), served.task)
        .await
        .expect("the servers end in time")
        .unwrap();
}

#[tokio::test]
async fn clients_that_ask_for_nothing_make_room_for_those_that_ask() {
    const ROOM: usize = 64;
    let served = serve(Ok(())).await;
    for address in [&served.healthz, &served.read_only] {
        for asked in [false, true] {
            let mut idle = Vec::new();
            for _ in 0..ROOM {
                let mut stream = TcpStream::connect(address).await.unwrap();
                if asked {
                    let head = b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n";
                    stream.write_all(head).await.unwrap();
                    stream.read_u8().await.unwrap();
                }
                idle.push(stream);
            }
            let answer = time::timeout(Duration::from_secs(9), get(address, "/healthz")).await;
            let (status, _) = answer.expect("an answer in time");
            assert_eq!(status, 200, "whether they asked before: {asked}");
        }
    }
}

fn status(root: &Path, output: OutputFormat) -> StatusOptions {
    StatusOptions {
        root_dir: root.to_owned(),
        kubelet_address: None,
        namespace: None,
        output,
    }
}

#[tokio::test]
async fn gc_tells_what_would_be_removed() {
    let served = serve(Ok(())).await;
    let root_dir = served.root.path().to_owned();
    let text = gc_command::run(&GcOptions { root_dir }).await.unwrap();
    assert_eq!(
        text,
        "image registry/big:1 (5 MiB): the image file system is too full\n\
         container web (c1) of pod u1: its pod is gone\n\n\
         1 images of at most 5 MiB, 1 containers and 0 sandboxes would be removed.\n\
         Images are removed until 3 MiB are free that are not now.\n"
    );
}

#[tokio::test]
async fn status_reads_the_running_kubelet() {
    use std::os::unix::fs::PermissionsExt;

    let served = serve(Ok(())).await;
    let root = served.root.path();
    let mode = std::fs::metadata(socket_path(root))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600, "only its owner may ask");

    let expected = "\
NAMESPACE   NAME       READY   STATUS    RESTARTS   IP         AGE
data        db-node    0/0     Pending   0          <none>     <unknown>
default     web-node   1/1     Running   0          10.0.0.7   <unknown>
";
    let table = status(root, OutputFormat::Table);
    let text = status_command::run(&table).await.unwrap();
    let pressure = text.strip_prefix(expected).unwrap();
    assert!(
        pressure.starts_with(
            "\nThe node has DiskPressure.\n\nEvicted, the last first:\n  default/big, "
        ) && pressure.ends_with(" ago: The node was low on resource: ephemeral-storage.\n"),
        "{pressure}"
    );

    let by_port = StatusOptions {
        kubelet_address: Some(format!("http://{}", served.read_only)),
        ..table.clone()
    };
    assert_eq!(status_command::run(&by_port).await.unwrap(), expected);

    let one = StatusOptions {
        namespace: Some("data".to_owned()),
        output: OutputFormat::Json,
        ..table
    };
    let list: Value = serde_json::from_str(&status_command::run(&one).await.unwrap()).unwrap();
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn status_without_a_kubelet_says_what_to_do() {
    let root = tempfile::tempdir().unwrap();
    let error = status_command::run(&status(root.path(), OutputFormat::Table))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("cannot connect to the kubelet at") && error.contains("--root-dir"),
        "{error}"
    );
}

fn logs(root: &Path) -> LogsOptions {
    LogsOptions {
        root_dir: root.to_owned(),
        namespace: "default".to_owned(),
        pod: "web".to_owned(),
        container: None,
        follow: false,
        previous: false,
        timestamps: false,
        tail: Some(5),
        since: None,
        since_time: None,
        limit_bytes: None,
    }
}

#[tokio::test]
async fn logs_are_read_from_the_running_kubelet() {
    let served = serve(Ok(())).await;
    let mut log = logs_command::open(&logs(served.root.path())).await.unwrap();
    assert_eq!(log.next().await.unwrap().unwrap(), "web Some(5)\n");
    assert_eq!(log.next().await.unwrap(), None);

    let previous = LogsOptions {
        previous: true,
        ..logs(served.root.path())
    };
    let error = logs_command::open(&previous).await.unwrap_err();
    assert!(matches!(error, LogsError::Refused(_)));
    assert_eq!(
        error.to_string(),
        "previous terminated container \"web\" in pod \"web-node\" not found"
    );
    let path = "/containerLogs/default/web-node/web";
    assert_eq!(
        get(&served.read_only, path).await.0,
        405,
        "the read-only port serves no logs"
    );
}

#[tokio::test]
async fn a_followed_log_ends_with_the_kubelet() {
    let served = serve(Ok(())).await;
    let follow = LogsOptions {
        follow: true,
        ..logs(served.root.path())
    };
    let mut log = logs_command::open(&follow).await.unwrap();
    let mut text = Vec::new();
    while text.len() < "web Some(5)\nmore\n".len() {
        text.extend_from_slice(&log.next().await.unwrap().unwrap());
    }
    served.cancel.cancel();
    time::timeout(Duration::from_secs(3), served.task)
        .await
        .expect("the servers end in time")
        .unwrap();
    assert!(matches!(log.next().await, Ok(None)));
}
