//! Operation of `dockershim`: metrics, health, the doctor, and the service manager's notifications
//! and sockets.

use std::{
    os::{
        fd::OwnedFd,
        unix::net::{UnixDatagram, UnixListener},
    },
    path::Path,
    process::{Child, Command, Output},
    time::{Duration, Instant},
};

use cri_proto::runtime::v1::{
    ContainerFilter, VersionRequest, runtime_service_client::RuntimeServiceClient,
};
use e2e::{
    cri::Cri,
    node::{Node, binary},
};
use rustix::process::Signal;
use test_run::process::{Process, signal};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::sleep,
};
use tonic::{Code, transport::Endpoint};

/// The time for the shim to notice a change of the engine's state.
const SOON: Duration = Duration::from_secs(25);

/// A node whose shim serves metrics and health, and the address of both.
async fn watched_node() -> (Node, String) {
    let flags = ["--metrics-bind-addr", "localhost:0"];
    let node = Node::with_shim_and(&flags).await.unwrap();
    let log = node.shim_log();
    let line = log.lines().rfind(|line| line.contains("/healthz")).unwrap();
    let (_, address) = line.split_once("http://").unwrap();
    let address = address.split_whitespace().next().unwrap().to_owned();
    (node, address)
}

/// The status and body of the response to a GET.
async fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: shim\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap();
    (status.parse().unwrap(), body.to_owned())
}

/// The value of a series with this name and these labels.
fn value(text: &str, series: &str) -> f64 {
    let of = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
    text.lines()
        .find_map(of)
        .unwrap_or_else(|| panic!("no {series} in\n{text}"))
}

