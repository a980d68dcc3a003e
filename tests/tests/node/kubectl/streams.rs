//! Streams of containers: exec, attach, port-forward, cp, debug.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use e2e::{cluster::Cluster, images::BUSYBOX, node::is_ready};
use rustix::process::Signal;
use test_run::process::signal;

use super::row::{Row, SOON, gone, outcome, running, with_input};

pub(crate) fn rows() -> Vec<Row> {
    vec![
        Row {
            name: "exec",
            run: |on| Box::pin(exec(on)),
        },
        Row {
            name: "exec -t",
            run: |on| Box::pin(exec_on_a_terminal(on)),
        },
        Row {
            name: "attach",
            run: |on| Box::pin(attach(on)),
        },
        Row {
            name: "port-forward",
            run: |on| Box::pin(port_forward(on, Cluster::kubectl)),
        },
        Row {
            name: "cp",
            run: |on| Box::pin(cp(on)),
        },
        Row {
            name: "exec, attach, cp over SPDY",
            run: |on| Box::pin(commands_over_spdy(on)),
        },
        Row {
            name: "port-forward over SPDY",
            run: |on| Box::pin(port_forward(on, over_spdy)),
        },
        Row {
            name: "debug",
            run: |on| Box::pin(debug(on)),
        },
        Row {
            name: "debug --copy-to",
            run: |on| Box::pin(debug_copy(on)),
        },
        Row {
            name: "debug node",
            run: |on| Box::pin(debug_node(on)),
        },
    ]
}

async fn exec(on: &Cluster) -> Result<()> {
    running(on, "shell", "exec sleep 1000").await?;
    let run = |command: &str| outcome(on, &["exec", "shell", "--", "sh", "-c", command]);
    let both = run("echo out; echo err >&2")?;
    ensure!(
        both == (Some(0), "out\n".to_owned(), "err\n".to_owned()),
        "{both:?}"
    );
    let (code, out, error) = run("echo before; exit 7")?;
    ensure!(
        code == Some(7) && out == "before\n",
        "{code:?} {out} {error}"
    );
    ensure!(error.contains("exit code 7"), "{error}");
    let echoed = with_input(
        on,
        &["exec", "-i", "shell", "-c", "c", "--", "cat"],
        "through\n",
    )?;
    ensure!(
        echoed == (Some(0), "through\n".to_owned(), String::new()),
        "{echoed:?}"
    );
    let big = "0123456789abcdef".repeat(64 << 10);
    let (code, out, _) = with_input(on, &["exec", "-i", "shell", "--", "sha256sum"], &big)?;
    let (expected, _) = e2e_digest(&big);
    ensure!(code == Some(0) && out.starts_with(&expected), "{out}");
    let (code, out, error) = outcome(on, &["exec", "shell", "--", "no-such-command"])?;
    ensure!(
        out.is_empty() && error.contains("executable file not found"),
        "{out}|{error}"
    );
    // containerd passes on its runtime's message, without an exit code.
    ensure!(
        matches!(code, Some(1 | 126 | 127)),
        "{code:?} {out} {error}"
    );
    let (code, _, error) = outcome(on, &["exec", "missing", "--", "true"])?;
    ensure!(
        code == Some(1) && error.contains("pods \"missing\" not found"),
        "{error}"
    );
    gone(on, "shell").await
}

/// The SHA-256 in hexadecimal, and the length of the text.
fn e2e_digest(text: &str) -> (String, usize) {
    use sha2::{Digest as _, Sha256};
    let digest = Sha256::digest(text.as_bytes());
    let hex = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    (hex, text.len())
}

