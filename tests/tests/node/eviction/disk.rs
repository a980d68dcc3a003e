//! The kubelet's file system.

use super::*;

pub(super) async fn run(node: Result<Node>) -> Result<()> {
    let hard = flags(&["--eviction-hard=nodefs.available<100Mi", TRANSITION]);
    let mut site = Site::new(node, &hard).await?;
    site.create("steady", &fill(40), |_| ()).await?;
    site.running("steady").await?;
    site.create("filler", &fill(180), |_| ()).await?;
    let message = site.evicted("filler").await?;
    let start = "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, \
                 available: ";
    ensure!(message.starts_with(start), "{message:?}");
    // Upstream leaves out the volume.
    ensure!(message.contains("data"), "the volume is not in {message:?}");
    ensure!(site.is_disrupted("filler").await?, "no DisruptionTarget");
    site.condition("DiskPressure", "True").await?;
    site.create("refused", "true", |_| ()).await?;
    let message = site.evicted("refused").await?;
    ensure!(
        message == "Pod was rejected: The node had condition: [DiskPressure]. ",
        "{message:?}"
    );
    let critical = |spec: &mut Value| spec["priorityClassName"] = json!("system-cluster-critical");
    site.create("critical", "true", critical).await?;
    site.running("critical").await?;
    site.condition("DiskPressure", "False").await?;
    site.runs_on("steady").await?;

    // A soft threshold; the kubelet dies in the grace period.
    let soft = flags(&[
        "--eviction-hard=nodefs.available<1Mi",
        "--eviction-soft=nodefs.available<200Mi",
        "--eviction-soft-grace-period=nodefs.available=15s",
        "--eviction-max-pod-grace-period=1",
        TRANSITION,
    ]);
    site.cluster.restart_kubelet_with(&soft).await?;
    site.create("slow", &fill(80), |_| ()).await?;
    site.condition("DiskPressure", "True").await?;
    site.runs_on("slow").await?;
    site.cluster.restart_kubelet_with(&soft).await?;
    site.runs_on("slow").await?;
    let message = site.evicted("slow").await?;
    ensure!(
        message.contains("Threshold quantity: 200Mi, "),
        "{message:?}"
    );
    site.condition("DiskPressure", "False").await?;
    site.runs_on("steady").await?;

    let inodes = flags(&["--eviction-hard=nodefs.inodesFree<75%", TRANSITION]);
    site.cluster.restart_kubelet_with(&inodes).await?;
    let many = "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); : > /data/$i; done";
    site.create("files", many, |_| ()).await?;
    let message = site.evicted("files").await?;
    ensure!(
        message.starts_with("The node was low on resource: inodes. "),
        "{message:?}"
    );
    site.runs_on("steady").await
}

/// More pods are evicted than the threshold alone needs.
pub(super) async fn minimum_reclaim(node: Result<Node>) -> Result<()> {
    let flags = flags(&[
        "--eviction-hard=nodefs.available<100Mi",
        "--eviction-minimum-reclaim=nodefs.available=120Mi",
        TRANSITION,
    ]);
    let site = Site::new(node, &flags).await?;
    for (name, mebibytes) in [("steady", 30), ("second", 70)] {
        site.create(name, &fill(mebibytes), |_| ()).await?;
        site.running(name).await?;
    }
    site.create("first", &fill(110), |_| ()).await?;
    for name in ["first", "second"] {
        let message = site.evicted(name).await?;
        ensure!(
            message.contains("Threshold quantity: 100Mi, "),
            "{message:?}"
        );
    }
    site.condition("DiskPressure", "False").await?;
    site.runs_on("steady").await
}
