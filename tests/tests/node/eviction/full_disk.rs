//! A file system of the kubelet that is full, without a threshold that prevents it.

use rustix::fs::statvfs;

use super::*;

pub(super) async fn run(node: Result<Node>) -> Result<()> {
    let flags = flags(&["--eviction-hard=memory.available<1Mi"]);
    let mut site = Site::new(node, &flags).await?;
    site.create("steady", "true", |_| ()).await?;
    site.running("steady").await?;
    // It ends once nothing is left.
    site.create("filler", "cat /dev/zero > /data/file", |_| ())
        .await?;
    let is_full = async |node: &Node| {
        let space = statvfs(node.path("kubelet").as_path())?;
        Ok(space.f_bavail * space.f_frsize < 1 << 20)
    };
    let node = &site.cluster.node;
    node.await_until("the disk is full", SOON, is_full).await?;

    // A kubelet that starts on the full disk finds its certificate, its pods and their statuses.
    site.cluster.restart_kubelet_with(&flags).await?;
    for name in ["steady", "filler"] {
        site.runs_on(name).await?;
    }
    let config = |spec: &mut Value| {
        spec["containers"][0]["terminationMessagePath"] = json!("/dev/message");
    };
    site.create("late", "echo ended > /dev/message; exit 0", config)
        .await?;
    // Deleting is possible without room, and makes room for the other pod.
    site.delete("filler").await?;
    let succeeded = |pod: &Value| pod["status"]["phase"] == "Succeeded";
    let late = site.cluster.await_pod("late", SOON, succeeded).await?;
    let ended = &late["status"]["containerStatuses"][0]["state"]["terminated"];
    ensure!(
        ended["message"] == "ended\n",
        "the message is lost: {ended}"
    );
    site.runs_on("steady").await
}
