//! The reboot of a node, as its pods see it.

use anyhow::Result;
use test_run::mounts::unmount_below;

use super::{Node, Runtime};

impl Node {
    /// Kills the runtime and starts it again, an engine with live restore. Containers survive that if
    /// the engine had live restore before.
    pub async fn restart_runtime(&mut self) -> Result<()> {
        match &mut self.runtime {
            Runtime::Docker { engine, .. } => {
                engine.kill()?;
                engine.start_again_with(&["--live-restore"]).await
            }
            Runtime::Containerd(containerd) => containerd.restart().await,
        }
    }

    /// Simulates a power cycle: kills all processes, unmounts the kubelet's mounts, and starts the
    /// runtime again, with the shim [beside the engine](Self::start_shim_beside_the_engine). It
    /// does not start the kubelet.
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
