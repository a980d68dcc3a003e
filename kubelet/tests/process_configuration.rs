//! Configuration of the kubelet's own process and of its node.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    fs,
    net::TcpListener,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    time::Duration,
};

use fake_runtime::FakeRuntime;
use serde_json::Value;
use test_api_server::{ApiServer, Caller};
use test_run::{mounts::MountDir, process::Process};
use tokio::{
    io::AsyncBufReadExt as _,
    time::{sleep, timeout},
};

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// Fields of a kubelet without servers.
const NO_SERVERS: &str = "enableServer: false\nhealthzPort: 0\n";
/// A kubelet that keeps the machine's kernel tunables.
const KEEP_TUNABLES: &str = "--set-kernel-tunables=false";

/// Starts a kubelet without servers on a directory, which keeps the machine's kernel tunables;
/// `variables` precede it on the command line of `env`.
fn start(dir: &Path, fields: &str, variables: &[String]) -> Process {
    start_with(
        dir,
        &format!("{NO_SERVERS}{fields}"),
        variables,
        &[KEEP_TUNABLES],
    )
}

fn start_with(dir: &Path, fields: &str, variables: &[String], flags: &[&str]) -> Process {
    let config = dir.join("kubelet.yaml");
    let text = format!(
        "{HEAD}containerRuntimeEndpoint: unix://{}\n{fields}",
        socket(dir).display()
    );
    fs::write(&config, text).unwrap();
    let kubelet = [
        env!("CARGO_BIN_EXE_kubelet").to_owned(),
        format!("--config={}", config.display()),
        format!("--root-dir={}", dir.join("root").display()),
        format!("--container-logs-dir={}", dir.join("logs").display()),
        "--hostname-override=node-1".to_owned(),
        // The runtime starts no processes.
        "--cgroups-per-qos=false".to_owned(),
        "--enforce-node-allocatable=none".to_owned(),
    ];
    let args = variables.iter().chain(&kubelet).map(String::as_str);
    let args: Vec<&str> = args.chain(flags.iter().copied()).collect();
    let log = dir.join("kubelet.log");
    Process::start("kubelet", None, Path::new("env"), &args, &log).unwrap()
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("runtime.sock")
}

async fn until(kubelet: &Process, what: &str, mut holds: impl FnMut() -> bool) {
    let waited = timeout(Duration::from_secs(60), async {
        while !holds() {
            sleep(Duration::from_millis(20)).await;
        }
    });
    if waited.await.is_err() {
        panic!("no {what}: {}", kubelet.output());
    }
}

async fn output_of_its_end(kubelet: &mut Process) -> String {
    let ended = timeout(Duration::from_secs(60), async {
        while kubelet.check_runs().is_ok() {
            sleep(Duration::from_millis(20)).await;
        }
    });
    let ended = ended.await.is_ok();
    let output = kubelet.output();
    assert!(ended, "{output}");
    output
}

#[tokio::test]
async fn a_standalone_kubelet_is_what_its_file_says() {
    let dir = MountDir::new().unwrap();
    let runtime = FakeRuntime::new();
    let _serving = runtime.serve(&socket(dir.path())).unwrap();
    let notified = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    notified.set_nonblocking(true).unwrap();
    let variables = [
        format!("NOTIFY_SOCKET={}", dir.path().join("notify").display()),
        "WATCHDOG_USEC=1100000".to_owned(),
    ];
    let fields = "logging: {format: json}\noomScoreAdj: 500\npodCIDR: 10.9.0.0/24\n\
                  failSwapOn: false\nnewerField: true\n";
    let kubelet = start(dir.path(), fields, &variables);

    until(&kubelet, "pods' network at the runtime", || {
        runtime.pod_cidr() == "10.9.0.0/24"
    })
    .await;
    let mut told = Vec::new();
    until(&kubelet, "two signs of life", || {
        let mut buffer = [0; 4096];
        while let Ok(length) = notified.recv(&mut buffer) {
            told.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
        }
        told.iter()
            .filter(|text| text.contains("WATCHDOG=1"))
            .count()
            >= 2
    })
    .await;
    assert!(told.iter().any(|text| text.contains("READY=1")), "{told:?}");
    let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", kubelet.pid()));
    assert_eq!(score.unwrap().trim(), "500");

    let output = kubelet.output();
    let lines: Vec<Value> = output
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
        .collect();
    let message = |line: &Value| line["msg"].as_str().unwrap_or_default().to_owned();
    assert!(
        lines
            .iter()
            .any(|line| message(line) == "starting" && line["node"] == "node-1")
    );
    let warning = lines
        .iter()
        .map(message)
        .find(|text| text.contains("newerField"));
    assert!(warning.unwrap().contains("unknown field"), "{output}");
}

#[tokio::test]
async fn with_swap_on_it_starts_only_where_it_may() {
    let dir = MountDir::new().unwrap();
    let runtime = FakeRuntime::new();
    let _serving = runtime.serve(&socket(dir.path())).unwrap();
    let swaps = dir.path().join("swaps");
    fs::write(
        &swaps,
        "Filename Type Size Used Priority\n/dev/swap7 partition 1 0 -2\n",
    )
    .unwrap();
    // The bind mount makes `/proc/swaps` show swap, in a private mount namespace.
    let mount = format!(
        "mount --bind {} /proc/swaps && exec \"$@\"",
        swaps.display()
    );
    let there = ["unshare", "--mount", "sh", "-c", &mount, "sh"].map(str::to_owned);
    let mut refuses = start(dir.path(), "", &there);
    let output = output_of_its_end(&mut refuses).await;
    assert!(output.contains("swap is on (/dev/swap7)"), "{output}");

    let starts = start(
        dir.path(),
        "failSwapOn: false\npodCIDR: 10.9.0.0/24\n",
        &there,
    );
    until(&starts, "pods' network at the runtime", || {
        runtime.pod_cidr() == "10.9.0.0/24"
    })
    .await;
}

