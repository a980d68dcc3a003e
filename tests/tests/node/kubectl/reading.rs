//! Read access by `kubectl`: tables, descriptions, logs, data of the node.

use anyhow::{Context as _, Result, ensure};
use e2e::{cluster::Cluster, images::BUSYBOX, node::Node};
use serde_json::{Value, json};

use super::row::{Row, SOON, apply, create, gone, outcome, running};

pub(crate) fn rows() -> Vec<Row> {
    vec![
        Row {
            name: "get nodes",
            run: |on| Box::pin(get_nodes(on)),
        },
        Row {
            name: "get, describe",
            run: |on| Box::pin(get_and_describe(on)),
        },
        Row {
            name: "logs",
            run: |on| Box::pin(logs(on)),
        },
        Row {
            name: "logs --previous",
            run: |on| Box::pin(previous_logs(on)),
        },
        Row {
            name: "logs -f",
            run: |on| Box::pin(followed_logs(on)),
        },
        Row {
            name: "get --raw of the node proxy",
            run: |on| Box::pin(node_proxy(on)),
        },
    ]
}

/// Rows that need the node's resource metrics, which a control plane may lack.
pub(crate) fn usage() -> Row {
    Row {
        name: "top",
        run: |on| Box::pin(top(on)),
    }
}

async fn get_nodes(on: &Cluster) -> Result<()> {
    let table = on.kubectl_prints(&["get", "nodes", "-o", "wide"])?;
    let line = table.lines().find(|line| line.starts_with("node "));
    let line = line.unwrap_or_default();
    let columns: Vec<&str> = line.split_whitespace().collect();
    ensure!(columns.get(1) == Some(&"Ready"), "{table}");
    ensure!(line.contains("192.0.2.10"), "no address: {table}");
    let text = on.kubectl_prints(&["describe", "node", "node"])?;
    for wanted in [
        "kubernetes.io/hostname=node",
        "KubeletReady",
        "MemoryPressure",
        "pods:  ",
    ] {
        ensure!(text.contains(wanted), "no {wanted} in {text}");
    }
    let lease = on.kubectl_prints(&["get", "lease", "-n", "kube-node-lease", "node"])?;
    ensure!(lease.contains("node"), "{lease}");
    Ok(())
}

async fn get_and_describe(on: &Cluster) -> Result<()> {
    running(on, "seen", "exec sleep 1000").await?;
    let table = on.kubectl_prints(&["get", "pod", "seen", "--no-headers"])?;
    let columns: Vec<&str> = table.split_whitespace().collect();
    ensure!(columns[..4] == ["seen", "1/1", "Running", "0"], "{table}");
    let text = on.kubectl_prints(&["describe", "pod", "seen"])?;
    for wanted in [
        "Status:           Running",
        "Ready:          True",
        "QoS Class:",
        "node/192.0.2.10",
    ] {
        ensure!(text.contains(wanted), "no {wanted:?} in {text}");
    }
    gone(on, "seen").await
}

async fn logs(on: &Cluster) -> Result<()> {
    running(
        on,
        "talks",
        "for i in 1 2 3; do echo line $i; done; sleep 0.3; echo wrong >&2; exec sleep 1000",
    )
    .await?;
    let print = |args: &[&str]| on.kubectl_prints(&[&["logs", "talks"], args].concat());
    let is_whole = async |_: &Node| Ok(print(&[])?.ends_with("wrong\n"));
    on.node
        .await_until("all to be said", SOON, is_whole)
        .await?;
    let all = print(&[])?;
    ensure!(all == "line 1\nline 2\nline 3\nwrong\n", "{all}");
    ensure!(print(&["-c", "c", "--tail=2"])? == "line 3\nwrong\n");
    ensure!(print(&["--limit-bytes=6"])? == "line 1");
    ensure!(print(&["--since=1h", "--tail=1"])? == "wrong\n");
    ensure!(print(&["--since-time=2100-01-01T00:00:00Z"])?.is_empty());
    let stamped = print(&["--timestamps", "--tail=1"])?;
    let (time, text) = stamped.split_once(' ').unwrap_or_default();
    ensure!(
        time.starts_with("20") && time.contains('T') && text == "wrong\n",
        "{stamped}"
    );
    let prefixed = print(&["--all-containers", "--prefix", "--tail=1"])?;
    ensure!(prefixed == "[pod/talks/c] wrong\n", "{prefixed}");
    let (code, _, error) = outcome(on, &["logs", "talks", "-c", "none"])?;
    ensure!(
        code == Some(1) && error.contains("none is not valid for pod talks"),
        "{error}"
    );
    gone(on, "talks").await
}

