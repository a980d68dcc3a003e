//! Records of volumes, written before and after their drivers are called.

use std::{
    fs,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
};

use tracing::warn;

use super::{client::CsiError, volume_data::VolumeData};
use crate::{VolumeError, blocking_at, blocking_on_own_files, mount};

/// The record in a directory.
pub(super) async fn load(dir: &Path) -> Result<Option<VolumeData>, VolumeError> {
    let dir = dir.to_owned();
    blocking_on_own_files(move || VolumeData::load(&dir)).await
}

/// As [`load`], for callers that can write a new record: a partial one counts as missing.
pub(super) async fn load_whole(dir: &Path) -> Result<Option<VolumeData>, VolumeError> {
    let dir = dir.to_owned();
    blocking_on_own_files(move || VolumeData::load_whole(&dir)).await
}

/// Whether the volume that is recorded in a directory is ready at a path.
pub(super) async fn is_ready(dir: &Path, target: &Path) -> Result<bool, VolumeError> {
    let (dir, target) = (dir.to_owned(), target.to_owned());
    blocking_at(&target.clone(), move || {
        match VolumeData::load_whole(&dir)? {
            Some(data) => data.is_ready(&target),
            None => Ok(false),
        }
    })
    .await
}

/// The record that was written before a driver call.
pub(super) struct JournalEntry {
    data: VolumeData,
    /// There was no record before.
    is_new: bool,
}

/// Creates the directory of a volume, and its mount point unless the driver has to create that, and
/// writes the record. The record of a volume that is ready is kept.
pub(super) async fn begin(
    dir: &Path,
    target: &Path,
    makes_target: bool,
    data: VolumeData,
) -> Result<JournalEntry, VolumeError> {
    let (dir, target) = (dir.to_owned(), target.to_owned());
    blocking_at(&target.clone(), move || {
        mount::make_dir(&dir, 0o750)?;
        if makes_target {
            mount::make_dir(&target, 0o750)?;
        }
        let known = VolumeData::load_whole(&dir)?;
        let is_new = known.is_none();
        if let Some(known) = known
            && known.is_ready(&target)?
        {
            return Ok(JournalEntry {
                data: known,
                is_new,
            });
        }
        data.save(&dir)?;
        Ok(JournalEntry { data, is_new })
    })
    .await
}

/// Records that a volume is not ready any more, before its driver is asked to remove it. Later
/// requests for the volume then call the driver again, which may still be removing it.
pub(super) async fn begin_undo(
    dir: &Path,
    mut data: VolumeData,
) -> Result<VolumeData, VolumeError> {
    let dir = dir.to_owned();
    blocking_on_own_files(move || {
        if data.note_unready() {
            data.save(&dir)?;
        }
        Ok(data)
    })
    .await
}

/// Records the result of a driver call. If the driver certainly did nothing, a new record is
/// removed.
pub(super) async fn end(
    begun: JournalEntry,
    dir: &Path,
    target: &Path,
    outcome: Result<(), CsiError>,
) -> Result<(), VolumeError> {
    let (dir, target) = (dir.to_owned(), target.to_owned());
    let JournalEntry { mut data, is_new } = begun;
    match outcome {
        Ok(()) => {
            blocking_at(&target.clone(), move || {
                data.note_ready(&target)?;
                data.save(&dir)
            })
            .await
        }
        Err(error) => {
            if error.is_final()
                && is_new
                && let Err(error) = remove(dir.clone(), target).await
            {
                warn!(dir = %dir.display(), %error, "cannot clean up after a failed CSI call");
            }
            Err(error.into())
        }
    }
}

/// Checks whether a driver has removed a volume from a path. A driver that does not know the volume
/// has nothing left of it, for example if it deleted an ephemeral volume before it could answer.
/// This fails if the volume is still there.
pub(super) async fn undone(
    outcome: Result<(), CsiError>,
    target: &Path,
) -> Result<(), VolumeError> {
    let Err(error) = outcome else {
        return Ok(());
    };
    if !error.is_not_found() {
        return Err(error.into());
    }
    let path = target.to_owned();
    let is_there = blocking_at(target, move || {
        let is_device = fs::symlink_metadata(&path)
            .is_ok_and(|metadata| metadata.file_type().is_block_device());
        Ok(is_device || mount::is_mounted(&path)?)
    });
    if is_there.await? {
        return Err(error.into());
    }
    warn!(
        path = %target.display(), %error,
        "the CSI driver does not know the volume; treating it as released"
    );
    Ok(())
}

pub(super) async fn unmount(target: &Path) -> Result<(), VolumeError> {
    let target = target.to_owned();
    blocking_at(&target.clone(), move || mount::unmount_all(&target)).await
}

pub(super) async fn remove(dir: PathBuf, target: PathBuf) -> Result<(), VolumeError> {
    blocking_at(&target.clone(), move || VolumeData::remove(&dir, &target)).await
}
