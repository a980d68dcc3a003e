//! Process IDs of the machine.

use std::fs;

use super::*;

/// Below what is available at the start of the test. Other tests start processes too.
pub(super) const MARGIN: u64 = 2500;
/// The processes of the pod that starts too many.
const PROCESSES: u64 = 2 * MARGIN;

/// The IDs that are not in use. Each thread has one.
pub(super) fn available() -> Result<u64> {
    let limit = |file: &str| -> Result<u64> {
        let text = fs::read_to_string(format!("/proc/sys/kernel/{file}"))?;
        Ok(text.trim().parse()?)
    };
    let most = limit("pid_max")?.min(limit("threads-max")?);
    let load = fs::read_to_string("/proc/loadavg")?;
    let threads = load.split(['/', ' ']).nth(4).context("no threads")?;
    Ok(most - threads.parse::<u64>()?)
}

/// A command that starts more processes than that.
pub(super) fn many() -> String {
    format!("i=0; while [ $i -lt {PROCESSES} ]; do i=$((i+1)); sleep 1000 & done")
}

pub(super) async fn run(node: Result<Node>) -> Result<()> {
    let _alone = MACHINE.lock().await;
    let threshold = available()? - MARGIN;
    let flags = flags(&[
        &format!("--eviction-hard=pid.available<{threshold}"),
        TRANSITION,
    ]);
    let site = Site::new(node, &flags).await?;
    site.create("steady", "true", |_| ()).await?;
    site.running("steady").await?;
    site.create("many", &many(), |_| ()).await?;
    let message = site.evicted("many").await?;
    let start =
        format!("The node was low on resource: pids. Threshold quantity: {threshold}, available: ");
    ensure!(message.starts_with(&start), "{message:?}");
    ensure!(site.is_disrupted("many").await?, "no DisruptionTarget");
    site.condition("PIDPressure", "True").await?;
    site.create("refused", "true", |_| ()).await?;
    let message = site.evicted("refused").await?;
    ensure!(
        message == "Pod was rejected: The node had condition: [PIDPressure]. ",
        "{message:?}"
    );
    site.condition("PIDPressure", "False").await?;
    site.runs_on("steady").await
}
