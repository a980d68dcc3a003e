//! What is written down of a volume before its driver is asked for it, and after that.

use std::{
    fs,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
};

use kubelet_host::mount_info;
use tracing::warn;

use super::{client::CsiError, volume_data::VolumeData};
use crate::{VolumeError, blocking_at, blocking_on_own_files, mount};

/// What is written down in a directory.
pub(super) async fn load(dir: &Path) -> Result<Option<VolumeData>, VolumeError> {
    let dir = dir.to_owned();
    blocking_on_own_files(move || VolumeData::load(&dir)).await
}

/// As [`load`], where it can be written anew.
pub(super) async fn load_whole(dir: &Path) -> Result<Option<VolumeData>, VolumeError> {
    let dir = dir.to_owned();
    blocking_on_own_files(move || VolumeData::load_whole(&dir)).await
}

/// Whether what is written down in a directory is ready at the path.
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

/// What was written down of a volume before its driver is asked for it.
pub(super) struct Begun {
    data: VolumeData,
    /// It was the first time.
    is_new: bool,
}

/// Makes the directory of a volume, with the mount point where that is not the driver's to
/// make, and writes down what there is to be. What is written there already stays.
pub(super) async fn begin(
    dir: &Path,
    target: &Path,
    makes_target: bool,
    data: VolumeData,
) -> Result<Begun, VolumeError> {
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
            return Ok(Begun {
                data: known,
                is_new,
            });
        }
        data.save(&dir)?;
        Ok(Begun { data, is_new })
    })
    .await
}

/// Writes down that a volume is not ready any more, before its driver is asked to take it
/// away: whoever wants it then asks for it anew, as the driver may be at it still.
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

/// Writes down what came of asking the driver. Where it certainly did nothing, nothing is
/// left.
pub(super) async fn end(
    begun: Begun,
    dir: &Path,
    target: &Path,
    outcome: Result<(), CsiError>,
) -> Result<(), VolumeError> {
    let (dir, target) = (dir.to_owned(), target.to_owned());
    let Begun { mut data, is_new } = begun;
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
                warn!(dir = %dir.display(), %error, "cannot remove what a driver did not use");
            }
            Err(error.into())
        }
    }
}

/// Whether a driver has taken a volume away from a path. One that does not know the volume
/// has nothing of it any more, as an ephemeral one that it deleted before it could say so,
/// unless something of it is there still.
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
    warn!(path = %target.display(), %error, "what its driver does not know is given back");
    Ok(())
}

/// Where else the same is mounted as at a path, as it is where a volume is published from what
/// was staged: to take it away from below would harm a pod.
pub(super) async fn used_at(target: &Path) -> Result<Option<PathBuf>, VolumeError> {
    let target = target.to_owned();
    blocking_on_own_files(move || {
        let others = mount_info::elsewhere(&target)
            .map_err(|error| VolumeError::io("look for mounts at", &target, error))?;
        Ok(others.into_iter().next().map(|other| other.mount_point))
    })
    .await
}

pub(super) async fn unmount(target: &Path) -> Result<(), VolumeError> {
    let target = target.to_owned();
    blocking_at(&target.clone(), move || mount::unmount_all(&target)).await
}

pub(super) async fn remove(dir: PathBuf, target: PathBuf) -> Result<(), VolumeError> {
    blocking_at(&target.clone(), move || VolumeData::remove(&dir, &target)).await
}
