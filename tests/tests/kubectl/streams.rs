//! What goes on in containers: exec, attach, port-forward, cp, debug.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    process::Stdio,
};

use anyhow::{Context as _, Result, ensure};
use e2e::{cluster::Cluster, images::BUSYBOX, process::signal};
use rustix::process::Signal;

use crate::row::{Row, SOON, gone, outcome, running, with_input};

pub fn rows() -> Vec<Row> {
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
            run: |on| Box::pin(port_forward(on)),
        },
        Row {
            name: "cp",
            run: |on| Box::pin(cp(on)),
        },
        Row {
            name: "debug",
            run: |on| Box::pin(debug(on)),
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
    let (code, _, error) = outcome(on, &["exec", "shell", "--", "no-such-command"])?;
    // Docker has the words in the output, others in the error.
    ensure!(code.is_some_and(|code| code != 0), "{code:?} {error}");
    let (code, _, error) = outcome(on, &["exec", "missing", "--", "true"])?;
    ensure!(
        code == Some(1) && error.contains("pods \"missing\" not found"),
        "{error}"
    );
    gone(on, "shell").await
}

/// SHA-256 in hexadecimal, and how long the text is.
fn e2e_digest(text: &str) -> (String, usize) {
    use sha2::{Digest as _, Sha256};
    let digest = Sha256::digest(text.as_bytes());
    let hex = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    (hex, text.len())
}

async fn exec_on_a_terminal(on: &Cluster) -> Result<()> {
    running(on, "terminal", "exec sleep 1000").await?;
    // kubectl asks for a terminal only on one: script(1) gives it one.
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

async fn attach(on: &Cluster) -> Result<()> {
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "listens"},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [{
            "name": "c", "image": BUSYBOX, "imagePullPolicy": "Never", "stdin": true,
            "stdinOnce": true, "command": ["sh", "-c", "read line; echo heard $line"],
        }]},
    });
    crate::row::apply(on, &pod)?;
    on.await_pod("listens", SOON, |pod| pod["status"]["phase"] == "Running")
        .await?;
    let (code, out, error) = with_input(on, &["attach", "-i", "listens"], "a word\n")?;
    ensure!(
        code == Some(0) && out.contains("heard a word"),
        "{code:?} {out} {error}"
    );
    on.await_pod("listens", SOON, |pod| pod["status"]["phase"] == "Succeeded")
        .await?;
    gone(on, "listens").await
}

async fn port_forward(on: &Cluster) -> Result<()> {
    running(
        on,
        "serves",
        "mkdir -p /tmp/www 2>/dev/null; echo served > /tmp/index.html; exec httpd -f -p 8080 -h /tmp",
    )
    .await?;
    let mut child = on
        .kubectl(&["port-forward", "pod/serves", "18080:8080"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no stdout")?);
    let mut line = String::new();
    lines.read_line(&mut line)?;
    let fetched = on
        .node
        .in_net(&["curl", "-sS", "--max-time", "10", "http://127.0.0.1:18080/"]);
    // Which ends kubectl too, behind what limits its time.
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
