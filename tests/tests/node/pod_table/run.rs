//! Runs rows of the table on a node.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use cri_proto::runtime::v1 as cri;
use e2e::{cri::Cri, images, node::Node};
use futures::{StreamExt as _, stream};
use serde_json::Value;
use test_run::skips;
use tokio::time::{Instant, sleep};

use super::row::{Expect, FieldPath, Need, Row, Step};

/// The time for one step, on a busy machine.
const STEP: Duration = Duration::from_secs(120);
/// The polling interval.
const PERIOD: Duration = Duration::from_millis(100);
/// The number of rows run in parallel.
const PARALLEL: usize = 6;

/// The pod of a row.
pub(crate) struct PodUnderTest<'a> {
    pub node: &'a Node,
    pub name: &'a str,
    /// The row's own directory.
    pub dir: PathBuf,
    /// The last observed pod; null before the first observation.
    pub pod: Value,
}

impl<'a> PodUnderTest<'a> {
    /// The pod of a row, not observed yet.
    pub(crate) fn of(node: &'a Node, row: &'a Row) -> Self {
        Self {
            node,
            name: row.name,
            dir: node.path(&format!("rows/{}", row.name)),
            pod: Value::Null,
        }
    }

    pub(crate) fn begin(&self, row: &Row) -> Result<()> {
        fs::create_dir_all(&self.dir)?;
        if let Some(before) = row.before {
            before(&self.dir)?;
        }
        let manifest = self.manifest(row, &row.spec);
        self.node.write_manifest(&self.manifest_file(), &manifest)
    }

    /// Runs the steps of the row.
    pub(crate) async fn take_all(&mut self, row: &Row) -> Result<()> {
        for step in &row.steps {
            self.take(row, step).await?;
        }
        Ok(())
    }

    pub(crate) fn uid(&self) -> &str {
        self.pod["metadata"]["uid"].as_str().unwrap_or_default()
    }

    pub(crate) fn ip(&self) -> &str {
        self.pod["status"]["podIP"].as_str().unwrap_or_default()
    }

    /// The status of a container of any kind.
    pub(crate) fn container(&self, name: &str) -> &Value {
        let kinds = [
            "containerStatuses",
            "initContainerStatuses",
            "ephemeralContainerStatuses",
        ];
        kinds
            .iter()
            .flat_map(|kind| self.pod["status"][kind].as_array().into_iter().flatten())
            .find(|status| status["name"] == name)
            .unwrap_or(&Value::Null)
    }

    /// The runtime's ID of a container.
    pub(crate) fn container_id(&self, name: &str) -> Result<&str> {
        let id = self.container(name)["containerID"].as_str();
        let id = id.and_then(|id| id.split_once("://"));
        Ok(id.with_context(|| format!("{name} has no id"))?.1)
    }