async fn previous_logs(on: &Cluster) -> Result<()> {
    create(on, "again", "echo run; sleep 1; exit 1", json!({}))?;
    let restarts = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].clone();
    on.await_pod("again", SOON, |pod| restarts(pod) == 1)
        .await?;
    let text = on.kubectl_prints(&["logs", "again", "--previous"])?;
    ensure!(text == "run\n", "{text}");
    gone(on, "again").await
}

async fn followed_logs(on: &Cluster) -> Result<()> {
    let more = json!({"restartPolicy": "Never"});
    create(
        on,
        "ends",
        "for i in 1 2 3; do echo $i; sleep 1; done",
        more,
    )?;
    on.await_pod("ends", SOON, |pod| pod["status"]["phase"] == "Running")
        .await?;
    let text = on.kubectl_prints(&["logs", "-f", "ends"])?;
    ensure!(text == "1\n2\n3\n", "{text}");
    gone(on, "ends").await
}

async fn node_proxy(on: &Cluster) -> Result<()> {
    running(on, "proxied", "exec sleep 1000").await?;
    let raw = |path: &str| {
        let path = format!("/api/v1/nodes/node/proxy/{path}");
        on.kubectl_prints(&["get", "--raw", &path])
    };
    ensure!(raw("healthz")? == "ok");
    let pods: Value = serde_json::from_str(&raw("pods")?)?;
    let names: Vec<_> = pods["items"].as_array().into_iter().flatten().collect();
    ensure!(
        names.iter().any(|pod| pod["metadata"]["name"] == "proxied"),
        "{pods}"
    );
    let config: Value = serde_json::from_str(&raw("configz")?)?;
    ensure!(
        config["kubeletconfig"]["serverTLSBootstrap"] == true,
        "{config}"
    );
    let metrics = raw("metrics/resource")?;
    ensure!(
        metrics.contains("node_memory_working_set_bytes"),
        "{metrics}"
    );
    gone(on, "proxied").await
}

async fn top(on: &Cluster) -> Result<()> {
    running(on, "busy", "while true; do :; done").await?;
    for (kind, name) in [("node", "node"), ("pod", "busy")] {
        let is_measured = async |_: &Node| Ok(outcome(on, &["top", kind, name])?.0 == Some(0));
        on.node
            .await_until("usage to be measured", SOON, is_measured)
            .await?;
        let top = on.kubectl_prints(&["top", kind, name, "--no-headers"])?;
        let columns: Vec<&str> = top.split_whitespace().collect();
        let cores = columns.get(1).and_then(|cores| cores.strip_suffix('m'));
        let cores = cores.and_then(|cores| cores.parse::<u32>().ok());
        ensure!(columns[0] == name && cores > Some(0), "{top}");
        ensure!(columns[2..].iter().any(|one| one.ends_with("Mi")), "{top}");
    }
    gone(on, "busy").await?;
    utilization(on).await
}

/// The number that a horizontal pod autoscaler compares with its target: the usage of all
/// containers in percent of their requests. The limit is twice the request.
async fn utilization(on: &Cluster) -> Result<()> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "scaled"},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "c", "image": BUSYBOX, "imagePullPolicy": "Never",
                "command": ["sh", "-c", "while true; do :; done"],
                "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}},
            }],
        },
    });
    apply(on, &pod)?;
    let path = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/scaled";
    let read = || outcome(on, &["get", "--raw", path]);
    let is_measured = async |_: &Node| Ok(read()?.0 == Some(0));
    on.node
        .await_until("usage to be measured", SOON, is_measured)
        .await?;
    let metrics: Value = serde_json::from_str(&read()?.1)?;
    let usage = &metrics["containers"][0]["usage"]["cpu"];
    let nanocores = usage.as_str().and_then(|text| text.strip_suffix('n'));
    let nanocores = nanocores.and_then(|text| text.parse::<u64>().ok());
    let percent = nanocores.context("no CPU usage")? * 100 / 100_000_000;
    ensure!((1..=210).contains(&percent), "{percent} % in {metrics}");
    gone(on, "scaled").await
}
