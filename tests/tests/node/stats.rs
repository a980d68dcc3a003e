//! The kubelet's numbers agree with the kernel: known shares of a CPU, allocations, files and
//! traffic, on the summary, resource and cadvisor pages.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{images, node::Node};
use serde_json::{Value, json};

use super::cgroups::{cgroup_of, container_id};

/// The time for one step, on a busy machine.
const SOON: Duration = Duration::from_secs(300);
const MIB: u64 = 1 << 20;
/// Volumes are measured often.
const CONFIGURATION: &str = "volumeStatsAggPeriod: 1s\n";
/// What the container has in memory, in its writable layer and each volume, and receives.
const MEMORY: u64 = 60 * MIB;
const FILE: u64 = 8 * MIB;
/// The containers of the busy pod: one has the memory and uses the CPU, the other has the files.
const BUSY: &str = "busy";
const WRITER: &str = "writer";
const TRAFFIC: u64 = 4 * MIB;
const PORT: u16 = 1234;

/// A kind of page: its path, and whether it has file systems and networks.
const PAGES: [(&str, bool); 2] = [("/metrics/resource", false), ("/metrics/cadvisor", true)];

#[tokio::test]
async fn numbers_on_docker_through_the_shim() {
    let mut node = Node::with_shim().await.unwrap();
    node.start_kubelet_with(CONFIGURATION, &[]).await.unwrap();
    run(&node, false).await.unwrap();
    traffic_is_counted(&node).await.unwrap();
}

#[tokio::test]
async fn numbers_on_containerd() {
    let mut node = Node::with_containerd().await.unwrap();
    node.start_kubelet_with(CONFIGURATION, &[]).await.unwrap();
    // This node has no pod network.
    run(&node, true).await.unwrap();
}

async fn run(node: &Node, host_network: bool) -> Result<()> {
    // The page cache of files may count as memory that is in use, so each has its container.
    let ready = json!({
        "exec": {"command": ["cat", "/tmp/ready"]}, "periodSeconds": 1, "timeoutSeconds": 20,
    });
    let container = |name: &str, script: String| {
        json!({
            "name": name, "image": images::BUSYBOX, "command": ["sh", "-c", script],
            "resources": {"limits": {"cpu": "200m", "memory": "200Mi"}}, "readinessProbe": ready,
        })
    };
    let write = |path: &str, bytes: u64| {
        let mebibytes = bytes / MIB;
        format!("dd if=/dev/zero of={path}/file bs=1M count={mebibytes} && ")
    };
    let memory = write("/dev/shm", MEMORY);
    let busy = container(
        BUSY,
        format!("{memory} touch /tmp/ready; while :; do :; done"),
    );
    let files: String = ["/srv", "/disk", "/memory"]
        .map(|path| write(path, FILE))
        .concat();
    let script = format!("mkdir /srv; {files} touch /tmp/ready; sleep 1000");
    let mut writer = container(WRITER, script);
    writer["volumeMounts"] = json!([
        {"name": "disk", "mountPath": "/disk"},
        {"name": "memory", "mountPath": "/memory"},
    ]);
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "busy"},
        "spec": {
            "hostNetwork": host_network, "terminationGracePeriodSeconds": 1,
            "containers": [busy, writer],
            "volumes": [
                {"name": "disk", "emptyDir": {}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
            ],
        },
    });
    node.write_manifest("busy.json", &manifest.to_string())?;
    let pod = node.await_running("busy", SOON).await?;
    let is_there = async |node: &Node| Ok(pod_of(&summary(node).await?, "busy").is_ok());
    node.await_until("the pod in the summary", SOON, is_there)
        .await?;
    cpu_time_is_the_kernels(node, &pod).await?;
    memory_is_what_was_allocated(node).await?;
    files_are_measured(node).await?;
    the_pages_have_the_nodes_cgroups(node).await?;
    node.remove_manifest("busy.json")
}