    fn condition(&self, name: &str) -> &Value {
        let conditions = self.pod["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        conditions
            .find(|condition| condition["type"] == name)
            .unwrap_or(&Value::Null)
    }

    fn found(&self, place: &FieldPath) -> Option<&Value> {
        match place {
            FieldPath::Pod(pointer) => self.pod.pointer(pointer),
            FieldPath::Container(name, pointer) => self.container(name).pointer(pointer),
            FieldPath::Condition(name, pointer) => self.condition(name).pointer(pointer),
        }
    }

    /// The pod's log directory.
    pub(crate) fn log_dir(&self) -> PathBuf {
        let directory = format!("logs/default_{}-node_{}", self.name, self.uid());
        self.node.path(&directory)
    }

    /// The log of the newest run of a container, without times and streams.
    pub(crate) fn log(&self, container: &str) -> String {
        let dir = self.log_dir().join(container);
        let mut runs: Vec<(u32, PathBuf)> = fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                let run = name.to_str()?.strip_suffix(".log")?.parse().ok()?;
                Some((run, entry.path()))
            })
            .collect();
        runs.sort();
        let newest = runs.last().map(|(_, path)| fs::read(path));
        let bytes = newest.and_then(Result::ok).unwrap_or_default();
        let mut text = String::new();
        for line in String::from_utf8_lossy(&bytes).lines() {
            let mut fields = line.splitn(4, ' ');
            let tag = fields.nth(2);
            text.push_str(fields.next().unwrap_or_default());
            if tag != Some("P") {
                text.push('\n');
            }
        }
        text
    }

    /// The output of `kubelet logs` for the pod.
    pub(crate) fn kubelet_logs(&self, options: &[&str]) -> Result<String> {
        let name = format!("{}-node", self.name);
        let args = [&["logs", &name], options].concat();
        let output = self.node.kubelet_command(&args)?;
        if !output.status.success() {
            bail!("kubelet logs: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// A file in the row's own directory; empty if missing.
    pub(crate) fn file(&self, name: &str) -> String {
        fs::read_to_string(self.dir.join(name)).unwrap_or_default()
    }

    /// Fetches a page over HTTP from the pods' network; `None` on any failure.
    pub(crate) fn fetch(&self, url: &str) -> Result<Option<String>> {
        let wget = ["timeout", "5", "busybox", "wget", "-q", "-O", "-", url];
        let page = self.node.in_net(&wget)?;
        let body = String::from_utf8_lossy(&page.stdout).into_owned();
        Ok(page.status.success().then_some(body))
    }

    pub(crate) async fn look(&mut self) -> Result<()> {
        self.pod = self.node.pod(self.name).await?.unwrap_or_default();
        Ok(())
    }

    fn missing(&self, wanted: &[(FieldPath, Expect)]) -> Vec<String> {
        wanted
            .iter()
            .filter(|(place, expect)| !expect.holds(self.found(place)))
            .map(|(place, expect)| {
                let found = self.found(place).unwrap_or(&Value::Null);
                format!("{place:?} must be {expect:?} and is {found}")
            })
            .collect()
    }

    fn manifest(&self, row: &Row, spec: &str) -> String {
        let indented =
            |text: &str| -> String { text.lines().map(|line| format!("  {line}\n")).collect() };
        let mut spec = spec
            .replace("IMAGE", images::BUSYBOX)
            .replace("DIR", &self.dir.display().to_string());
        if !spec.contains("terminationGracePeriodSeconds") {
            spec.push_str("\nterminationGracePeriodSeconds: 1");
        }
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {}\n{}spec:\n{}",
            self.name,
            indented(row.metadata),
            indented(&spec)
        )
    }

    async fn take(&mut self, row: &Row, step: &Step) -> Result<()> {
        let deadline = Instant::now() + STEP;
        match step {
            Step::Shows(wanted) => loop {
                self.look().await?;
                let missing = self.missing(wanted);
                if missing.is_empty() {
                    return Ok(());
                }
                self.wait(deadline, || missing.join("; ")).await?;
            },
            Step::Stays(time, wanted) => {
                let end = Instant::now() + *time;
                while Instant::now() < end {
                    self.look().await?;
                    let missing = self.missing(wanted);
                    if !missing.is_empty() {
                        bail!("not for {time:?}: {}", missing.join("; "));
                    }
                    sleep(PERIOD).await;
                }
                Ok(())
            }
            Step::Log(container, expect) => loop {
                self.look().await?;
                let log = Value::String(self.log(container));
                if expect.holds(Some(&log)) {
                    return Ok(());
                }
                self.wait(deadline, || {
                    format!("the log of {container} must be {expect:?} and is {log}")
                })
                .await?;
            },
            Step::Edit(spec) => {
                let manifest = self.manifest(row, spec);
                self.node.write_manifest(&self.manifest_file(), &manifest)
            }
            Step::Until(what, check) => loop {
                self.look().await?;
                let found = check(self);
                if matches!(found, Ok(true)) {
                    return Ok(());
                }
                self.wait(deadline, || format!("not yet: {what}: {found:?}"))
                    .await?;
            },
            Step::StopContainer(name) => {
                let request = cri::StopContainerRequest {
                    container_id: self.container_id(name)?.to_owned(),
                    timeout: 0,
                };
                self.node.runtime().await?.stop_container(request).await?;
                Ok(())
            }
            Step::StopSandbox => {
                let mut runtime = self.node.runtime().await?;
                for pod_sandbox_id in self.sandboxes().await? {
                    let request = cri::StopPodSandboxRequest { pod_sandbox_id };
                    runtime.stop_pod_sandbox(request).await?;
                }
                Ok(())
            }
            Step::Do(action) => action(self),
            Step::Said(text) => loop {
                let log = self.node.kubelet_log();
                let mut lines = log.lines().filter(|line| line.contains(self.name));
                if lines.any(|line| line.contains(text)) {
                    return Ok(());
                }
                self.wait(deadline, || format!("the kubelet has not said {text:?}"))
                    .await?;
            },
        }
    }

    async fn wait(&self, deadline: Instant, problem: impl Fn() -> String) -> Result<()> {
        if Instant::now() > deadline {
            bail!("after {STEP:?}: {}", problem());
        }
        sleep(PERIOD).await;
        Ok(())
    }

    fn manifest_file(&self) -> String {
        format!("{}.yaml", self.name)
    }

    /// Removes the manifest, and waits until nothing is left of the pod.
    async fn remove(&self) -> Result<()> {
        self.node.remove_manifest(&self.manifest_file())?;
        self.await_nothing_left().await
    }

    /// Waits until nothing is left of the last observed pod.
    pub(crate) async fn await_nothing_left(&self) -> Result<()> {
        let deadline = Instant::now() + STEP;
        loop {
            let left = self.left().await?;
            if left.is_empty() {
                return Ok(());
            }
            self.wait(deadline, || format!("left of the removed pod: {left:?}"))
                .await?;
        }
    }

    async fn left(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        if self.node.pod(self.name).await?.is_some() {
            left.push("the kubelet's status".to_owned());
        }
        let uid = self.uid();
        if uid.is_empty() {
            return Ok(left);
        }
        let pod_dir = self.node.path("kubelet/pods").join(uid);
        for path in [pod_dir, self.log_dir()] {
            if path.exists() {
                left.push(path.display().to_string());
            }
        }
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        left.extend(
            mounts
                .lines()
                .filter(|line| line.contains(uid))
                .map(str::to_owned),
        );
        let sandboxes = self.sandboxes().await?;
        left.extend(sandboxes.into_iter().map(|id| format!("sandbox {id}")));
        let containers = Cri::of(self.node)
            .await?
            .containers(cri::ContainerFilter {
                label_selector: self.labels(),
                ..Default::default()
            })
            .await?;
        left.extend(
            containers
                .into_iter()
                .map(|c| format!("container {}", c.id)),
        );
        Ok(left)
    }

    /// The messages of the kubelet and the shim about the pod, and the files that it wrote.
    fn told(&self) -> String {
        let logs = [self.node.kubelet_log(), self.node.shim_log()];
        let lines = logs.iter().flat_map(|log| log.lines());
        let own = |line: &&str| line.contains(self.name) || line.contains(self.uid());
        let mut told: Vec<String> = lines.filter(own).map(str::to_owned).collect();
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let text = fs::read(entry.path()).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            told.push(format!("{}: {text:?}", entry.path().display()));
        }
        told.join("\n")
    }

    fn labels(&self) -> BTreeMap<String, String> {
        BTreeMap::from([("io.kubernetes.pod.uid".to_owned(), self.uid().to_owned())])
    }

    /// IDs of the pod's sandboxes.
    async fn sandboxes(&self) -> Result<Vec<String>> {
        let filter = cri::PodSandboxFilter {
            label_selector: self.labels(),
            ..Default::default()
        };
        let sandboxes = Cri::of(self.node).await?.pods(filter).await?;
        Ok(sandboxes.into_iter().map(|sandbox| sandbox.id).collect())
    }
}

