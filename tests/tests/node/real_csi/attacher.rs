//! The external attacher's part: the attach/detach controller creates a VolumeAttachment for each
//! volume and node; the attacher calls the driver and sets its status.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{
    driver::{NAME, NODE_ID},
    site::Site,
    volume::Mode,
};

const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
const FINALIZER: &str = "external-attacher/hostpath-csi-k8s-io";

impl Site {
    /// Attaches and detaches volumes according to the VolumeAttachments.
    ///
    /// # Errors
    /// For example, the driver refuses to detach a volume that is staged or published.
    pub(crate) async fn attach_and_detach(&self) -> Result<()> {
        if !self.attaches {
            return Ok(());
        }
        for attachment in self.attachments().await? {
            let name = attachment["metadata"]["name"].as_str().unwrap_or_default();
            let path = format!("{ATTACHMENTS}/{name}");
            let is_going = !attachment["metadata"]["deletionTimestamp"].is_null();
            let is_ours = !attachment["metadata"]["finalizers"].is_null();
            let is_attached = attachment["status"]["attached"] == true;
            if is_going && is_ours {
                let volume = self.volume_of(&attachment).await?;
                self.detach(&volume).await?;
                let free = json!({"metadata": {"finalizers": null}});
                self.patch(&path, &free).await?;
            } else if !is_going && !is_attached {
                let held = json!({"metadata": {"finalizers": [FINALIZER]}});
                self.patch(&path, &held).await?;
                let volume = self.volume_of(&attachment).await?;
                self.attach(&volume).await?;
                let attached = json!({"status": {"attached": true}});
                self.patch(&format!("{path}/status"), &attached).await?;
            }
        }
        Ok(())
    }

    /// The driver's VolumeAttachments.
    pub(crate) async fn attachments(&self) -> Result<Vec<Value>> {
        let list = self.get(ATTACHMENTS).await?;
        let all = list["items"].as_array().into_iter().flatten();
        let own = all.filter(|attachment| attachment["spec"]["attacher"] == NAME);
        Ok(own.cloned().collect())
    }

    async fn volume_of(&self, attachment: &Value) -> Result<Value> {
        let name = &attachment["spec"]["source"]["persistentVolumeName"];
        let name = name.as_str().context("an attachment of nothing")?;
        self.get(&format!("/api/v1/persistentvolumes/{name}")).await
    }

    async fn attach(&self, volume: &Value) -> Result<()> {
        let mode = match volume["spec"]["volumeMode"].as_str() {
            Some("Block") => Mode::Block,
            _ => Mode::Filesystem,
        };
        let controller = self.driver.controller().await?;
        controller.attach(handle(volume), NODE_ID, mode).await
    }

    async fn detach(&self, volume: &Value) -> Result<()> {
        let controller = self.driver.controller().await?;
        let detached = controller.detach(handle(volume), NODE_ID).await;
        let kubelet = || format!("kubelet:\n{}", self.cluster.node.kubelet_log());
        detached.with_context(kubelet)
    }
}

fn handle(volume: &Value) -> &str {
    volume["spec"]["csi"]["volumeHandle"]
        .as_str()
        .unwrap_or_default()
}
