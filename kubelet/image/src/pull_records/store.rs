//! Files of the pull records. All functions here may block.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use atomic_file::Durability;
use kubelet_pod_spec::json;
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};
use tracing::warn;

use super::record::{ImagePullCredentials, ImagePullIntent, ImagePulledRecord};

const PREFIX: &str = "sha256-";
/// The end of the names of upstream's temporary files, which a crash leaves.
const TEMPORARY: &str = ".tmp";

/// The directories of the records.
#[derive(Debug)]
pub(super) struct Store {
    pulling: PathBuf,
    pulled: PathBuf,
    /// Pulls in progress by image. Locked during file operations.
    begun: Mutex<BTreeMap<String, Begun>>,
    /// Counts the pulls. Changed only with `begun` locked.
    pulls: AtomicU64,
}

/// The pulls in progress of one image.
#[derive(Debug, Default)]
struct Begun {
    /// Number of pulls in progress.
    open: u32,
    /// Whether an earlier pull may have brought the image without a record, so that the intent must
    /// be kept if these pulls fail.
    is_in_doubt: bool,
}

/// The outcome of a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The image is recorded.
    Recorded,
    /// The pull brought no image that requires credentials.
    Failed,
    /// The runtime may have pulled the image, or may still do so, and no record has its
    /// credentials.
    InDoubt,
}

impl Store {
    pub(super) fn new(root_dir: &Path) -> Self {
        let dir = root_dir.join("image_manager");
        Self {
            pulling: dir.join("pulling"),
            pulled: dir.join("pulled"),
            begun: Mutex::default(),
            pulls: AtomicU64::default(),
        }
    }

    /// Images whose pulls were started and not finished, by any kubelet.
    pub(super) fn intents(&self) -> Vec<String> {
        let _held = self.begun.lock();
        let mut images: Vec<String> = read_all::<ImagePullIntent>(&self.pulling)
            .filter(ImagePullIntent::is_known)
            .map(|intent| intent.image)
            .collect();
        images.sort_unstable();
        images
    }

    /// Whether a pull of the image was started and not finished.
    pub(super) fn is_begun(&self, image: &str) -> bool {
        let begun = self.begun.lock();
        begun.contains_key(image) || self.pulling.join(file_name(image)).exists()
    }

    /// Whether an intent is left from an earlier pull of the image with an unknown result.
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
        self.pulls.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Ends a pull. The last pull of an image removes the intent, unless the result is in doubt.
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
            // The intent file marks the image as in doubt.
            all.remove(image);
            if !is_in_doubt {
                return remove(&self.pulling.join(file_name(image)));
            }
        }
        Ok(())
    }

    /// Removes the intent of a pull that this kubelet did not start.
    pub(super) fn remove_intent(&self, image: &str) -> io::Result<()> {
        let begun = self.begun.lock();
        if begun.contains_key(image) {
            return Ok(());
        }
        remove(&self.pulling.join(file_name(image)))
    }

    /// The record of a pulled image.
    pub(super) fn record(&self, id: &str) -> io::Result<Option<ImagePulledRecord>> {
        let _held = self.begun.lock();
        self.read_record(id)
    }

    fn read_record(&self, id: &str) -> io::Result<Option<ImagePulledRecord>> {
        match read::<ImagePulledRecord>(&self.pulled.join(file_name(id)))? {
            Some(record) if !record.is_known() => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the record has a version that this kubelet does not support",
            )),
            record => Ok(record.filter(|record| record.image_ref == id)),
        }
    }

    /// Records the credentials that an image was pulled with under a name; without credentials,
    /// records only that it was pulled. Replaces an unreadable record.
    pub(super) fn add_credentials(
        &self,
        id: &str,
        repository: &str,
        credentials: Option<ImagePullCredentials>,
    ) -> io::Result<()> {
        let _held = self.begun.lock();
        let known = self.read_record(id).unwrap_or_else(|error| {
            warn!(image_id = id, %error, "cannot read the pull record of an image");
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

impl Store {
    /// The number of pulls so far; `None` while there is one.
    pub(super) fn completed_pulls(&self) -> Option<u64> {
        let begun = self.begun.lock();
        begun.is_empty().then(|| self.pulls.load(Ordering::Relaxed))
    }

    /// Removes the record of an image that was absent after `pulls` completed pulls. A pull that
    /// began since may have brought the image back, and its record with it; then, the record stays.
    pub(super) fn forget(&self, id: &str, pulls: u64) -> io::Result<()> {
        let begun = self.begun.lock();
        if !begun.is_empty() || self.pulls.load(Ordering::Relaxed) != pulls {
            return Ok(());
        }
        remove(&self.pulled.join(file_name(id)))
    }

    /// Like [`Self::forget`], for all images that were not `present`.
    pub(super) fn forget_all_but(&self, present: &BTreeSet<String>, pulls: u64) -> io::Result<()> {
        let begun = self.begun.lock();
        if !begun.is_empty() || self.pulls.load(Ordering::Relaxed) != pulls {
            return Ok(());
        }
        let records = read_all::<ImagePulledRecord>(&self.pulled);
        let known = records.filter(ImagePulledRecord::is_known);
        let mut absent = known.filter(|record| !present.contains(&record.image_ref));
        absent.try_for_each(|record| remove(&self.pulled.join(file_name(&record.image_ref))))
    }
}

/// The records in a directory; those that cannot be read are logged and skipped.
fn read_all<T: DeserializeOwned>(dir: &Path) -> impl Iterator<Item = T> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let records = entries.filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with(PREFIX) && !name.ends_with(TEMPORARY)
    });
    records.filter_map(|entry| {
        let path = entry.path();
        let record = read(&path);
        record
            .inspect_err(|error| {
                warn!(path = %path.display(), %error, "cannot read a pull record");
            })
            .ok()
            .flatten()
    })
}

/// Image names are not valid file names, so they are hashed.
fn file_name(image: &str) -> String {
    format!("{PREFIX}{:x}", Sha256::digest(image))
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a file atomically and durably: an image whose record was lost would look preloaded, and
/// every pod may use those.
fn write(dir: &Path, name: &str, content: &impl Serialize) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    atomic_file::replace(
        &dir.join(name),
        &serde_json::to_vec(content)?,
        0o600,
        Durability::Synced,
    )
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
