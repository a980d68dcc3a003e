//! `ImageFsInfo`.

use std::{path::PathBuf, time::Duration};

use cri_proto::runtime::v1::{
    FilesystemIdentifier, FilesystemUsage, ImageFsInfoResponse, UInt64Value,
};

use crate::{Error, Shim};

/// The time after which a file system is considered hung.
const LIMIT: Duration = Duration::from_secs(2);

/// The usage of images and of containers' writable layers on the engine's file system.
///
/// The images' bytes are the size of their layers ([`crate::images::LayersSize`]). Until the layers have
/// been counted, and if they cannot be counted, it is the sum over the images in the cache, which
/// counts a shared layer once per image. The images' inodes are all inodes in use on the file
/// system; those of another machine are unknown. The writable layers' usage is as last measured
/// ([`crate::stats::writable_layer`]).
///
/// # Errors
/// `Unavailable` before the images have been listed once, `DeadlineExceeded` if the file system
/// hangs.
pub async fn fs_info(shim: &Shim) -> Result<ImageFsInfoResponse, Error> {
    shim.images.require_list()?;
    let mountpoint = shim.root_dir()?;
    let inodes = match shim.engine.locality().is_local() {
        true => Some(inodes_used(&mountpoint).await?),
        false => None,
    };
    let timestamp = crate::clock::now();
    let usage = |used_bytes, inodes_used: Option<u64>| FilesystemUsage {
        timestamp,
        fs_id: Some(FilesystemIdentifier {
            mountpoint: mountpoint.clone(),
        }),
        used_bytes: Some(UInt64Value { value: used_bytes }),
        inodes_used: inodes_used.map(|value| UInt64Value { value }),
    };
    let images = match shim.layers_size.get(LIMIT).await {
        Some(bytes) => bytes,
        None => shim.images.snapshot().iter().map(|image| image.size).sum(),
    };
    shim.stats.layers.request();
    let (written, written_inodes) = shim.stats.layers.total();
    Ok(ImageFsInfoResponse {
        image_filesystems: vec![usage(images, inodes)],
        container_filesystems: vec![usage(written, Some(written_inodes))],
    })
}

/// The inodes in use on the file system of a path.
async fn inodes_used(path: &str) -> Result<u64, Error> {
    let action = "stat the file system of";
    let of = PathBuf::from(path);
    let stat = tokio::task::spawn_blocking(move || {
        rustix::fs::statvfs(&of).map_err(|error| Error::File {
            action,
            path: of,
            source: error.into(),
        })
    });
    let stat = tokio::time::timeout(LIMIT, stat)
        .await
        .map_err(|_| Error::Deadline {
            action,
            object: path.to_owned(),
            limit: LIMIT,
        })?
        .map_err(|_| Error::Panicked("ImageFsInfo"))??;
    Ok(stat.f_files.saturating_sub(stat.f_ffree))
}
