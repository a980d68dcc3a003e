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
use crate::image::credentials::hex;

const PREFIX: &str = "sha256-";
const TEMPORARY: &str = ".tmp";

/// The records' directories.
#[derive(Debug)]
pub(super) struct Store {
    pulling: PathBuf,
    pulled: PathBuf,
    /// How many pulls of each image are on their way. Held while files are worked on.
    begun: Mutex<BTreeMap<String, u32>>,
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

    pub(super) fn begin(&self, image: &str) -> io::Result<()> {
        let mut begun = self.begun.lock();
        let intent = ImagePullIntent::new(image);
        write(&self.pulling, &file_name(image), &intent)?;
        *begun.entry(image.to_owned()).or_default() += 1;
        Ok(())
    }

    /// A pull ended; the last one of the image takes its intent away.
    pub(super) fn end(&self, image: &str) -> io::Result<()> {
        let mut begun = self.begun.lock();
        match begun.get_mut(image) {
            Some(count) if *count > 1 => {
                *count -= 1;
                Ok(())
            }
            _ => {
                remove(&self.pulling.join(file_name(image)))?;
                begun.remove(image);
                Ok(())
            }
        }
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
    format!("{PREFIX}{}", hex(&Sha256::digest(image)))
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