#[tokio::test]
async fn metrics_count_what_was_asked_and_what_there_is() {
    let (node, address) = watched_node().await;
    let mut cri = Cri::of(&node).await.unwrap();
    let (pod, id) = cri.run_pod("web", &["sleep", "1000"]).await.unwrap();
    for _ in 0..3 {
        cri.containers(ContainerFilter::default()).await.unwrap();
    }
    let missing = cri.status("no-such-container").await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);

    let (status, text) = get(&address, "/metrics").await;
    assert_eq!(status, 200, "{text}");
    for (series, expected) in [
        (r#"requests_total{verb="ListContainers",code="OK"}"#, 3.0),
        (r#"requests_total{verb="RunPodSandbox",code="OK"}"#, 1.0),
        (
            r#"requests_total{verb="ContainerStatus",code="NotFound"}"#,
            1.0,
        ),
        (
            r#"request_duration_seconds_count{verb="ListContainers"}"#,
            3.0,
        ),
        ("requests_in_flight", 0.0),
        (
            r#"engine_calls_total{action="start container",outcome="ok"}"#,
            2.0,
        ),
        (
            r#"engine_call_duration_seconds_count{action="start container"}"#,
            2.0,
        ),
        ("engine_connected", 1.0),
        ("engine_reconnects_total", 0.0),
        (r#"sandboxes{state="ready"}"#, 1.0),
        (r#"containers{state="running"}"#, 1.0),
        (r#"containers{state="exited"}"#, 0.0),
    ] {
        let series = format!("dockershim_{series}");
        assert!(
            (value(&text, &series) - expected).abs() < f64::EPSILON,
            "{series}\n{text}"
        );
    }
    assert!(value(&text, "dockershim_images") >= 2.0, "{text}");
    assert!(text.contains("dockershim_build_info{version="), "{text}");

    cri.stop(&id, 0).await.unwrap();
    cri.stop_pod(&pod).await.unwrap();
    let (_, text) = get(&address, "/metrics").await;
    for series in [
        r#"dockershim_sandboxes{state="not_ready"}"#,
        r#"dockershim_containers{state="exited"}"#,
    ] {
        assert!((value(&text, series) - 1.0).abs() < f64::EPSILON, "{text}");
    }
}

#[tokio::test]
async fn the_shim_is_healthy_but_not_ready_without_its_engine() {
    let (mut node, address) = watched_node().await;
    assert_eq!(get(&address, "/readyz").await, (200, "ok\n".to_owned()));
    node.engine_mut().stop().unwrap();
    node.await_until("not ready", SOON, async |_| {
        Ok(get(&address, "/readyz").await.0 == 503)
    })
    .await
    .unwrap();
    let (_, reason) = get(&address, "/readyz").await;
    assert!(
        reason.contains("not connected to the Docker engine"),
        "{reason}"
    );
    assert_eq!(get(&address, "/healthz").await.0, 200);
    let (_, text) = get(&address, "/metrics").await;
    assert!(
        value(&text, "dockershim_engine_connected").abs() < f64::EPSILON,
        "{text}"
    );

    let refused = r#"dockershim_engine_calls_total{action="connect to",outcome="unreachable"}"#;
    node.await_until("an attempt to connect is counted", SOON, async |_| {
        Ok(get(&address, "/metrics").await.1.contains(refused))
    })
    .await
    .unwrap();

    node.engine_mut().start_again().await.unwrap();
    node.await_until("ready again", SOON, async |_| {
        Ok(get(&address, "/readyz").await.0 == 200)
    })
    .await
    .unwrap();
    let (_, text) = get(&address, "/metrics").await;
    assert!(
        value(&text, "dockershim_engine_reconnects_total") >= 1.0,
        "{text}"
    );
}

#[test]
fn a_bad_metrics_address_names_its_flag() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix://{}", dir.path().join("cri.sock").display());
    for address in ["nowhere", &taken] {
        let output = Command::new(binary("dockershim").unwrap())
            .args(["--metrics-bind-addr", address])
            .args(["--container-runtime-endpoint", &socket])
            .output()
            .unwrap();
        assert!(!output.status.success());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("--metrics-bind-addr: "), "{error}");
    }
}

/// The doctor, in the network namespace of the node's engine.
fn doctor(node: &Node, docker: &str, more: &[&str]) -> Output {
    let root = node.path("shim").display().to_string();
    let (program, cri) = (binary("dockershim").unwrap(), node.cri_endpoint());
    let program = program.display().to_string();
    let mut command = vec![&*program, "doctor", "--container-runtime-endpoint", &cri];
    command.extend(["--docker-endpoint", docker, "--root-directory", &root]);
    command.extend(more);
    node.in_net(&command).unwrap()
}

#[tokio::test]
async fn the_doctor_finds_a_good_node_good_and_says_what_to_do_about_a_bad_one() {
    let node = Node::with_shim().await.unwrap();
    let bridge = ["--network-plugin", "docker"];
    let good = doctor(&node, &node.engine().endpoint(), &bridge);
    let table = String::from_utf8(good.stdout).unwrap();
    assert_eq!(good.status.code(), Some(0), "{table}");
    assert!(table.starts_with("CHECK"), "{table}");
    let row = |table: &str, name: &str| {
        let found = table.lines().find(|line| line.starts_with(name));
        found
            .unwrap_or_else(|| panic!("no {name} in\n{table}"))
            .to_owned()
    };
    for (name, found) in [
        ("engine API", "ok      1."),
        ("storage driver", "ok      overlay2"),
        ("cgroups", "the kubelet must use the same"),
        ("live-restore", "warn"),
        ("CRI socket ", "is served by \"dockershim\""),
        ("root directory", "ok"),
        ("streaming address", "ok"),
        ("engine disk", "inodes are free"),
    ] {
        let row = row(&table, name);
        assert!(row.contains(found), "{row}\n{table}");
    }
    assert!(!table.contains("CNI"), "{table}");

    let nowhere = format!("unix://{}", node.path("no.sock").display());
    let bad = doctor(&node, &nowhere, &bridge);
    let table = String::from_utf8(bad.stdout).unwrap();
    assert_eq!(bad.status.code(), Some(1), "{table}");
    assert!(row(&table, "engine socket").contains("fail"), "{table}");
    assert!(table.contains("-> start the engine"), "{table}");
    assert!(table.contains("--docker-endpoint"), "{table}");

    let conf = node.path("net.d").display().to_string();
    let flags = ["--network-plugin", "cni", "--cni-conf-dir", &conf];
    let bare = doctor(&node, &node.engine().endpoint(), &flags);
    let table = String::from_utf8(bare.stdout).unwrap();
    assert_eq!(bare.status.code(), Some(1), "{table}");
    assert!(row(&table, "CNI configuration").contains("fail"), "{table}");
}

#[tokio::test]
async fn a_shim_that_is_told_to_end_answers_what_is_in_flight() {
    let mut node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"];
    let (_, id) = cri.run_pod("stubborn", &stubborn).await.unwrap();
    let request = tokio::spawn({
        let mut cri = cri.clone();
        async move { cri.stop(&id, 3).await }
    });
    sleep(Duration::from_millis(500)).await;
    assert!(!request.is_finished());
    let began = Instant::now();
    node.stop_shim().await.unwrap();
    assert!(began.elapsed() > Duration::from_secs(1));
    request.await.unwrap().unwrap();
    let log = node.shim_log();
    assert!(log.contains("stopped; pods keep running"), "{log}");
    assert!(!log.contains("dropping unfinished requests"), "{log}");
    // The shim accepts no new clients.
    assert!(cri.containers(ContainerFilter::default()).await.is_err());
}

/// Flags of a shim without an engine.
fn alone<'a>(cri: &'a str, nowhere: &'a str) -> [&'a str; 4] {
    [
        "--container-runtime-endpoint",
        cri,
        "--docker-endpoint",
        nowhere,
    ]
}

#[test]
fn the_service_manager_hears_of_start_life_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let manager = UnixDatagram::bind(at("notify")).unwrap();
    manager.set_read_timeout(Some(SOON)).unwrap();
    let hear = || {
        let mut message = [0; 256];
        let length = manager.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..length]).into_owned()
    };
    let shim = binary("dockershim").unwrap().display().to_string();
    let notify = format!("NOTIFY_SOCKET={}", at("notify"));
    let (cri, nowhere) = (
        format!("unix://{}", at("cri.sock")),
        format!("unix://{}", at("no")),
    );
    let mut args = vec![&*notify, "WATCHDOG_USEC=400000", &shim];
    args.extend(alone(&cri, &nowhere));
    let process = Process::start(
        "dockershim",
        None,
        Path::new("env"),
        &args,
        &dir.path().join("log"),
    )
    .unwrap();
    assert_eq!(hear(), "READY=1\n");
    // Notifications come at half of the watchdog interval.
    let began = Instant::now();
    for _ in 0..3 {
        assert_eq!(hear(), "WATCHDOG=1\n");
    }
    let took = began.elapsed();
    assert!(took < Duration::from_millis(1200), "{took:?}");
    signal(process.pid(), Signal::TERM).unwrap();
    while hear() != "STOPPING=1\n" {}
    assert!(process.stop().unwrap().success());
}