#[tokio::test]
async fn kernel_tunables_are_set_unless_they_are_protected() {
    let dir = MountDir::new().unwrap();
    let runtime = FakeRuntime::new();
    let _serving = runtime.serve(&socket(dir.path())).unwrap();
    let tunables = dir.path().join("sys");
    for (name, value) in [("vm/overcommit_memory", "0"), ("kernel/panic", "10")] {
        let file = tunables.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, value).unwrap();
    }
    // The machine's own tunables are hidden, in a private mount namespace.
    let mount = format!(
        "mount --bind {} /proc/sys && exec \"$@\"",
        tunables.display()
    );
    let there = ["unshare", "--mount", "sh", "-c", &mount, "sh"].map(str::to_owned);
    let value = || fs::read_to_string(tunables.join("vm/overcommit_memory")).unwrap();
    let start = |fields: &str| {
        let fields = format!("{NO_SERVERS}{fields}");
        start_with(dir.path(), &fields, &there, &["--set-kernel-tunables"])
    };
    let mut refuses = start("protectKernelDefaults: true\n");
    let output = output_of_its_end(&mut refuses).await;
    assert!(
        output.contains("vm.overcommit_memory is 0 and must be 1"),
        "{output}"
    );
    assert_eq!(value(), "0");

    let starts = start("podCIDR: 10.9.0.0/24\n");
    until(&starts, "pods' network at the runtime", || {
        runtime.pod_cidr() == "10.9.0.0/24"
    })
    .await;
    assert_eq!(value(), "1");
    // This machine lacks the other tunables.
    assert!(starts.output().contains("cannot set kernel tunables"));
}

#[tokio::test]
async fn the_cluster_learns_why_a_kubelet_cannot_start() {
    let dir = MountDir::new().unwrap();
    let runtime = FakeRuntime::new();
    let _serving = runtime.serve(&socket(dir.path())).unwrap();
    let server = ApiServer::start().unwrap();
    let listening = server.listen().await.unwrap();
    let identity = server.identity(&Caller::node("node-1")).unwrap();
    let kubeconfig = dir.path().join("kubelet.conf");
    fs::write(&kubeconfig, listening.kubeconfig(&identity)).unwrap();

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let fields = format!(
        "address: 127.0.0.1\nport: {port}\nhealthzPort: 0\nfailSwapOn: false\n\
         authorization: {{mode: AlwaysAllow}}\n"
    );
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let flags = [KEEP_TUNABLES, &kubeconfig];
    let mut kubelet = start_with(dir.path(), &fields, &[], &flags);
    let output = output_of_its_end(&mut kubelet).await;
    let events = server.list("v1", "events", "default").unwrap();
    let event = events
        .iter()
        .find(|event| event["reason"] == "KubeletSetupFailed");
    let event = event.unwrap_or_else(|| panic!("{events:?}: {output}"));
    let message = event["message"].as_str().unwrap();
    assert!(message.contains(&format!("127.0.0.1:{port}")), "{message}");
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["involvedObject"]["name"], "node-1");
}

#[tokio::test]
async fn the_environment_names_proxies() {
    let dir = MountDir::new().unwrap();
    let runtime = FakeRuntime::new();
    let _serving = runtime.serve(&socket(dir.path())).unwrap();
    let proxy = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = proxy.local_addr().unwrap();
    let kubeconfig = dir.path().join("kubelet.conf");
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
                contexts: [{name: c, context: {cluster: c, user: u}}]\n\
                clusters: [{name: c, cluster: {server: 'https://api.test:6443'}}]\n\
                users: [{name: u, user: {token: t}}]\n";
    fs::write(&kubeconfig, text).unwrap();
    let fields = "staticPodURL: http://pods.test/all\nhttpCheckFrequency: 1s\nfailSwapOn: false\n";
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let variables = [
        format!("HTTP_PROXY=http://user:pass@{address}"),
        format!("HTTPS_PROXY={address}"),
        "NO_PROXY=other.test".to_owned(),
    ];
    let kubelet = start_with(
        dir.path(),
        &format!("{NO_SERVERS}{fields}"),
        &variables,
        &[KEEP_TUNABLES, &kubeconfig],
    );
    let mut expected = vec![
        ["CONNECT api.test:6443 HTTP/1.1", ""],
        // The base64 of `user:pass`.
        ["GET http://pods.test/all HTTP/1.1", "Basic dXNlcjpwYXNz"],
    ];
    let asked = timeout(Duration::from_secs(60), async {
        while !expected.is_empty() {
            let (stream, _) = proxy.accept().await.unwrap();
            let mut lines = tokio::io::BufReader::new(stream).lines();
            let line = lines.next_line().await.unwrap().unwrap();
            let mut authorization = String::new();
            while let Ok(Some(line)) = lines.next_line().await
                && !line.is_empty()
            {
                if let Some(value) = line.strip_prefix("proxy-authorization: ") {
                    authorization = value.to_owned();
                }
            }
            expected.retain(|expected| *expected != [&line, &authorization]);
        }
    });
    if asked.await.is_err() {
        panic!("not asked for {expected:?}: {}", kubelet.output());
    }
}
