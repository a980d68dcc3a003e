//! The files of the records. Everything here may block.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};
use tracing::warn;

use super::record::{ImagePullCredentials, ImagePullIntent, ImagePulledRecord};

const PREFIX: &str = "sha256-";
const TEMPORARY: &str = ".tmp";

/// The records' directories.
#[derive(Debug)]
pub(super) struct Store {
    pulling: PathBuf,
    pulled: PathBuf,
    /// The pulls of each image that were begun. Held while files are worked on.
    begun: Mutex<BTreeMap<String, Begun>>,
}

/// The pulls of an image that were begun.
#[derive(Debug, Default)]
struct Begun {
    /// How many are on their way.
    open: u32,
    /// Whether one before them may have brought the image without a record of it, so that
    /// the intent outlives them if they fail.
    is_in_doubt: bool,
}

/// How a pull ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Its image is recorded.
    Recorded,
    /// It brought nothing that a pod would have to show credentials for.
    Failed,
    /// It may have brought the image, or may still, and whose that is is in no record.
    InDoubt,
}

impl Store {
    pub(super) fn new(root_dir: &Path) -> Self {
        let dir = root_dir.join("image_manager");
        Self {
            pulling: dir.join("pulling"),
            pulled: dir.join("pulled"),
            begun: Mutex::default(),
        }
    }

    /// Images whose pulls were begun, by whichever kubelet.
    pub(super) fn intents(&self) -> Vec<String> {
        let _held = self.begun.lock();
        let entries = fs::read_dir(&self.pulling).into_iter().flatten().flatten();
        let mut images: Vec<String> = entries
            .filter(|entry| {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                name.starts_with(PREFIX) && !name.ends_with(TEMPORARY)
            })
            .filter_map(|entry| {
                let intent = read::<ImagePullIntent>(&entry.path());
                intent
                    .inspect_err(|error| {
                        let path = entry.path();
                        warn!(path = %path.display(), %error, "a record is none");
                    })
                    .ok()
                    .flatten()
            })
            .filter(ImagePullIntent::is_known)
            .map(|intent| intent.image)
            .collect();
        images.sort();
        images
    }

    /// Whether a pull of the image was begun and not ended.
    pub(super) fn is_begun(&self, image: &str) -> bool {
        let begun = self.begun.lock();
        begun.contains_key(image) || self.pulling.join(file_name(image)).exists()
    }

    /// Whether there is an intent of the image that nobody pulls by.
    pub(super) fn is_in_doubt(&self, image: &str) -> bool {
        let begun = self.begun.lock();
        match begun.get(image) {
            Some(begun) => begun.is_in_doubt,
            None => self.pulling.join(file_name(image)).exists(),
        }
    }

    pub(super) fn begin(&self, image: &str) -> io::Result<()> {
        let mut begun = self.begun.lock();
        let path = self.pulling.join(file_name(image));
        let is_left = !begun.contains_key(image) && path.exists();
        let intent = ImagePullIntent::new(image);
        write(&self.pulling, &file_name(image), &intent)?;
        let begun = begun.entry(image.to_owned()).or_default();
        begun.open += 1;
        begun.is_in_doubt |= is_left;
        Ok(())
    }

    /// A pull ended; the last one of the image takes its intent away, if nothing is in
    /// doubt.
    pub(super) fn end(&self, image: &str, ending: Ending) -> io::Result<()> {
        let mut all = self.begun.lock();
        let begun = all.entry(image.to_owned()).or_default();
        begun.open = begun.open.saturating_sub(1);
        match ending {
            Ending::Recorded => begun.is_in_doubt = false,
            Ending::Failed => {}
            Ending::InDoubt => begun.is_in_doubt = true,
        }
        if begun.open == 0 {
            let is_in_doubt = begun.is_in_doubt;
            // The file says the same of one that is in doubt.
            all.remove(image);
            if !is_in_doubt {
                return remove(&self.pulling.join(file_name(image)));
            }
        }
        Ok(())
    }

    /// Takes away the intent of a pull that this kubelet did not begin.
    pub(super) fn remove_intent(&self, image: &str) -> io::Result<()> {
        let begun = self.begun.lock();
        if begun.contains_key(image) {
            return Ok(());
        }
        remove(&self.pulling.join(file_name(image)))
    }

    /// The record of an image that was pulled.
    pub(super) fn record(&self, id: &str) -> io::Result<Option<ImagePulledRecord>> {
        let _held = self.begun.lock();
        self.read_record(id)
    }

    fn read_record(&self, id: &str) -> io::Result<Option<ImagePulledRecord>> {
        match read::<ImagePulledRecord>(&self.pulled.join(file_name(id)))? {
            Some(record) if !record.is_known() => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it is a record of a version that this kubelet does not know",
            )),
            record => Ok(record.filter(|record| record.image_ref == id)),
        }
    }

    /// Records with what an image was pulled under a name; without credentials only
    /// that it was. A record that cannot be read is written anew.
    pub(super) fn add_credentials(
        &self,
        id: &str,
        repository: &str,
        credentials: Option<ImagePullCredentials>,
    ) -> io::Result<()> {
        let _held = self.begun.lock();
        let known = self.read_record(id).unwrap_or_else(|error| {
            warn!(image_id = id, %error, "cannot read the record of an image");
            None
        });
        let is_new = known.is_none();
        let mut record = known.unwrap_or_else(|| ImagePulledRecord::new(id));
        let changed = credentials.is_some_and(|new| record.add(repository, new));
        if changed || is_new {
            write(&self.pulled, &file_name(id), &record)?;
        }
        Ok(())
    }
}

/// Images' names are no file names.
fn file_name(image: &str) -> String {
    format!("{PREFIX}{:x}", Sha256::digest(image))
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a file whole or not at all.
fn write(dir: &Path, name: &str, content: &impl Serialize) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let temporary = dir.join(format!("{name}{TEMPORARY}"));
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&temporary)?;
    let written = serde_json::to_vec(content)
        .map_err(io::Error::from)
        .and_then(|json| file.write_all(&json))
        .and_then(|()| fs::rename(&temporary, dir.join(name)));
    if written.is_err() {
        // What is left of it is never read.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