async fn exec_on_a_terminal(on: &Cluster) -> Result<()> {
    running(on, "terminal", "exec sleep 1000").await?;
    // kubectl requests a terminal only if it runs on one, which script(1) provides.
    let kubectl = on.kubectl(&[
        "exec",
        "-it",
        "terminal",
        "--",
        "sh",
        "-c",
        "'sleep 1; stty size; exit 3'",
    ]);
    let words: Vec<String> = std::iter::once(kubectl.get_program())
        .chain(kubectl.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let line = format!("stty rows 33 cols 77; {}", words.join(" "));
    let output = std::process::Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .envs(
            kubectl
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .stdin(Stdio::null())
        .output()
        .context("script, of util-linux")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(text.contains("33 77"), "{text}");
    ensure!(
        output.status.code() == Some(3),
        "{:?}: {text}",
        output.status
    );
    gone(on, "terminal").await
}

/// Runs a pod that echoes the input of attached clients.
async fn listens(on: &Cluster) -> Result<()> {
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "listens"},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [{
            "name": "c", "image": BUSYBOX, "imagePullPolicy": "Never", "stdin": true,
            "stdinOnce": true, "command": ["sh", "-c", "read line; echo heard $line"],
        }]},
    });
    super::row::apply(on, &pod)?;
    on.await_pod("listens", SOON, |pod| pod["status"]["phase"] == "Running")
        .await?;
    Ok(())
}

async fn attach(on: &Cluster) -> Result<()> {
    listens(on).await?;
    let (code, out, error) = with_input(on, &["attach", "-i", "listens"], "a word\n")?;
    ensure!(
        code == Some(0) && out.contains("heard a word"),
        "{code:?} {out} {error}"
    );
    on.await_pod("listens", SOON, |pod| pod["status"]["phase"] == "Succeeded")
        .await?;
    gone(on, "listens").await
}