async fn run_row(node: &Node, row: &Row) -> Result<()> {
    let mut subject = PodUnderTest::of(node, row);
    subject.begin(row)?;
    if let Err(error) = subject.take_all(row).await {
        let pod = serde_json::to_string_pretty(&subject.pod["status"])?;
        let removed = subject.remove().await;
        bail!("{error:#}\nstatus: {pod}\nremoved: {removed:?}");
    }
    subject.remove().await?;
    if let Some((what, check)) = &row.after_removal
        && !check(&subject)?
    {
        bail!("after its removal not so: {what}\n{}", subject.told());
    }
    Ok(())
}

/// The reason to skip a row if its requirement is missing.
fn lacking(need: Need, runtime: &str) -> Option<&'static str> {
    match need {
        Need::SysResource if runtime == "docker" && !has_sys_resource() => {
            Some("this machine denies CAP_SYS_RESOURCE, which this engine gives")
        }
        Need::ImageVolumes if runtime == "containerd" => {
            Some("Debian's containerd has no image volumes")
        }
        Need::StopSignal if runtime == "containerd" => {
            Some("Debian's containerd takes the signal from the image alone")
        }
        _ => None,
    }
}

/// Whether the bounding set of this process includes CAP_SYS_RESOURCE.
fn has_sys_resource() -> bool {
    const SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bounding = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let bounding = bounding.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    bounding.is_some_and(|set| set >> SYS_RESOURCE & 1 == 1)
}

