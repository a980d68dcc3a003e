//! Memory of the pods' cgroup.

use std::fs;

use super::*;

/// The memory that pods may use, in MiB, and below it the threshold.
const FOR_PODS: u64 = 400;
const THRESHOLD: &str = "--eviction-hard=memory.available<100Mi";

/// The machine's memory in bytes.
pub(super) fn of_the_machine() -> Result<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    let total = meminfo.lines().find_map(|line| {
        let line = line.strip_prefix("MemTotal:")?.trim();
        line.strip_suffix(" kB")?.parse::<u64>().ok()
    });
    Ok(total.context("no MemTotal")? << 10)
}

/// Reserves all memory but [`FOR_PODS`].
fn reservation() -> Result<String> {
    let reserved = of_the_machine()? - (FOR_PODS << 20);
    Ok(format!("--system-reserved=memory={reserved}"))
}

pub(super) async fn run(node: Result<Node>) -> Result<()> {
    let mut flags = flags(&[THRESHOLD, TRANSITION, "--kernel-memcg-notification"]);
    flags.push(reservation()?);
    let mut site = Site::new(node, &flags).await?;
    site.condition("MemoryPressure", "False").await?;
    let critical = |spec: &mut Value| spec["priorityClassName"] = json!("system-cluster-critical");
    site.create("critical", &hold(60), critical).await?;
    let requests = |spec: &mut Value| {
        spec["containers"][0]["resources"] = json!({"requests": {"memory": "200Mi"}});
    };
    site.create("within-request", &hold(120), requests).await?;
    site.create("small", &hold(20), |_| ()).await?;
    for name in ["critical", "within-request", "small"] {
        site.running(name).await?;
    }
    site.create("leak", &hold(140), |_| ()).await?;

    let message = site.evicted("leak").await?;
    let told = [
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: ",
        "Container c was using ",
        ", request is 0, has larger consumption of memory. ",
    ];
    for part in told {
        ensure!(message.contains(part), "{part:?} is not in {message:?}");
    }
    ensure!(site.is_disrupted("leak").await?, "no DisruptionTarget");
    ensure!(site.event("leak", "Evicted").await? == message);
    site.event("node", "EvictionThresholdMet").await?;
    site.condition("MemoryPressure", "True").await?;
    site.create("best-effort", "true", |_| ()).await?;
    let message = site.evicted("best-effort").await?;
    ensure!(
        message == "Pod was rejected: The node had condition: [MemoryPressure]. ",
        "{message:?}"
    );
    let small = |spec: &mut Value| {
        spec["containers"][0]["resources"] = json!({"requests": {"memory": "1Mi"}});
    };
    site.create("burstable", "true", small).await?;
    site.running("burstable").await?;

    let log = site.cluster.node.kubelet_log();
    ensure!(!log.contains("does not notify"), "{log}");
    site.condition("MemoryPressure", "False").await?;
    site.create("later", "true", |_| ()).await?;
    site.running("later").await?;
    let metrics = site.cluster.node.page("/metrics").await?;
    let count = "kubelet_evictions{eviction_signal=\"allocatableMemory.available\"} 1\n";
    ensure!(metrics.contains(count), "no {count:?}");
    let status = site.prints(&["status"])?;
    ensure!(status.contains("  default/leak, "), "{status}");

    // What was evicted stays so under another kubelet; the others run on.
    site.cluster.restart_kubelet_with(&flags).await?;
    for name in ["critical", "within-request", "small", "later"] {
        site.runs_on(name).await?;
    }
    site.evicted("leak").await?;
    Ok(())
}

/// More pods are evicted than the threshold alone needs, the largest first.
pub(super) async fn minimum_reclaim(node: Result<Node>) -> Result<()> {
    let reclaim = "--eviction-minimum-reclaim=memory.available=150Mi";
    let mut flags = flags(&[THRESHOLD, reclaim, TRANSITION]);
    flags.push(reservation()?);
    let site = Site::new(node, &flags).await?;
    for (name, mebibytes) in [("small", 70), ("second", 110)] {
        site.create(name, &hold(mebibytes), |_| ()).await?;
        site.running(name).await?;
    }
    site.create("first", &hold(140), |_| ()).await?;
    for name in ["first", "second"] {
        let message = site.evicted(name).await?;
        ensure!(
            message.contains("Threshold quantity: 100Mi, "),
            "{message:?}"
        );
    }
    site.condition("MemoryPressure", "False").await?;
    site.runs_on("small").await
}
