//! Reads single files of images. The engine can read files only from containers, so a container is
//! created from the image for the read, and never started.

use std::{
    collections::HashMap,
    io::Read as _,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use bollard::{
    models::{ContainerCreateBody, ContainerSummary, ContainerSummaryStateEnum, HostConfig},
    query_parameters::DownloadFromContainerOptions,
};
use futures::{StreamExt as _, TryStreamExt as _};

use super::{Cause, Engine, EngineError, NewContainer, READ};
use crate::labels;

/// The name prefix of the containers created for reading.
const NAME_PREFIX: &str = "dockershim-scratch-";
/// The size limit of a file's archive, in bytes.
const LIMIT: usize = 4 * 1024 * 1024;
/// The number of symlinks followed to a file.
const LINKS: usize = 8;
const REMOVAL: Duration = Duration::from_secs(30);
/// The number of leftover containers removed concurrently.
const REMOVALS: usize = 8;

/// Tracks whether such containers are in use: the number of reads that began and that ended.
#[derive(Debug, Default)]
pub(super) struct ScratchUse {
    began: AtomicU64,
    ended: AtomicU64,
}

/// A read in progress; dropping it ends the read.
struct ReadGuard<'a>(&'a ScratchUse);

impl ScratchUse {
    fn begin(&self) -> ReadGuard<'_> {
        self.began.fetch_add(1, Ordering::SeqCst);
        ReadGuard(self)
    }

    /// The number of reads so far, if none is in progress.
    fn none_since(&self) -> Option<u64> {
        let ended = self.ended.load(Ordering::SeqCst);
        (self.began.load(Ordering::SeqCst) == ended).then_some(ended)
    }
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl Engine {
    /// The contents of files in the image with this id; empty for a missing file.
    ///
    /// # Errors
    /// Any [`Cause`]; `NotFound` if there is no such image.
    pub async fn read_image_files<const N: usize>(
        &self,
        image: &str,
        paths: [&str; N],
    ) -> Result<[Vec<u8>; N], EngineError> {
        let _reading = self.scratch.begin();
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            entrypoint: Some(vec!["/".into()]),
            labels: Some(HashMap::from([(
                labels::TYPE.into(),
                labels::TYPE_SCRATCH.into(),
            )])),
            host_config: Some(HostConfig {
                network_mode: Some("none".into()),
                ..Default::default()
            }),
            ..Default::default()
        };
        let number = jiff::Timestamp::now().as_nanosecond();
        let name = format!("{NAME_PREFIX}{number:x}");
        let id = self.create_container(NewContainer { name, body }).await?;
        let mut files = std::array::from_fn(|_| Vec::new());
        let mut read = Ok(());
        for (file, path) in files.iter_mut().zip(paths) {
            match self.read_container_file(&id, path).await {
                Ok(content) => *file = content,
                Err(error) if error.is_not_found() => {}
                Err(error) => read = Err(error),
            }
        }
        let removal = self.remove_container(&id, false);
        if let Ok(Err(error)) = tokio::time::timeout(REMOVAL, removal).await {
            tracing::warn!(
                container_id = id,
                %error,
                "cannot remove a container created to read an image's files"
            );
        }
        read.map(|()| files)
    }

    /// Removes containers created for reading that were left over by a crash of this process or the
    /// engine. Does nothing while any read is in progress.
    ///
    /// # Errors
    /// Any [`Cause`].
    pub async fn remove_scratch(&self) -> Result<(), EngineError> {
        let unused = self.scratch.none_since();
        let listed = self.list_containers(labels::TYPE).await?;
        if unused.is_none() || self.scratch.none_since() != unused {
            return Ok(());
        }
        let scratch = listed.into_iter().filter(may_be_scratch);
        futures::stream::iter(scratch.filter_map(|summary| summary.id))
            .map(Ok)
            .try_for_each_concurrent(REMOVALS, async |id| {
                // Images and users can set labels and names too; only the shim's own containers
                // have its mark.
                let ours = match self.inspect_container(&id).await {
                    Ok(inspect) => labels::made_here(inspect.host_config.as_ref()),
                    Err(error) if error.is_not_found() => false,
                    Err(error) => return Err(error),
                };
                if !ours {
                    return Ok(());
                }
                match self.remove_container(&id, false).await {
                    Err(error) if !error.is_not_found() => Err(error),
                    _ => Ok(()),
                }
            })
            .await
    }

    async fn read_container_file(&self, id: &str, path: &str) -> Result<Vec<u8>, EngineError> {
        let mut path = path.to_owned();
        for _ in 0..LINKS {
            match self.read_tar(id, &path).await? {
                ArchiveEntry::File(content) => return Ok(content),
                ArchiveEntry::Link(target) if target.starts_with('/') => path = target,
                ArchiveEntry::Link(target) => {
                    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
                    path = format!("{directory}/{target}");
                }
                ArchiveEntry::Other => return Ok(Vec::new()),
            }
        }
        Ok(Vec::new())
    }

    async fn read_tar(&self, id: &str, path: &str) -> Result<ArchiveEntry, EngineError> {
        let call = self.call("read a file of container", id, READ);
        let docker = call.docker(self)?;
        let options = DownloadFromContainerOptions {
            path: path.to_owned(),
        };
        let archive = call
            .run(async {
                let mut archive = Vec::new();
                let mut parts = Box::pin(docker.download_from_container(id, Some(options)));
                while let Some(part) = parts.next().await {
                    archive.extend_from_slice(&part?);
                    if archive.len() > LIMIT {
                        break;
                    }
                }
                Ok(archive)
            })
            .await?;
        first_entry(&archive).map_err(|error| call.failed(Cause::Protocol(error.to_string())))
    }
}

/// Whether an entry of the engine's list may be a container created for reading.
pub fn may_be_scratch(summary: &ContainerSummary) -> bool {
    let labels = summary.labels.as_ref();
    let kind = labels.and_then(|labels| labels.get(labels::TYPE));
    kind.is_some_and(|kind| kind == labels::TYPE_SCRATCH)
        && summary.state == Some(ContainerSummaryStateEnum::CREATED)
}

/// The file at a path.
enum ArchiveEntry {
    File(Vec<u8>),
    Link(String),
    Other,
}

fn first_entry(archive: &[u8]) -> std::io::Result<ArchiveEntry> {
    let mut archive = tar::Archive::new(archive);
    let Some(entry) = archive.entries()?.next() else {
        return Ok(ArchiveEntry::Other);
    };
    let mut entry = entry?;
    let kind = entry.header().entry_type();
    if kind.is_symlink() {
        let target = entry.link_name()?;
        let target = target.map(|target| target.to_string_lossy().into_owned());
        return Ok(ArchiveEntry::Link(target.unwrap_or_default()));
    }
    if !kind.is_file() {
        return Ok(ArchiveEntry::Other);
    }
    let mut content = Vec::new();
    entry.read_to_end(&mut content)?;
    Ok(ArchiveEntry::File(content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_a_read_is_under_way_is_known() {
        let scratch = ScratchUse::default();
        assert_eq!(scratch.none_since(), Some(0));
        let first = scratch.begin();
        drop(scratch.begin());
        assert_eq!(scratch.none_since(), None);
        drop(first);
        assert_eq!(scratch.none_since(), Some(2));
    }
}
