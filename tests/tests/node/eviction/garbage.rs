//! Images and containers that no pod needs.

use cri_proto::runtime::v1::{ListContainersRequest, ListImagesRequest};

use super::*;

const UNUSED: &str = "e2e.local/unused:1";

async fn tags(node: &Node) -> Result<Vec<String>> {
    let mut images = node.images().await?;
    let listed = images.list_images(ListImagesRequest::default()).await?;
    let images = listed.into_inner().images;
    Ok(images
        .into_iter()
        .flat_map(|image| image.repo_tags)
        .collect())
}

async fn has(node: &Node, tag: &str) -> Result<bool> {
    let tags = tags(node).await?;
    Ok(tags.iter().any(|found| found.ends_with(tag)))
}

/// A threshold of the image file system in MiB, and what is left on it once it is met. The unused
/// image is larger than the difference.
const THRESHOLD: &str = "--eviction-hard=imagefs.available<130Mi";
const LEFT: u64 = 115 << 20;
const SIZE: usize = 40 << 20;

/// Unused images go before pods.
pub(super) async fn images(node: Result<Node>) -> Result<()> {
    let flags = flags(&[THRESHOLD, "--minimum-image-ttl-duration=1s", TRANSITION]);
    let mut site = Site::new(node, &flags).await?;
    site.cluster.node.load_image(UNUSED, SIZE).await?;
    site.create("user", "true", |_| ()).await?;
    site.running("user").await?;
    // Images are detected at the start, and are old enough one second later.
    site.cluster.restart_kubelet_with(&flags).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let node = &site.cluster.node;
    ensure!(has(node, UNUSED).await?, "not loaded");
    let report = site.prints(&["gc", "--dry-run"])?;
    ensure!(report == "Nothing would be removed.\n", "{report}");

    node.fill_runtime_disk(LEFT)?;
    let is_gone = async |node: &Node| Ok(!has(node, UNUSED).await?);
    node.await_until("the unused image is gone", SOON, is_gone)
        .await?;
    ensure!(has(node, images::BUSYBOX).await?, "an image in use is gone");
    site.condition("DiskPressure", "True").await?;
    site.condition("DiskPressure", "False").await?;
    let metrics = node.page("/metrics").await?;
    let count = "kubelet_image_garbage_collected_total{reason=\"space\"} ";
    ensure!(metrics.contains(count), "no {count:?}");
    site.runs_on("user").await
}

pub(super) async fn containers(node: Result<Node>) -> Result<()> {
    let flags = flags(&[
        "--eviction-hard=memory.available<1Mi",
        "--maximum-dead-containers-per-container=0",
    ]);
    let site = Site::new(node, &flags).await?;
    let with_job = |spec: &mut Value| {
        let mut job = spec["containers"][0].clone();
        job["name"] = json!("job");
        job["command"] = json!(["true"]);
        spec["containers"].as_array_mut().unwrap().push(job);
    };
    site.create("pod", "true", with_job).await?;
    let job_of = |pod: &Value| {
        let statuses = pod["status"]["containerStatuses"].as_array();
        let job = statuses
            .into_iter()
            .flatten()
            .find(|it| it["name"] == "job");
        job.cloned().unwrap_or_default()
    };
    let has_ended = |pod: &Value| job_of(pod)["state"]["terminated"]["reason"] == "Completed";
    site.cluster.await_pod("pod", SOON, has_ended).await?;
    let is_gone = async |node: &Node| {
        let mut runtime = node.runtime().await?;
        let all = runtime
            .list_containers(ListContainersRequest::default())
            .await?;
        let all = all.into_inner().containers;
        Ok(!all
            .iter()
            .any(|it| it.metadata.as_ref().is_some_and(|it| it.name == "job")))
    };
    let node = &site.cluster.node;
    node.await_until("the dead container is gone", SOON, is_gone)
        .await?;
    let pod = site.cluster.pod("pod").await?;
    ensure!(has_ended(&pod), "its end is forgotten: {pod:#}");
    ensure!(
        job_of(&pod)["restartCount"] == 0,
        "it was restarted: {pod:#}"
    );
    site.delete("pod").await
}
