//! Left-overs once no pod uses a volume any more.

use std::{fs, path::Path};

use anyhow::Result;
use serde_json::Value;

use super::site::Site;

impl Site {
    /// Left-overs on the node: mounts, the kubelet's files of pods and volumes, and volumes that
    /// the driver considers staged or published.
    pub(crate) fn left_on_node(&self) -> Result<Vec<String>> {
        let root = self.cluster.node.path("kubelet");
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let targets = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        let below = targets.filter(|target| Path::new(target).starts_with(&root));
        let mut left: Vec<String> = below.map(|target| format!("mount {target}")).collect();
        files(&root.join("pods"), &mut left);
        files(&root.join("plugins/kubernetes.io/csi"), &mut left);
        let volumes = self.driver.volumes()?.into_iter();
        let used = volumes.filter(|volume| volume.is_used());
        left.extend(used.map(|volume| format!("{volume:?}")));
        Ok(left)
    }

    /// Waits until nothing is left on the node and in the cluster.
    pub(crate) async fn nothing_left(&mut self) -> Result<()> {
        self.until("nothing is left", async |site| {
            let node = site.get("/api/v1/nodes/node").await?;
            let in_use = &node["status"]["volumesInUse"];
            let is_in_use = in_use
                .as_array()
                .is_some_and(|all: &Vec<Value>| !all.is_empty());
            let is_free = !is_in_use
                && site.attachments().await?.is_empty()
                && site.left_on_node()?.is_empty();
            Ok(is_free.then_some(()))
        })
        .await
    }
}

/// All files, and the directories without entries.
fn files(dir: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let before = found.len();
        if is_dir {
            files(&path, found);
        }
        // Directories shared by volumes are kept.
        let is_common = ["volumeDevices", "staging", "publish", super::driver::NAME]
            .iter()
            .any(|name| path.ends_with(name));
        if found.len() == before && !(is_dir && is_common) {
            found.push(path.display().to_string());
        }
    }
}