/// Runs all rows on a node with the named runtime; fails with all rows that failed.
/// `POD_TABLE_ROWS`, a comma-separated list of names, selects some.
pub(crate) async fn run(node: &Node, runtime: &'static str, rows: Vec<Row>) {
    let picked = std::env::var("POD_TABLE_ROWS").ok();
    let picked: Option<Vec<&str>> = picked.as_ref().map(|names| names.split(',').collect());
    for name in picked.iter().flatten() {
        let is_there = rows.iter().any(|row| row.name == *name);
        assert!(is_there, "POD_TABLE_ROWS: no row {name:?}");
    }
    let rows = rows.into_iter().filter(|row| {
        picked
            .as_ref()
            .is_none_or(|names| names.contains(&row.name))
    });
    let results = stream::iter(rows)
        .map(|row| async move {
            if let Some(reason) = row.needs.and_then(|need| lacking(need, runtime)) {
                skips::skip(&format!("pod_table: {}, {runtime}", row.name), reason);
                return None;
            }
            let started = Instant::now();
            let result = run_row(node, &row).await;
            let verdict = if result.is_ok() { "ok" } else { "FAILED" };
            let seconds = started.elapsed().as_secs_f32();
            println!(
                "{runtime}: {} {verdict} ({seconds:.1} s): {}",
                row.name, row.feature
            );
            Some(result.with_context(|| format!("{}: {}", row.name, row.feature)))
        })
        .buffer_unordered(PARALLEL)
        .filter_map(|result| async { result })
        .collect::<Vec<_>>()
        .await;
    assert!(!results.is_empty(), "no row was run");
    let failed: Vec<String> = results
        .iter()
        .filter_map(|result| result.as_ref().err())
        .map(|error| format!("{error:#}"))
        .collect();
    assert!(
        failed.is_empty(),
        "{} of {} rows failed:\n\n{}",
        failed.len(),
        results.len(),
        failed.join("\n\n")
    );
}

/// Writes a file that all can read and a container's script can write to.
pub(crate) fn write(path: &Path, content: &str) -> Result<()> {
    Ok(fs::write(path, content)?)
}
