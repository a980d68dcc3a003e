//! State files on disk.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use kubelet_host::state_file::InvalidState;

use crate::error::StartError;

/// What containers have: in upstream's files, so that either kubelet can go on with them.
pub(crate) const CPU_FILE: &str = "cpu_manager_state";
pub(crate) const MEMORY_FILE: &str = "memory_manager_state";
/// A node has at most a few hundred containers with some hundred bytes each.
const LONGEST: u64 = 16 << 20;

/// Reads a state; `None` if there is no file.
pub(crate) fn read<S>(
    path: &Path,
    parse: impl FnOnce(&[u8]) -> Result<S, InvalidState>,
) -> Result<Option<S>, StartError> {
    let failed = |source| StartError::Read {
        path: path.to_owned(),
        source,
    };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let mut content = Vec::new();
    file.take(LONGEST)
        .read_to_end(&mut content)
        .map_err(failed)?;
    let state = parse(&content).map_err(|source| StartError::File {
        path: path.to_owned(),
        source,
    })?;
    Ok(Some(state))
}
