//! State files on disk.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use kubelet_host::state_file::InvalidState;

use crate::{error::StartError, held::Held};

/// What containers have: in upstream's files, so that either kubelet can go on with them.
pub(crate) const CPU_FILE: &str = "cpu_manager_state";
pub(crate) const MEMORY_FILE: &str = "memory_manager_state";
/// The names of the policies in them: without and with one.
pub(crate) const CPU_POLICIES: [&str; 2] = ["none", "static"];
pub(crate) const MEMORY_POLICIES: [&str; 2] = ["None", "Static"];
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

impl Held {
    /// Names and contents of the state files.
    pub(crate) fn files(&self) -> io::Result<Vec<(&'static str, String)>> {
        let mut files = Vec::new();
        if let Some(cpu) = &self.cpu {
            files.push((CPU_FILE, cpu.state.to_file(CPU_POLICIES[1])?));
        }
        if let Some(memory) = &self.memory {
            files.push((MEMORY_FILE, memory.state.to_file(MEMORY_POLICIES[1])?));
        }
        Ok(files)
    }
}
