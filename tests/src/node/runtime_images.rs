//! Images of a node, and the disk that they are on.

use std::fs;

use anyhow::{Context as _, Result};
use bollard::query_parameters::RemoveImageOptions;
use rustix::fs::statvfs;

use super::{Node, Runtime};
use crate::{
    images,
    registry::{self, Registry},
};

impl Node {
    /// Pushes a busybox image with a digest of its own to a registry under this name, and leaves no
    /// local copy.
    pub async fn push(&self, registry: &Registry, name: &str, auth: bool) -> Result<()> {
        let to = registry.image(name);
        match &self.runtime {
            Runtime::Docker { engine, .. } => {
                let docker = engine.client()?;
                let credentials = auth.then(|| registry.credentials());
                let label = format!("LABEL from={to}");
                let local = "e2e.local/pushed:1";
                images::load(&docker, local, &["CMD [\"sh\"]", &label]).await?;
                images::push(&docker, local, &to, credentials).await?;
                for name in [local, &to] {
                    docker
                        .remove_image(name, None::<RemoveImageOptions>, None)
                        .await?;
                }
                Ok(())
            }
            Runtime::Containerd(containerd) => {
                let user = format!("{}:{}", registry::USER, registry::PASSWORD);
                containerd.push(&to, if auth { &user } else { "" })
            }
        }
    }

    /// Loads a busybox image with a file of this size.
    pub async fn load_image(&self, reference: &str, bytes: usize) -> Result<()> {
        match &self.runtime {
            Runtime::Docker { engine, .. } => {
                let label = format!("LABEL from={reference}");
                let changes = ["CMD [\"sh\"]", &label];
                images::load_of_size(&engine.client()?, reference, &changes, bytes).await
            }
            Runtime::Containerd(containerd) => {
                containerd.import_of_size(reference, &["echo", reference], bytes)
            }
        }
    }

    /// Writes a file to the file system of the runtime, so that this much is left.
    pub fn fill_runtime_disk(&self, left: u64) -> Result<()> {
        let directory = match &self.runtime {
            Runtime::Docker { .. } => "engine",
            Runtime::Containerd(_) => "containerd",
        };
        let directory = self.path(directory);
        let space = statvfs(&directory)?;
        let bytes = (space.f_bavail * space.f_frsize).checked_sub(left);
        let bytes = usize::try_from(bytes.context("less is left")?)?;
        Ok(fs::write(directory.join("filler"), vec![0; bytes])?)
    }
}