/// The counter of a page is one that the kernel had while the page was made.
async fn cpu_time_is_the_kernels(node: &Node, pod: &Value) -> Result<()> {
    let (cgroup, id) = (cgroup_of(pod)?, container_id(pod, BUSY)?);
    let kernel = || -> Result<u64> {
        if !node.cgroups.is_v2() {
            let usage = node
                .cgroups
                .read_of_container(&cgroup, id, "cpuacct.usage")?;
            return Ok(usage.parse()?);
        }
        let stat = node.cgroups.read_of_container(&cgroup, id, "cpu.stat")?;
        let usec = stat
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "));
        Ok(usec.context("no usage_usec")?.parse::<u64>()? * 1000)
    };
    // Pages share a collection for some seconds; the one of the next request is new.
    let last = container(&summary(node).await?, BUSY)?["cpu"]["usageCoreNanoSeconds"].clone();
    let before = kernel()?;
    let is_new = async |node: &Node| {
        let now = container(&summary(node).await?, BUSY)?["cpu"]["usageCoreNanoSeconds"].clone();
        Ok(now != last)
    };
    node.await_until("a new collection", SOON, is_new).await?;
    let used = container(&summary(node).await?, BUSY)?;
    let used = used["cpu"]["usageCoreNanoSeconds"].as_u64();
    let used = used.context("no CPU time")?;
    let pages = values(node, "container_cpu_usage_seconds_total", BUSY).await?;
    let after = kernel()?;
    ensure!(before <= used && used <= after, "{before} {used} {after}");
    for (page, seconds) in pages {
        let nanoseconds = seconds * 1e9;
        let (least, most) = (before as f64 - 1.0, after as f64 + 1.0);
        ensure!(
            least <= nanoseconds && nanoseconds <= most,
            "{page}: {least} {nanoseconds} {most}"
        );
    }
    // A rate needs two collections; the limit is the most that it can be, and an overloaded
    // machine gives less.
    let has_rate = async |node: &Node| {
        let container = container(&summary(node).await?, BUSY)?;
        let rate = container["cpu"]["usageNanoCores"].as_u64();
        ensure!(rate.is_none_or(|rate| rate < 210_000_000), "{container}");
        Ok(rate.is_some_and(|rate| rate > 0))
    };
    node.await_until("a rate", SOON, has_rate).await
}

async fn memory_is_what_was_allocated(node: &Node) -> Result<()> {
    let container = container(&summary(node).await?, BUSY)?;
    let working_set = container["memory"]["workingSetBytes"].as_f64();
    near("summary", working_set.context("no working set")?, MEMORY)?;
    for (page, value) in values(node, "container_memory_working_set_bytes", BUSY).await? {
        near(page, value, MEMORY)?;
    }
    Ok(())
}

/// The runtimes measure writable layers in the background.
async fn files_are_measured(node: &Node) -> Result<()> {
    let is_measured = async |node: &Node| {
        let container = container(&summary(node).await?, WRITER)?;
        let used = container["rootfs"]["usedBytes"]
            .as_f64()
            .unwrap_or_default();
        Ok(near("rootfs", used, FILE).is_ok())
    };
    node.await_until("the size of the writable layer", SOON, is_measured)
        .await?;
    for (page, value) in values(node, "container_fs_usage_bytes", WRITER).await? {
        near(page, value, FILE)?;
    }
    let summary = summary(node).await?;
    let ephemeral = &pod_of(&summary, "busy")?["ephemeral-storage"];
    // The writable layer and the volume on disk.
    let used = ephemeral["usedBytes"].as_f64().unwrap_or_default();
    near("ephemeral-storage", used, 2 * FILE)?;
    let logs = &pod_of(&summary, "busy")?["containers"][0]["logs"];
    ensure!(logs["usedBytes"].as_u64() > Some(0), "{logs}");
    let images = &summary["node"]["runtime"]["imageFs"];
    ensure!(images["usedBytes"].as_u64() > Some(0), "{images}");
    ensure!(
        images["capacityBytes"].as_u64() > images["usedBytes"].as_u64(),
        "{images}"
    );
    Ok(())
}

async fn the_pages_have_the_nodes_cgroups(node: &Node) -> Result<()> {
    let summary = summary(node).await?;
    let systems = summary["node"]["systemContainers"].as_array();
    let pods = systems
        .into_iter()
        .flatten()
        .find(|it| it["name"] == "pods");
    let all = pods.context("no system container pods")?["memory"]["workingSetBytes"].as_u64();
    ensure!(all >= Some(MEMORY), "{summary}");
    let page = node.page("/metrics/cadvisor").await?;
    let pods = format!("id=\"{}/kubepods", node.cgroups.path());
    for id in ["id=\"/\"", &pods] {
        let found = page.lines().any(|line| {
            line.starts_with("container_memory_usage_bytes{container=\"\"") && line.contains(id)
        });
        // A systemd slice has another path.
        ensure!(found || node.cgroups.is_v2(), "no {id} in {page}");
    }
    Ok(())
}

