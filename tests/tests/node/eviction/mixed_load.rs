//! A node of twenty pods for half an hour: six leak memory and disk, the others run on.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Instant,
};

use super::*;

/// The time under load, unless `E2E_LOAD_SECONDS` is set.
const SECONDS: u64 = 1800;
const PERIOD: Duration = Duration::from_secs(5);
const STEADY: usize = 14;
/// An emulated machine starts a pod in ten seconds.
const STARTED: Duration = Duration::from_secs(600);
/// What a leaking pod runs, without end.
const LEAKS: [(&str, &str); 6] = [
    ("memory-0", MEMORY),
    ("memory-1", MEMORY),
    ("volume-0", "d=/data"),
    ("volume-1", "d=/data"),
    ("layer", "d=/"),
    ("log", "while :; do seq 20000; sleep 1; done"),
];
/// Keeps a megabyte per step, and `STEP` of them per second.
const MEMORY: &str = "awk 'BEGIN { while (1) { kept[i++] = sprintf(\"%1000000s\", i); \
                      if (i % STEP == 0) system(\"sleep 1\") } }'";

pub(super) async fn run(node: Result<Node>) -> Result<()> {
    let total = memory::of_the_machine()?;
    // A pod leaks what is available in about five minutes, and the threshold in no less than ten
    // seconds.
    let flags = flags(&[
        &format!(
            "--eviction-hard=memory.available<{},nodefs.available<120Mi,imagefs.available<120Mi",
            total / 8
        ),
        TRANSITION,
    ]);
    let site = Site::new(node, &flags).await?;
    let step = site.available_memory().await? / 600 / 1_000_000;
    let step = step.max(1).to_string();
    let killed = oom_kills()?;
    let before = daemons()?;
    for n in 0..STEADY {
        site.create(&format!("steady-{n}"), "sleep 100000", |spec| {
            steady(n, spec)
        })
        .await?;
    }
    for n in 0..STEADY {
        let name = format!("steady-{n}");
        site.cluster.await_pod(&name, STARTED, is_ready).await?;
    }

    let seconds = test_run::size::amount("E2E_LOAD_SECONDS", SECONDS);
    let (begun, mut load) = (Instant::now(), Load::default());
    while begun.elapsed() < Duration::from_secs(seconds) {
        for (kind, leak) in LEAKS {
            let leak = match leak.strip_prefix("d=") {
                Some(directory) => format!(
                    "i=0; while :; do i=$((i+1)); dd if=/dev/zero of={directory}/leak-$i bs=1M \
                     count=2; sleep 1; done"
                ),
                None => leak.replace("STEP", &step),
            };
            load.renew(&site, kind, &leak).await?;
        }
        load.see_conditions(&site).await?;
        for n in 0..STEADY {
            site.runs_on(&format!("steady-{n}")).await?;
        }
        ensure!(oom_kills()? == killed, "the kernel has killed a process");
        tokio::time::sleep(PERIOD).await;
    }
    println!(
        "evicted: {:?}; conditions: {:?}",
        load.evicted, load.conditions
    );
    for (kind, _) in LEAKS {
        load.end(&site, kind).await?;
    }
    for condition in ["MemoryPressure", "DiskPressure"] {
        site.condition(condition, "False").await?;
        let seen = load.conditions.get(condition).copied().unwrap_or_default();
        ensure!(seen > 0, "{condition} did not come");
    }
    for kind in ["memory", "volume", "layer"] {
        let evicted = load.evicted.iter();
        let mut of_kind = evicted.filter(|(name, _)| name.starts_with(kind));
        ensure!(
            of_kind.any(|(_, count)| *count > 0),
            "no {kind} was evicted"
        );
    }
    ensure!(daemons()? == before, "a daemon was restarted");
    Ok(())
}

/// What has happened so far.
#[derive(Default)]
struct Load {
    /// The pod of each kind of leak that runs now, by its number.
    current: BTreeMap<&'static str, usize>,
    evicted: BTreeMap<&'static str, usize>,
    /// How often each condition of the node came.
    conditions: BTreeMap<String, usize>,
    last: BTreeMap<String, bool>,
}

impl Load {
    /// Replaces the pod of a leak when it was evicted, as a ReplicaSet does.
    async fn renew(&mut self, site: &Site, kind: &'static str, leak: &str) -> Result<()> {
        if let Some(n) = self.current.get(kind) {
            let name = format!("{kind}-{n}");
            let pod = site.cluster.pod(&name).await?;
            let status = &pod["status"];
            if status["phase"] != "Failed" {
                return Ok(());
            }
            ensure!(status["reason"] == "Evicted", "{name}: {status}");
            let message = status["message"].as_str().unwrap_or_default();
            if message.starts_with("The node was low on resource: ") {
                *self.evicted.entry(kind).or_default() += 1;
            }
            site.delete(&name).await?;
        }
        let n = self.current.get(kind).map_or(0, |n| n + 1);
        self.current.insert(kind, n);
        site.create(&format!("{kind}-{n}"), leak, |_| ()).await
    }

    async fn end(&mut self, site: &Site, kind: &'static str) -> Result<()> {
        let n = self.current.get(kind).context("it did not leak")?;
        site.delete(&format!("{kind}-{n}")).await
    }

    async fn see_conditions(&mut self, site: &Site) -> Result<()> {
        let node = site.cluster.control_plane.get(NODE).await?;
        let conditions = node["status"]["conditions"].as_array();
        for condition in conditions.into_iter().flatten() {
            let name = condition["type"].as_str().unwrap_or_default().to_owned();
            let is_true = condition["status"] == "True";
            if self.last.insert(name.clone(), is_true) == Some(false) && is_true {
                *self.conditions.entry(name).or_default() += 1;
            }
        }
        Ok(())
    }
}

/// The processes of kubelets and runtimes on the machine, each with the time of its start.
fn daemons() -> Result<BTreeSet<(String, String)>> {
    const NAMES: [&str; 4] = ["kubelet", "dockershim", "dockerd", "containerd"];
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc")? {
        // A process that has ended meanwhile is no daemon.
        let Ok(stat) = fs::read_to_string(entry?.path().join("stat")) else {
            continue;
        };
        let (name, fields) = stat.rsplit_once(") ").context("no command")?;
        let (_, command) = name.split_once('(').context("no command")?;
        if NAMES.contains(&command) {
            let start = fields.split(' ').nth(19).context("no start")?;
            found.insert((name.to_owned(), start.to_owned()));
        }
    }
    Ok(found)
}

/// Pods of each QoS class.
fn steady(n: usize, spec: &mut Value) {
    let container = &mut spec["containers"][0];
    match n % 3 {
        0 => {
            let resources = json!({"cpu": "20m", "memory": "32Mi"});
            container["resources"] = json!({"limits": resources});
        }
        1 => container["resources"] = json!({"requests": {"cpu": "1m", "memory": "16Mi"}}),
        _ => {}
    }
}

/// The processes that the OOM killer has killed since the start of the machine.
fn oom_kills() -> Result<u64> {
    let counters = fs::read_to_string("/proc/vmstat")?;
    let mut lines = counters.lines();
    let count = lines.find_map(|line| line.strip_prefix("oom_kill "));
    Ok(count.context("no oom_kill")?.parse()?)
}
