//! gRPC clients and servers based on the C core, with the Python package `grpcio`, which
//! `deploy/install.sh grpc` installs in `target/tools`.

use std::{
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use e2e::node::Node;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    time::timeout,
};

/// The client's output when all calls succeed. The status names the handler `docker`.
const ANSWERED: &str = "Version docker
Version docker
Version docker
Status docker
binary docker
data answer
refused NOT_FOUND
unknown UNIMPLEMENTED
at once 200
";
/// The time until a plugin must be called.
const SOON: Duration = Duration::from_secs(30);

fn python(script: &str, arguments: &[&str]) -> Command {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--", "python3"])
        .arg(here.join("tests/cri/grpc_clients").join(script))
        .args(arguments)
        .env("PYTHONPATH", here.join("../target/tools"));
    command
}

/// The client's output with these arguments.
fn client(arguments: &[&str]) -> String {
    let output = python("client.py", arguments).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {complaint}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn a_client_on_the_c_core_talks_to_the_shim_whatever_its_authority() {
    let node = Node::with_shim().await.unwrap();
    // The C core sends the percent-encoded path as the authority.
    let socket = node.cri_endpoint();
    assert_eq!(client(&[&socket]), ANSWERED);
    let odd = node.path("a: b[c]@ü{d}.sock");
    symlink(node.path("cri.sock"), &odd).unwrap();
    assert_eq!(client(&[&format!("unix:{}", odd.display())]), ANSWERED);

    let long = "/run".repeat(500);
    for authority in [
        "localhost",
        "runtime.local:1234",
        "[::1]:50051",
        "/run/cri.sock",
        "unix:///run/cri.sock",
        "passthrough:///unix:///run/cri.sock",
        "%00abstract",
        "@/abstract/socket",
        &long,
    ] {
        assert_eq!(client(&[&socket, authority]), ANSWERED, "{authority}");
    }
}

#[tokio::test]
async fn a_plugin_on_the_c_core_is_asked_and_told_by_the_kubelet() {
    let node = Node::with_kubelet().await.unwrap();
    let socket = node.path("kubelet/plugins_registry/python.sock");
    let mut plugin = python("plugin.py", &[&socket.display().to_string()]);
    plugin.stdout(Stdio::piped());
    let mut plugin = tokio::process::Command::from(plugin)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(plugin.stdout.take().unwrap()).lines();
    let told = timeout(SOON, lines.next_line()).await.unwrap().unwrap();
    let told = told.unwrap();
    let refusal = "no handler registered for plugin type: Python";
    assert!(told.contains(refusal), "{told}");
}