async fn traffic_is_counted(node: &Node) -> Result<()> {
    let pod = |name: &str, command: String| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 1, "restartPolicy": "OnFailure",
                "containers": [{
                    "name": "c", "image": images::BUSYBOX, "command": ["sh", "-c", command],
                }],
            },
        })
        .to_string()
    };
    let server = format!(
        "mkdir /srv && dd if=/dev/zero of=/srv/file bs=1M count={} && httpd -f -p {PORT} -h /srv",
        TRAFFIC / MIB
    );
    node.write_manifest("server.json", &pod("server", server))?;
    let server = node.await_running("server", SOON).await?;
    let ip = server["status"]["podIP"].as_str().context("no IP")?;
    let download = format!("wget -q -O /dev/null http://{ip}:{PORT}/file");
    let client = format!("until {download}; do sleep 1; done; sleep 1000");
    node.write_manifest("client.json", &pod("client", client))?;
    let client = node.await_running("client", SOON).await?;
    let received = async |node: &Node| {
        let summary = summary(node).await?;
        // Pages share a collection, which may be older than the pod.
        let Ok(client) = pod_of(&summary, "client") else {
            return Ok(false);
        };
        let bytes = client["network"]["rxBytes"].as_f64().unwrap_or_default();
        Ok(bytes >= TRAFFIC as f64)
    };
    node.await_until("the traffic", SOON, received).await?;
    // The counters of the kernel, from within the pod.
    let counter = |pod: &Value| -> Result<f64> {
        let id = container_id(pod, "c")?;
        let pid = node
            .cgroups
            .read_of_container(&cgroup_of(pod)?, id, "cgroup.procs")?;
        let pid = pid.lines().next().context("no process")?.to_owned();
        let table = std::fs::read_to_string(format!("/proc/{pid}/net/dev"))?;
        let line = table
            .lines()
            .find_map(|line| line.trim().strip_prefix("eth0:"));
        let bytes = line.context("no eth0")?.split_whitespace().next();
        Ok(bytes.context("no counters")?.parse()?)
    };
    let kernel = counter(&client)?;
    let summary = summary(node).await?;
    let network = &pod_of(&summary, "client")?["network"];
    let bytes = network["rxBytes"].as_f64().unwrap_or_default();
    ensure!((bytes - kernel).abs() <= kernel * 0.05, "{bytes} {kernel}");
    ensure!(network["interfaces"][0]["name"] == "eth0", "{network}");
    let page = node.page("/metrics/cadvisor").await?;
    let line = page.lines().find(|line| {
        line.starts_with("container_network_receive_bytes_total{")
            && line.contains("pod=\"client-node\"")
            && line.contains("interface=\"eth0\"")
    });
    let value = value_of(line.with_context(|| format!("no traffic in {page}"))?)?;
    ensure!((value - kernel).abs() <= kernel * 0.05, "{value} {kernel}");
    node.remove_manifest("client.json")?;
    node.remove_manifest("server.json")
}

async fn summary(node: &Node) -> Result<Value> {
    Ok(serde_json::from_str(&node.page("/stats/summary").await?)?)
}

fn pod_of<'a>(summary: &'a Value, name: &str) -> Result<&'a Value> {
    let name = format!("{name}-node");
    let mut pods = summary["pods"].as_array().into_iter().flatten();
    let found = pods.find(|pod| pod["podRef"]["name"] == name);
    found.with_context(|| format!("no pod {name} in {summary}"))
}

/// A container of the busy pod.
fn container(summary: &Value, name: &str) -> Result<Value> {
    let containers = pod_of(summary, "busy")?["containers"].as_array();
    let found = containers
        .into_iter()
        .flatten()
        .find(|it| it["name"] == name);
    Ok(found
        .with_context(|| format!("no {name} in {summary}"))?
        .clone())
}

/// The values of a container of the busy pod on the pages that have the metric.
async fn values(node: &Node, metric: &str, name: &str) -> Result<Vec<(&'static str, f64)>> {
    let mut found = Vec::new();
    for (path, has_file_systems) in PAGES {
        if metric.starts_with("container_fs") && !has_file_systems {
            continue;
        }
        let page = node.page(path).await?;
        let line = page.lines().find(|line| {
            line.starts_with(&format!("{metric}{{"))
                && line.contains(&format!("container=\"{name}\""))
                && line.contains("pod=\"busy-node\"")
        });
        let line = line.with_context(|| format!("no {metric} in {page}"))?;
        found.push((path, value_of(line)?));
    }
    Ok(found)
}

/// The value of a sample, which its time may follow.
fn value_of(line: &str) -> Result<f64> {
    let (_, rest) = line.rsplit_once('}').context("no labels")?;
    let value = rest.split_whitespace().next().context("no value")?;
    Ok(value.parse()?)
}

/// Within 5 %.
fn near(what: &str, value: f64, expected: u64) -> Result<()> {
    let expected = expected as f64;
    ensure!(
        (value - expected).abs() <= expected * 0.05,
        "{what}: {value}, not {expected}"
    );
    Ok(())
}
