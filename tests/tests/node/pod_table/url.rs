//! Static pods from a URL.

use std::{fs, path::Path, time::Duration};

use e2e::{images, node::Node};
use test_run::process::Process;

/// The time for one step.
const SOON: Duration = Duration::from_secs(60);

fn manifest(text: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {{name: c, image: '{}', command: [sh, -c, 'echo {text}; sleep 1000']}}
",
        images::BUSYBOX
    )
}

/// A pod is started, replaced, kept while the URL cannot be read, and removed.
pub(crate) async fn pods_come_and_go(node: &mut Node) {
    let pages = node.path("pages");
    fs::create_dir_all(&pages).unwrap();
    let page = pages.join("pods.yaml");
    fs::write(&page, manifest("first")).unwrap();
    let root = pages.display().to_string();
    let server = |node: &Node| {
        let args = ["httpd", "-f", "-p", "127.0.0.1:8099", "-h", &root];
        let log = node.path("httpd.log");
        Process::start(
            "httpd",
            Some(node.namespace().pid()),
            Path::new("busybox"),
            &args,
            &log,
        )
        .unwrap()
    };
    let serving = server(node);
    let configuration = "staticPodURL: http://127.0.0.1:8099/pods.yaml\nhttpCheckFrequency: 1s\n";
    node.start_kubelet_with(configuration, &[]).await.unwrap();

    let first = node.await_running("web", SOON).await.unwrap();
    assert_eq!(
        first["metadata"]["annotations"]["kubernetes.io/config.source"],
        "http"
    );
    fs::write(&page, manifest("second")).unwrap();
    let is_another = |pod: &serde_json::Value| {
        pod["metadata"]["uid"] != first["metadata"]["uid"] && e2e::node::is_ready(pod)
    };
    let second = node.await_pod("web", SOON, is_another).await.unwrap();

    serving.kill().unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let kept = node.pod("web").await.unwrap().unwrap();
    assert_eq!(kept["metadata"]["uid"], second["metadata"]["uid"]);
    assert!(e2e::node::is_ready(&kept));

    let _serving = server(node);
    fs::write(&page, "apiVersion: v1\nkind: PodList\nitems: []\n").unwrap();
    node.await_until("the pod is gone", SOON, async |node| {
        Ok(node.pod("web").await?.is_none())
    })
    .await
    .unwrap();
}
