//! Requests that the server proxies to kubelets: logs, exec, attach, port-forward, `--raw`.

use std::process::Stdio;

use e2e::kubectl::KubectlOutput;
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

use super::{Cluster, SOON, kubelet::Kubelet, words};

/// Values of `kubectl`'s variables that enable WebSocket; when disabled, it uses SPDY.
const OVER: [&str; 2] = ["true", "false"];

async fn cluster() -> (Cluster, Kubelet) {
    let cluster = Cluster::start().await;
    let kubelet = Kubelet::start(&cluster.server).await;
    cluster.add_node("n1", kubelet.port);
    cluster.add_pod("web", "n1").await;
    (cluster, kubelet)
}

/// Runs a command with this input, with or without WebSocket.
async fn run(
    cluster: &Cluster,
    websockets: &str,
    arguments: &[&str],
    input: &str,
) -> KubectlOutput {
    let mut child = cluster
        .kubectl
        .command(arguments)
        .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    drop(stdin);
    let output = tokio::time::timeout(SOON, child.wait_with_output()).await;
    KubectlOutput::from(output.unwrap().unwrap())
}

#[tokio::test]
async fn logs_are_the_kubelet_s() {
    let (cluster, _kubelet) = cluster().await;
    assert_eq!(
        cluster.ok("logs web").await,
        "/containerLogs/default/web/c\n"
    );
    assert_eq!(
        cluster
            .ok("logs web -c c --tail=5 --timestamps --since=10s --limit-bytes=100")
            .await,
        "/containerLogs/default/web/c?timestamps=true&sinceSeconds=10&tailLines=5&limitBytes=100\n"
    );
    let refused = cluster.refused("logs web --previous").await;
    assert_eq!(
        refused,
        "Error from server (BadRequest): previous terminated container \"c\" not found\n"
    );
    let mut following = cluster.kubectl.start(&["logs", "-f", "web"]).unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "one");
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "two");
    cluster.server.set_available(false);
    assert_eq!(lines.next_line().await.unwrap(), None);
}

#[tokio::test]
async fn a_command_s_streams_and_exit_code_come_through() {
    let (cluster, _kubelet) = cluster().await;
    for over in OVER {
        let said = run(&cluster, over, &["exec", "web", "--", "echo", "a b"], "").await;
        assert_eq!(
            (said.code, said.stdout.as_str()),
            (Some(0), "a b\n"),
            "{said:?}"
        );
        let many = "0123456789".repeat(50_000);
        let same = run(&cluster, over, &["exec", "-i", "web", "--", "cat"], &many).await;
        assert!(same.code == Some(0) && same.stdout == many, "{over}");
        let failed = run(&cluster, over, &["exec", "web", "--", "fail"], "").await;
        assert_eq!(failed.code, Some(3), "{failed:?}");
        assert!(failed.stderr.starts_with("no such command\n"), "{failed:?}");
        let attached = run(&cluster, over, &["attach", "-i", "web"], "hello\n").await;
        assert!(
            attached
                .stdout
                .contains("attached to default/web/c\nhello\n"),
            "{attached:?}"
        );
    }
}

#[tokio::test]
async fn ports_are_forwarded() {
    let (cluster, _kubelet) = cluster().await;
    for over in OVER {
        let mut forwarding = cluster
            .kubectl
            .command(&["port-forward", "pod/web", ":80"])
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", over)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(forwarding.stdout.take().unwrap()).lines();
        let line = lines.next_line().await.unwrap().unwrap();
        let address = line
            .strip_prefix("Forwarding from ")
            .and_then(|rest| rest.split_once(" -> "))
            .unwrap_or_else(|| panic!("{line}"))
            .0;
        for _ in 0..2 {
            let mut connection = TcpStream::connect(address).await.unwrap();
            connection.write_all(b"hello").await.unwrap();
            let mut answer = String::new();
            connection.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer, "hello to port 80 of default/web");
        }
    }
}

#[tokio::test]
async fn kubelets_are_verified_when_an_authority_for_them_is_given() {
    let (cluster, _kubelet) = cluster().await;
    let authority = cluster.server.authority_pem();
    cluster.server.verify_kubelets(Some(&authority));
    let refused = cluster.refused("logs web").await;
    assert!(refused.contains("UnknownIssuer"), "{refused}");
    cluster.server.verify_kubelets(None);
    cluster.ok("logs web").await;
}

#[tokio::test]
async fn usage_is_what_kubelets_measure() {
    let (cluster, _kubelet) = cluster().await;
    // Usage is the difference between two samples.
    let nodes = cluster.once_ok("top nodes").await;
    assert_eq!(words(&nodes)[1], ["n1", "500m", "25%", "1024Mi", "25%"]);
    let pods = cluster.ok("top pods").await;
    assert_eq!(words(&pods)[1], ["web", "500m", "1Mi"]);
}

#[tokio::test]
async fn paths_below_a_node_are_the_kubelet_s() {
    let (cluster, kubelet) = cluster().await;
    assert_eq!(
        cluster
            .ok("get --raw /api/v1/nodes/n1/proxy/logs/a/?x=1")
            .await,
        "/logs/a/?x=1\n"
    );
    let missing = cluster
        .refused("get --raw /api/v1/nodes/n1/proxy/none")
        .await;
    assert!(missing.contains("(NotFound)"), "{missing}");
    let elsewhere = cluster.refused("get --raw /api/v1/nodes/n2/proxy/").await;
    assert!(elsewhere.contains("nodes \"n2\" not found"), "{elsewhere}");
    let refused = json!({"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}});
    let line = format!("patch node n1 --subresource=status --type=merge --patch {refused}");
    cluster.ok(&line).await;
    drop(kubelet);
    let away = cluster.refused("exec web -- echo x").await;
    assert!(
        away.contains("error dialing backend: dial tcp 127.0.0.1:1: connect: connection refused"),
        "{away}"
    );
    let away = cluster
        .refused("get --raw /api/v1/nodes/n1/proxy/configz")
        .await;
    assert!(away.contains("(ServiceUnavailable)"), "{away}");
}
