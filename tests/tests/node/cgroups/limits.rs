//! Runs the table of limits on a node.

use anyhow::{Context as _, Result, ensure};
use e2e::{images, node::Node};
use serde_json::{Value, json};

use super::{SOON, cgroup_of, container_id, rows};

/// cgroup v1's largest memory limit, which means none.
const UNLIMITED: &str = "9223372036854771712";

/// A pod and the limits that it must have.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) spec: Value,
    pub(super) class: &'static str,
    /// Values of the pod's cgroup, by the files of cgroup v1.
    pub(super) pod: Limits,
    /// Values of the cgroups of containers.
    pub(super) containers: Vec<(&'static str, Limits)>,
}

impl Row {
    /// Whether an emulated machine may take minutes to start a container of the pod, because the
    /// runtime sets it up within the pod's limits. Only the pod's cgroup is checked then.
    fn starts_slowly(&self) -> bool {
        let Limits { quota, memory, .. } = self.pod;
        quota.is_some_and(|quota| quota <= 1000) || memory.is_some_and(|memory| memory <= 20 << 20)
    }
}

/// CPU weight, CPU quota in microseconds per 100 ms and memory in bytes; none is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) shares: u64,
    pub(super) quota: Option<u64>,
    pub(super) memory: Option<u64>,
}

impl Limits {
    /// With the weight of cgroup v2 in place of the shares.
    pub(super) fn of_version(self, is_v2: bool) -> Self {
        Self {
            shares: if is_v2 {
                weight(self.shares)
            } else {
                self.shares
            },
            ..self
        }
    }
}

/// As in Kubernetes' proposal 2254.
const fn weight(shares: u64) -> u64 {
    1 + (shares - 2) * 9999 / 262_142
}

