//! A reboot of a node, as far as its pods can tell.

use anyhow::Result;

use super::{Node, Runtime};
use crate::containerd_shims::unmount_below;

impl Node {
    /// Cuts the power and switches it on again: everything is killed, nothing is mounted
    /// any more, and the runtime is there again, with the shim
    /// [beside the engine](Self::start_shim_beside_the_engine). The kubelet is not.
    pub async fn reboot(&mut self) -> Result<()> {
        if self.kubelet.is_some() {
            self.kill_kubelet()?;
        }
        if self.shim.is_some() {
            self.kill_shim()?;
        }
        match &mut self.runtime {
            Runtime::Docker { engine, .. } => engine.stop()?,
            Runtime::Containerd(containerd) => containerd.stop(),
        }
        unmount_below(&self.path("kubelet"));
        match &mut self.runtime {
            Runtime::Docker { engine, .. } => {
                engine.start_again().await?;
                self.start_shim_beside_the_engine(&[]).await
            }
            Runtime::Containerd(containerd) => containerd.start_again().await,
        }
    }
}
