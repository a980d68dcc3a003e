//! State that the shim needs after a restart and that the engine cannot store. Each object has one
//! small file, replaced atomically, with a checksum in its first line.

use std::{fmt::Debug, fs, io, marker::PhantomData, path::PathBuf};

use atomic_file::Durability;
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};

/// The suffix of a checkpoint file.
const SUFFIX: &str = ".json";
/// Other users of the node can read checkpoints.
const MODE: u32 = 0o644;

/// Why a checkpoint was not written or read.
#[derive(Debug, thiserror::Error)]
#[error("{action} checkpoint {}: {source}", path.display())]
pub struct CheckpointError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The checkpoints of one kind, keyed by object id.
#[derive(Debug)]
pub struct Checkpoints<T> {
    directory: PathBuf,
    of: PhantomData<fn() -> T>,
}

impl<T: Serialize + DeserializeOwned> Checkpoints<T> {
    /// Creates the store in `directory`, which is created with the first checkpoint.
    pub fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            of: PhantomData,
        }
    }

    /// Loads the state of `id`. An unusable file is logged as a warning; a corrupt one is also
    /// removed.
    pub fn load(&self, id: &str) -> Option<T> {
        let path = self.path(id);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot read a checkpoint");
                return None;
            }
        };
        let found = decode(&text);
        if found.is_none() {
            tracing::warn!(path = %path.display(), "removing a corrupt checkpoint");
            self.remove(id);
        }
        found
    }

    /// Saves the state of `id`, replacing the previous one; it is on disk when this returns.
    ///
    /// # Errors
    /// [`CheckpointError`]; the previous state is kept, unless the directory could not be synced.
    pub fn save(&self, id: &str, state: &T) -> Result<(), CheckpointError> {
        self.replace(id, state, Durability::Synced)
    }

    /// Saves `state` for `id` like [`Checkpoints::save`], but without a sync to disk: a crash of
    /// the node may lose it.
    ///
    /// # Errors
    /// [`CheckpointError`]; the previous state is kept, unless the directory could not be synced.
    pub fn note(&self, id: &str, state: &T) -> Result<(), CheckpointError> {
        self.replace(id, state, Durability::Unsynced)
    }

    fn replace(&self, id: &str, state: &T, durability: Durability) -> Result<(), CheckpointError> {
        let path = self.path(id);
        let written = encode(state)
            .and_then(|text| atomic_file::replace(&path, text.as_bytes(), MODE, durability));
        written.map_err(|source| CheckpointError {
            action: "write",
            path,
            source,
        })
    }

    /// Removes the state of `id`, if any.
    pub fn remove(&self, id: &str) {
        let path = self.path(id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "cannot remove a checkpoint");
            }
            _ => {}
        }
    }

    /// Removes the checkpoints of ids that are not `is_live`, and temporary files left by a crash.
    pub fn retain(&self, is_live: impl Fn(&str) -> bool) {
        let Ok(entries) = fs::read_dir(&self.directory) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let live = name
                .to_str()
                .and_then(|name| name.strip_suffix(SUFFIX))
                .is_some_and(&is_live);
            if !live && let Err(error) = fs::remove_file(entry.path()) {
                tracing::warn!(
                    path = %entry.path().display(),
                    %error,
                    "cannot remove a checkpoint"
                );
            }
        }
    }

    fn path(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}{SUFFIX}"))
    }
}

fn encode<T: Serialize>(state: &T) -> io::Result<String> {
    let json = serde_json::to_string(state)?;
    Ok(format!("{}\n{json}\n", checksum(&json)))
}

fn decode<T: DeserializeOwned>(text: &str) -> Option<T> {
    let (sum, json) = text.split_once('\n')?;
    let json = json.trim_end();
    if sum != checksum(json) {
        return None;
    }
    serde_json::from_str(json).ok()
}

fn checksum(json: &str) -> String {
    format!("{:x}", Sha256::digest(json))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Some = (String, u64);

    #[test]
    fn what_was_saved_is_loaded_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::<Some>::new(dir.path().join("logs"));
        assert_eq!(checkpoints.load("a"), None);
        checkpoints.save("a", &("first".into(), 1)).unwrap();
        checkpoints.save("a", &("second".into(), 2)).unwrap();
        assert_eq!(checkpoints.load("a"), Some(("second".into(), 2)));
        checkpoints.remove("a");
        checkpoints.remove("a");
        assert_eq!(checkpoints.load("a"), None);
    }

    #[test]
    fn a_corrupt_checkpoint_is_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::<Some>::new(dir.path().into());
        checkpoints.save("a", &("text".into(), 7)).unwrap();
        let path = dir.path().join("a.json");
        let good = fs::read_to_string(&path).unwrap();
        for bad in ["", "x", &good[..good.len() / 2], &good.replace('7', "8")] {
            fs::write(&path, bad).unwrap();
            assert_eq!(checkpoints.load("a"), None, "{bad:?}");
        }
    }

    #[test]
    fn what_nobody_knows_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::<Some>::new(dir.path().into());
        for id in ["a", "b"] {
            checkpoints.save(id, &(id.into(), 0)).unwrap();
        }
        fs::write(dir.path().join(".c.json.tmp"), "half").unwrap();
        checkpoints.retain(|id| id == "b");
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1);
        assert!(checkpoints.load("b").is_some());
    }

    proptest! {
        #[test]
        fn any_text_is_a_checkpoint_or_none(text in ".{0,200}", state: Some) {
            prop_assert!(decode::<Some>(&text).is_none());
            prop_assert_eq!(decode(&encode(&state).unwrap()), Some(state));
        }
    }
}