pub(super) async fn run(node: &Node) {
    let mut failures = Vec::new();
    for rows in batches(rows::all()) {
        if let Err(error) = run_batch(node, &rows, &mut failures).await {
            failures.push(format!("{error:#}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The rows in groups that the node has room for.
fn batches(rows: Vec<Row>) -> Vec<Vec<Row>> {
    const SHARES: u64 = 1500;
    let mut batches: Vec<Vec<Row>> = Vec::new();
    let mut left = 0;
    for row in rows {
        match batches.last_mut().filter(|_| row.pod.shares <= left) {
            Some(batch) => {
                left -= row.pod.shares;
                batch.push(row);
            }
            None => {
                left = SHARES.saturating_sub(row.pod.shares);
                batches.push(vec![row]);
            }
        }
    }
    batches
}

async fn run_batch(node: &Node, rows: &[Row], failures: &mut Vec<String>) -> Result<()> {
    for row in rows {
        write(node, row)?;
    }
    let mut cgroups = Vec::new();
    for row in rows {
        match check(node, row).await {
            Ok(cgroup) => cgroups.push(cgroup),
            Err(error) => failures.push(format!("{}: {error:#}", row.name)),
        }
    }
    check_classes(node, rows).await?;
    for row in rows {
        node.remove_manifest(&format!("{}.json", row.name))?;
    }
    let gone = async |node: &Node| Ok(!cgroups.iter().any(|cgroup| node.cgroups.has(cgroup)));
    node.await_until("the cgroups of ended pods are removed", SOON, gone)
        .await
}

fn write(node: &Node, row: &Row) -> Result<()> {
    let mut spec = row.spec.clone();
    for kind in ["initContainers", "containers"] {
        for container in spec[kind].as_array_mut().into_iter().flatten() {
            container["image"] = json!(images::BUSYBOX);
            if container["command"].is_null() {
                container["command"] = json!(["sleep", "10000"]);
            }
            if row.starts_slowly() {
                container["volumeMounts"] = json!([{"name": "missing", "mountPath": "/missing"}]);
            }
        }
    }
    if row.starts_slowly() {
        // The pod has its cgroup, and waits for the volume before it starts anything.
        let missing = json!({"path": "/e2e-missing", "type": "Directory"});
        spec["volumes"] = json!([{"name": "missing", "hostPath": missing}]);
    }
    spec["hostNetwork"] = json!(true);
    spec["terminationGracePeriodSeconds"] = json!(1);
    let pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": row.name}, "spec": spec});
    node.write_manifest(&format!("{}.json", row.name), &pod.to_string())
}

/// Checks a running pod, and returns its cgroup.
async fn check(node: &Node, row: &Row) -> Result<String> {
    if row.starts_slowly() {
        return check_cgroup(node, row).await;
    }
    let pod = node.await_running(row.name, SOON).await?;
    let class = &pod["status"]["qosClass"];
    ensure!(class == row.class, "the class is {class}");
    let cgroup = cgroup_of(&pod)?;
    let is_v2 = node.cgroups.is_v2();
    let (found, expected) = (limits(node, &cgroup)?, row.pod.of_version(is_v2));
    ensure!(
        found == expected,
        "the pod has {found:?} instead of {expected:?}"
    );
    let pids = node.cgroups.read(&cgroup, "pids.max")?;
    ensure!(pids == "500", "the pod may have {pids} processes");
    for (name, expected) in &row.containers {
        let id = container_id(&pod, name)?;
        let (found, expected) = (of_container(node, &cgroup, id)?, expected.of_version(is_v2));
        ensure!(
            found == expected,
            "{name} has {found:?} instead of {expected:?}"
        );
    }
    Ok(cgroup)
}

/// Checks the cgroup of a pod without containers, and returns it.
async fn check_cgroup(node: &Node, row: &Row) -> Result<String> {
    let begun = |pod: &Value| pod["status"]["qosClass"] == row.class;
    let cgroup = cgroup_of(&node.await_pod(row.name, SOON, begun).await?)?;
    let expected = row.pod.of_version(node.cgroups.is_v2());
    // The cgroup exists before it has its limits.
    let done = async |node: &Node| {
        let pids = node.cgroups.read(&cgroup, "pids.max");
        let found = limits(node, &cgroup);
        Ok(found.is_ok_and(|found| found == expected) && pids.is_ok_and(|pids| pids == "500"))
    };
    let waited = node.await_until("the limits of the pod", SOON, done).await;
    waited.with_context(|| format!("{:?} instead of {expected:?}", limits(node, &cgroup)))?;
    Ok(cgroup)
}

/// The limits of a cgroup in the node's cgroup root. With cgroup v2, the shares are its weight.
pub(super) fn limits(node: &Node, cgroup: &str) -> Result<Limits> {
    parse(node.cgroups.is_v2(), |file| node.cgroups.read(cgroup, file))
}

/// The limits of the cgroup of a container.
pub(super) fn of_container(node: &Node, pod: &str, id: &str) -> Result<Limits> {
    let read = |file: &str| node.cgroups.read_of_container(pod, id, file);
    parse(node.cgroups.is_v2(), read)
}

fn parse(is_v2: bool, read: impl Fn(&str) -> Result<String>) -> Result<Limits> {
    let (shares, quota, period, memory) = if is_v2 {
        let max = read("cpu.max")?;
        let (quota, period) = max.split_once(' ').context("no period")?;
        let weight = read("cpu.weight")?;
        (
            weight,
            quota.to_owned(),
            period.to_owned(),
            read("memory.max")?,
        )
    } else {
        (
            read("cpu.shares")?,
            read("cpu.cfs_quota_us")?,
            read("cpu.cfs_period_us")?,
            read("memory.limit_in_bytes")?,
        )
    };
    ensure!(period == "100000", "the period is {period}");
    let memory = if memory == UNLIMITED { "max" } else { &memory };
    let limit = |text: &str| match text {
        "max" | "-1" => Ok(None),
        number => number
            .parse()
            .map(Some)
            .with_context(|| format!("{number:?}")),
    };
    Ok(Limits {
        shares: shares.parse()?,
        quota: limit(&quota)?,
        memory: limit(memory)?,
    })
}

/// Burstable pods have the weight of all their requests, others have the smallest one. What is
/// allocatable limits all pods.
async fn check_classes(node: &Node, rows: &[Row]) -> Result<()> {
    let best_effort = limits(node, "kubepods/besteffort")?;
    let is_v2 = node.cgroups.is_v2();
    let least = Limits {
        shares: 2,
        quota: None,
        memory: None,
    }
    .of_version(is_v2);
    ensure!(
        best_effort == least,
        "best-effort pods have {best_effort:?}"
    );
    let burstable = rows.iter().filter(|row| row.class == "Burstable");
    let requested = burstable.map(|row| row.pod.shares).sum::<u64>().max(2);
    // The shares of each pod are rounded, and at least 2.
    let slack = 2 * u64::try_from(rows.len())?;
    let bounds = [requested.saturating_sub(slack).max(2), requested + slack];
    let [least, most] = if is_v2 { bounds.map(weight) } else { bounds };
    let holds = async |node: &Node| {
        let shares = limits(node, "kubepods/burstable")?.shares;
        Ok((least..=most).contains(&shares))
    };
    let what = format!("burstable pods have {requested} shares");
    node.await_until(&what, SOON, holds).await?;
    let all = limits(node, "kubepods")?;
    ensure!(
        all.quota.is_none() && all.memory.is_some(),
        "all pods have {all:?}"
    );
    Ok(())
}
