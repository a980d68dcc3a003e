//! A row of the table: a use of `kubectl` and its outcome.

use std::{io::Write as _, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use e2e::{cluster::Cluster, images::BUSYBOX, node::is_ready};
use futures::future::LocalBoxFuture;
use serde_json::{Value, json};

/// The time for a pod to reach the awaited state.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Runs a row; fails if the outcome is wrong.
pub(crate) type RowTest = for<'a> fn(&'a Cluster) -> LocalBoxFuture<'a, Result<()>>;

/// A row.
#[derive(Clone)]
pub(crate) struct Row {
    /// What the row tests.
    pub name: &'static str,
    pub run: RowTest,
}

/// Runs all rows, and fails with all that failed.
pub(crate) async fn run(cluster: &Cluster, rows: Vec<Row>) {
    assert!(!rows.is_empty());
    let mut failures = Vec::new();
    for Row { name, run } in rows {
        match run(cluster).await {
            Ok(()) => println!("{name}: ok"),
            Err(error) => {
                println!("{name}: {error}");
                failures.push(format!("{name}: {error:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// Creates a pod with one container `c` that runs `script`, and waits until it is ready.
pub(crate) async fn running(cluster: &Cluster, name: &str, script: &str) -> Result<Value> {
    create(cluster, name, script, json!({}))?;
    cluster.await_pod(name, SOON, is_ready).await
}

/// Creates a pod with one container `c` that runs `script`; `more` is merged into its spec.
pub(crate) fn create(cluster: &Cluster, name: &str, script: &str, more: Value) -> Result<()> {
    let mut spec = json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "c", "image": BUSYBOX, "imagePullPolicy": "Never",
            "command": ["sh", "-c", script],
        }],
    });
    json_merge(&mut spec, more);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    apply(cluster, &pod)
}

/// `kubectl create -f -`.
pub(crate) fn apply(cluster: &Cluster, object: &Value) -> Result<()> {
    let (code, _, stderr) = with_input(cluster, &["create", "-f", "-"], &object.to_string())?;
    ensure!(code == Some(0), "create: {stderr}");
    Ok(())
}

fn json_merge(base: &mut Value, more: Value) {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                json_merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, more) => *base = more,
    }
}

/// Runs `kubectl` with this input; returns its exit code, output and errors.
pub(crate) fn with_input(
    cluster: &Cluster,
    args: &[&str],
    input: &str,
) -> Result<(Option<i32>, String, String)> {
    let mut child = cluster
        .kubectl(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    // A process that does not read its input may end before it is written.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output()?;
    Ok((
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    ))
}

/// Runs `kubectl` without input; returns its exit code, output and errors.
pub(crate) fn outcome(cluster: &Cluster, args: &[&str]) -> Result<(Option<i32>, String, String)> {
    with_input(cluster, args, "")
}

/// Deletes a pod with `--now`, and waits until it is gone.
pub(crate) async fn gone(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.kubectl_prints(&["delete", "pod", name, "--now", "--wait=false"])?;
    cluster.await_pod(name, SOON, Value::is_null).await?;
    Ok(())
}