/// A child process that is killed when dropped.
struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A shim with the endpoint `fd://`, which receives the descriptor `input`.
fn activated(input: OwnedFd, sockets: u32, nowhere: &str) -> Command {
    let script = format!(
        "exec 3<&0 </dev/null; export LISTEN_FDS={sockets} LISTEN_PID=$$; exec \"$0\" \"$@\""
    );
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "TERM", "--", "sh", "-c", &script])
        .arg(binary("dockershim").unwrap())
        .args(alone("fd://", nowhere))
        .stdin(input);
    command
}

#[tokio::test]
async fn a_socket_that_is_handed_over_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cri.sock");
    let nowhere = format!("unix://{}", dir.path().join("no").display());
    let listener = UnixListener::bind(&path).unwrap();
    let _shim = Kept(activated(listener.into(), 1, &nowhere).spawn().unwrap());
    let endpoint = Endpoint::new(format!("unix://{}", path.display())).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let request = VersionRequest::default();
    let version = RuntimeServiceClient::new(channel).version(request).await;
    assert_eq!(version.unwrap().into_inner().runtime_name, "docker");
}

#[test]
fn what_is_no_socket_is_not_served() {
    let file = || OwnedFd::from(tempfile::tempfile().unwrap());
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for (input, sockets, reason) in [
        (file(), 1, "other than a listening unix stream socket"),
        (udp.into(), 1, "other than a listening unix stream socket"),
        (file(), 0, "systemd passed no socket"),
    ] {
        let mut command = activated(input, sockets, "unix:///nowhere");
        let output = command.output().unwrap();
        assert!(!output.status.success());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("--container-runtime-endpoint: "), "{error}");
        assert!(error.contains(reason), "{error}");
    }
}
