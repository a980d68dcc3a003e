//! Images that no pod needs.

use std::fs;

use cri_proto::runtime::v1::ListImagesRequest;

use super::*;

const UNUSED: &str = "e2e.local/unused:1";
const USED_BEFORE: &str = "e2e.local/used-before:1";
/// A kubelet removes no image at its start. It collects again after five minutes.
const SECOND_COLLECTION: Duration = Duration::from_secs(400);

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
pub(super) async fn before_pods(node: Result<Node>) -> Result<()> {
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
    await_count(node, "space").await?;
    site.runs_on("user").await
}

/// Above the high threshold, images go until the usage is below the low one: first those that were
/// never used. When an image was used survives a restart of the kubelet.
pub(super) async fn by_space(node: Result<Node>) -> Result<()> {
    let flags = flags(&[
        "--minimum-image-ttl-duration=1s",
        "--image-gc-high-threshold=70",
        "--image-gc-low-threshold=65",
    ]);
    let mut site = Site::new(node, &flags).await?;
    let node = &site.cluster.node;
    for image in [UNUSED, USED_BEFORE] {
        node.load_image(image, SIZE).await?;
    }
    let with_image = |spec: &mut Value| spec["containers"][0]["image"] = json!(USED_BEFORE);
    site.create("user", "true", with_image).await?;
    site.running("user").await?;
    // The use is detected at the start.
    site.cluster.restart_kubelet_with(&flags).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    site.delete("user").await?;
    site.cluster.restart_kubelet_with(&flags).await?;

    // Less than 30 % is free, and one image is enough to have 35 %.
    let node = &site.cluster.node;
    node.fill_runtime_disk(80 << 20)?;
    let is_gone = async |node: &Node| Ok(!has(node, UNUSED).await?);
    let what = "the image that was never used is gone";
    node.await_until(what, SECOND_COLLECTION, is_gone).await?;
    ensure!(has(node, USED_BEFORE).await?, "more than necessary is gone");
    await_count(node, "space").await?;
    Ok(())
}

/// Images that were unused for too long go even if there is space. Images in use stay, even if there
/// is none: an event tells so.
pub(super) async fn by_age(node: Result<Node>) -> Result<()> {
    let node = node?;
    let directory = node.path("config.d");
    fs::create_dir(&directory)?;
    let config = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                  imageMinimumGCAge: 1s\nimageMaximumGCAge: 1m\n\
                  imageGCHighThresholdPercent: 50\nimageGCLowThresholdPercent: 40\n";
    fs::write(directory.join("images.conf"), config)?;
    let flags = [format!("--config-dir={}", directory.display())];
    let mut site = Site::new(Ok(node), &flags).await?;
    site.cluster.node.load_image(UNUSED, SIZE).await?;
    site.create("user", "true", |_| ()).await?;
    site.running("user").await?;
    site.cluster.restart_kubelet_with(&flags).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    site.cluster.restart_kubelet_with(&flags).await?;

    let node = &site.cluster.node;
    // Even without the unused image, less than half is free.
    node.fill_runtime_disk(10 << 20)?;
    let is_gone = async |node: &Node| Ok(!has(node, UNUSED).await?);
    node.await_until("the unused image is gone", SECOND_COLLECTION, is_gone)
        .await?;
    ensure!(has(node, images::BUSYBOX).await?, "an image in use is gone");
    await_count(node, "age").await?;
    let message = site.event("node", "FreeDiskSpaceFailed").await?;
    let told = "Insufficient free disk space on the node's image filesystem (";
    ensure!(message.starts_with(told), "{message:?}");
    site.runs_on("user").await
}

/// Waits until a removal for this reason is counted. The runtime may still be removing the image when
/// it does not list it any more.
async fn await_count(node: &Node, reason: &str) -> Result<()> {
    let count = format!("kubelet_image_garbage_collected_total{{reason=\"{reason}\"}} ");
    let is_counted = async |node: &Node| {
        let metrics = node.page("/metrics").await?;
        let counted = metrics.lines().find_map(|line| line.strip_prefix(&count));
        Ok(counted.is_some_and(|counted| counted != "0"))
    };
    let what = format!("a removal for {reason} is counted");
    node.await_until(&what, SOON, is_counted).await
}
