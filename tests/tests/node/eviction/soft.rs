//! Soft thresholds of every signal, with a restart of the kubelet in each grace period.

use super::*;

/// On a slow machine, longer than a kubelet takes to start and to report a condition.
const GRACE_PERIOD: &str = "40s";
const FILES: &str = "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); : > $d/$i; done";

pub(super) async fn run(node: Result<Node>) -> Result<()> {
    let lax = flags(&["--eviction-hard=memory.available<1Mi"]);
    let mut site = Site::new(node, &lax).await?;
    site.create("steady", "true", |_| ()).await?;
    site.running("steady").await?;

    site.create("volume", &fill(150), |_| ()).await?;
    site.running("volume").await?;
    let storage = ("DiskPressure", "ephemeral-storage");
    site.is_evicted_softly("volume", "nodefs.available<200Mi", storage)
        .await?;

    site.create("files", &format!("d=/data; {FILES}"), |_| ())
        .await?;
    site.running("files").await?;
    let inodes = ("DiskPressure", "inodes");
    site.is_evicted_softly("files", "nodefs.inodesFree<75%", inodes)
        .await?;

    let layer = "dd if=/dev/zero of=/file bs=1M count=100";
    site.create("layer", layer, |_| ()).await?;
    site.layer("layer", "usedBytes", 100 << 20).await?;
    // Less than the threshold until the layer is removed.
    site.cluster.node.fill_runtime_disk(60 << 20)?;
    site.is_evicted_softly("layer", "imagefs.available<120Mi", storage)
        .await?;

    let files = format!("d=/many; mkdir $d; {FILES}");
    site.create("layer-files", &files, |_| ()).await?;
    site.layer("layer-files", "inodesUsed", 30_000).await?;
    site.is_evicted_softly("layer-files", "imagefs.inodesFree<75%", inodes)
        .await?;

    let _alone = MACHINE.lock().await;
    let (total, available) = (memory::of_the_machine()?, site.available_memory().await?);
    let held = u32::try_from((total >> 20) / 8)?;
    site.create("memory", &hold(held), |_| ()).await?;
    site.running("memory").await?;
    let threshold = format!("memory.available<{}", available - total / 16);
    site.is_evicted_softly("memory", &threshold, ("MemoryPressure", "memory"))
        .await?;

    let threshold = format!("pid.available<{}", pids::available()? - pids::MARGIN);
    site.create("pids", &pids::many(), |_| ()).await?;
    site.running("pids").await?;
    site.is_evicted_softly("pids", &threshold, ("PIDPressure", "pids"))
        .await
}

impl Site {
    /// The pod is evicted after the grace period of a soft threshold, in which the kubelet is
    /// restarted; then the node's condition ends, and the pod `steady` runs on.
    async fn is_evicted_softly(
        &mut self,
        pod: &str,
        threshold: &str,
        (condition, resource): (&str, &str),
    ) -> Result<()> {
        let (signal, _) = threshold.split_once('<').context("no signal")?;
        let flags = flags(&[
            "--eviction-hard=memory.available<1Mi",
            &format!("--eviction-soft={threshold}"),
            &format!("--eviction-soft-grace-period={signal}={GRACE_PERIOD}"),
            "--eviction-max-pod-grace-period=1",
            TRANSITION,
        ]);
        self.cluster.restart_kubelet_with(&flags).await?;
        self.condition(condition, "True").await?;
        self.runs_on(pod).await?;
        self.cluster.restart_kubelet_with(&flags).await?;
        self.runs_on(pod).await?;
        let message = self.evicted(pod).await?;
        let start = format!("The node was low on resource: {resource}. Threshold quantity: ");
        ensure!(message.starts_with(&start), "{signal}: {message:?}");
        self.condition(condition, "False").await?;
        self.runs_on("steady").await?;
        self.delete(pod).await
    }
}
