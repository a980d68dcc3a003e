//! Directory entries.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::VolumeError;

/// Names and paths of the entries of a directory, sorted; empty if it does not exist. Blocks.
pub(crate) fn children(dir: &Path) -> Result<Vec<(String, PathBuf)>, VolumeError> {
    let failed = |error| VolumeError::io("list", dir, error);
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut children = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        children.push((name, entry.path()));
    }
    children.sort_unstable();
    Ok(children)
}