async fn port_forward(on: &Cluster, kubectl: impl Fn(&Cluster, &[&str]) -> Command) -> Result<()> {
    running(
        on,
        "serves",
        "mkdir -p /tmp/www 2>/dev/null; echo served > /tmp/index.html; exec httpd -f -p 8080 -h /tmp",
    )
    .await?;
    // The container may be running without listening yet.
    on.node
        .await_until("the pod listens", SOON, async |_| {
            let page = ["exec", "serves", "--", "wget", "-q", "-O", "-"];
            let page = [&page[..], &["http://127.0.0.1:8080/"]].concat();
            Ok(kubectl(on, &page).output()?.status.success())
        })
        .await?;
    let mut child = kubectl(on, &["port-forward", "pod/serves", "18080:8080"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no stdout")?);
    let mut line = String::new();
    lines.read_line(&mut line)?;
    let fetched = on
        .node
        .in_net(&["curl", "-sS", "--max-time", "10", "http://127.0.0.1:18080/"]);
    // This also ends kubectl, which runs under a command that limits its time.
    signal(child.id(), Signal::TERM)?;
    child.wait()?;
    let mut error = String::new();
    child
        .stderr
        .take()
        .context("no stderr")?
        .read_to_string(&mut error)?;
    let fetched = fetched?;
    ensure!(fetched.stdout == b"served\n", "{line}{error}{fetched:?}");
    gone(on, "serves").await
}

async fn cp(on: &Cluster) -> Result<()> {
    running(on, "copied", "exec sleep 1000").await?;
    let (to, from) = (on.node.path("to"), on.node.path("from"));
    fs::write(&to, "carried over\n")?;
    let (to, from) = (to.display().to_string(), from.display().to_string());
    on.kubectl_prints(&["cp", &to, "copied:/tmp/file"])?;
    let inside = on.kubectl_prints(&["exec", "copied", "--", "cat", "/tmp/file"])?;
    ensure!(inside == "carried over\n", "{inside}");
    on.kubectl_prints(&["cp", "copied:/tmp/file", &from])?;
    ensure!(fs::read_to_string(&from)? == "carried over\n");
    gone(on, "copied").await
}

/// `kubectl` without WebSocket, like older versions.
fn over_spdy(on: &Cluster, args: &[&str]) -> Command {
    let mut kubectl = on.kubectl(args);
    kubectl
        .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
        .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false");
    kubectl
}

async fn commands_over_spdy(on: &Cluster) -> Result<()> {
    let path = |name: &str| on.node.path(name).display().to_string();
    let (input, from) = (path("input"), path("from-spdy"));
    fs::write(&input, "through\n")?;
    let run = |args: &[&str]| -> Result<(Option<i32>, String, String)> {
        let output = over_spdy(on, args).stdin(File::open(&input)?).output()?;
        Ok((
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ))
    };
    running(on, "shell", "exec sleep 1000").await?;
    let script = "cat; echo err >&2; exit 7";
    let (code, out, error) = run(&["exec", "-i", "shell", "--", "sh", "-c", script])?;
    ensure!(
        code == Some(7) && out == "through\n" && error.starts_with("err\n"),
        "{code:?} {out} {error}"
    );
    let (code, _, error) = run(&["cp", &input, "shell:/tmp/file"])?;
    ensure!(code == Some(0), "{error}");
    let (code, _, error) = run(&["cp", "shell:/tmp/file", &from])?;
    ensure!(code == Some(0), "{error}");
    ensure!(fs::read_to_string(&from)? == "through\n");
    gone(on, "shell").await?;

    listens(on).await?;
    let (code, out, error) = run(&["attach", "-i", "listens"])?;
    ensure!(
        code == Some(0) && out.contains("heard through"),
        "{code:?} {out} {error}"
    );
    gone(on, "listens").await
}

async fn debug(on: &Cluster) -> Result<()> {
    running(on, "odd", "exec sleep 1000").await?;
    let image = format!("--image={BUSYBOX}");
    on.kubectl_prints(&[
        "debug",
        "odd",
        &image,
        "--image-pull-policy=Never",
        "-c",
        "look",
        "--profile=general",
        "--",
        "sleep",
        "1000",
    ])?;
    on.await_pod("odd", SOON, |pod| {
        pod["status"]["ephemeralContainerStatuses"][0]["state"]["running"].is_object()
    })
    .await?;
    let seen = on.kubectl_prints(&["exec", "odd", "-c", "look", "--", "echo", "here"])?;
    ensure!(seen == "here\n", "{seen}");
    gone(on, "odd").await
}

async fn debug_copy(on: &Cluster) -> Result<()> {
    running(on, "odd", "exec sleep 1000").await?;
    let image = format!("--image={BUSYBOX}");
    let args = ["debug", "odd", "--copy-to=copy", &image];
    let more = [
        "--image-pull-policy=Never",
        "-c",
        "look",
        "--profile=general",
    ];
    let command = ["--", "sleep", "2000"];
    on.kubectl_prints(&[&args[..], &more, &command].concat())?;
    on.await_pod("copy", SOON, is_ready).await?;
    // The containers of the copy share a PID namespace.
    let seen = on.kubectl_prints(&["exec", "copy", "-c", "look", "--", "sh", "-c", "ps"])?;
    ensure!(
        seen.contains("sleep 1000") && seen.contains("sleep 2000"),
        "{seen}"
    );
    gone(on, "copy").await?;
    ensure!(is_ready(&on.pod("odd").await?), "the original is as it was");
    gone(on, "odd").await
}

async fn debug_node(on: &Cluster) -> Result<()> {
    let marker = on.node.path("marker");
    fs::write(&marker, "of the node\n")?;
    let image = format!("--image={BUSYBOX}");
    let args = ["debug", "node/node", &image, "--image-pull-policy=Never"];
    let more = ["--profile=general", "--", "sleep", "1000"];
    let said = on.kubectl_prints(&[&args[..], &more].concat())?;
    let mut words = said.split_whitespace();
    let name = words
        .find(|word| word.starts_with("node-debugger-node-"))
        .context(said.clone())?;
    on.await_pod(name, SOON, is_ready).await?;
    let path = format!("/host{}", marker.display());
    let seen = on.kubectl_prints(&["exec", name, "--", "cat", &path])?;
    ensure!(seen == "of the node\n", "{seen}");
    gone(on, name).await
}
