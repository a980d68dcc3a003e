//! The file system of the runtime's images and writable layers.

use super::*;

/// The shim measures a large layer every two minutes.
const MEASURED: Duration = Duration::from_secs(300);

/// Pods are ranked by what their layers use, once the runtime has measured it.
pub(super) async fn run(node: Result<Node>) -> Result<()> {
    let lax = flags(&["--eviction-hard=imagefs.available<1Mi", TRANSITION]);
    let mut site = Site::new(node, &lax).await?;
    let fill_layer = "dd if=/dev/zero of=/file bs=1M count=150";
    let files = "mkdir /many; i=0; while [ $i -lt 30000 ]; do i=$((i+1)); : > /many/$i; done";
    for (name, command) in [("steady", "true"), ("filler", fill_layer), ("files", files)] {
        site.create(name, command, |_| ()).await?;
        site.running(name).await?;
    }
    site.layer("filler", "usedBytes", 150 << 20).await?;
    site.layer("files", "inodesUsed", 30_000).await?;

    let bytes = flags(&["--eviction-hard=imagefs.available<170Mi", TRANSITION]);
    site.cluster.restart_kubelet_with(&bytes).await?;
    let message = site.evicted("filler").await?;
    let start = "The node was low on resource: ephemeral-storage. Threshold quantity: 170Mi, \
                 available: ";
    ensure!(message.starts_with(start), "{message:?}");
    ensure!(message.contains("Container c was using 15"), "{message:?}");
    site.condition("DiskPressure", "True").await?;
    // What it wrote is removed with its containers.
    site.condition("DiskPressure", "False").await?;
    for name in ["steady", "files"] {
        site.runs_on(name).await?;
    }

    let inodes = flags(&["--eviction-hard=imagefs.inodesFree<75%", TRANSITION]);
    site.cluster.restart_kubelet_with(&inodes).await?;
    let message = site.evicted("files").await?;
    ensure!(
        message.starts_with("The node was low on resource: inodes. "),
        "{message:?}"
    );
    site.condition("DiskPressure", "False").await?;
    site.runs_on("steady").await
}

impl Site {
    /// Waits until the summary shows at least this much of a pod's writable layer.
    pub(super) async fn layer(&self, pod: &str, field: &str, least: u64) -> Result<()> {
        let is_measured = async |node: &Node| {
            let page = node.page("/stats/summary").await?;
            let summary: Value = serde_json::from_str(&page)?;
            let pods = summary["pods"].as_array().into_iter().flatten();
            let mut named = pods.filter(|it| it["podRef"]["name"] == pod);
            let found = named.next().map(|it| &it["containers"][0]["rootfs"][field]);
            Ok(found.and_then(Value::as_u64) >= Some(least))
        };
        let what = format!("{field} of {pod} is measured");
        self.cluster
            .node
            .await_until(&what, MEASURED, is_measured)
            .await
    }
}
