//! The file of the records, `<root-dir>/image_manager/usage.json`. All functions here may block.
//!
//! It is written when an image appears, disappears, or begins or ceases to be used, at the end of
//! the kubelet, and otherwise once an hour. After a crash, an image is therefore considered unused
//! for up to an hour less than it is, and never for longer. If the file is lost or invalid, all
//! images are new.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::Duration,
};

use atomic_file::Durability;
use jiff::{SignedDuration, Timestamp};
use kubelet_pod_spec::json;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::usage::{Moment, Records, Usage};

const VERSION: u32 = 1;
/// The maximum size of the file in bytes, enough for a hundred thousand images.
const MAX_SIZE: u64 = 16 << 20;

/// The contents of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Contents {
    version: u32,
    /// The time of the last detection, RFC 3339.
    observed_at: String,
    /// By ID, or by ID and runtime handler.
    images: BTreeMap<String, Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    first_detected: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_used: Option<String>,
}

/// Whether the time since the last write counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SinceWritten {
    /// It does: the kubelet that wrote the records is still running.
    Counts(Timestamp),
    /// It does not: for an unknown part of it, no kubelet ran.
    Ignored,
}

/// The file.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    /// Locked during writes, which share a temporary file.
    writing: Mutex<()>,
}

impl Store {
    pub(super) fn new(root_dir: &Path) -> Self {
        Self {
            path: root_dir.join("image_manager").join("usage.json"),
            writing: Mutex::default(),
        }
    }

    /// The records; empty without a valid file.
    pub(super) fn load(&self, now: Moment, since: SinceWritten) -> Records {
        let read = self.read().and_then(|contents| {
            contents.map_or_else(
                || Ok(Records::default()),
                |contents| self.records(contents, now, since),
            )
        });
        read.unwrap_or_else(|error| {
            let path = self.path.display();
            warn!(%path, %error, "cannot read when images were used; all images count as new");
            Records::default()
        })
    }

    fn read(&self) -> io::Result<Option<Contents>> {
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut bytes = Vec::new();
        file.take(MAX_SIZE + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_SIZE {
            return Err(invalid("it exceeds the maximum file size"));
        }
        let contents: Contents = json::from_slice(&bytes)?;
        if contents.version != VERSION {
            return Err(invalid(
                "it has a version that this kubelet does not support",
            ));
        }
        Ok(Some(contents))
    }

    /// Converts times of day to moments. Invalid entries are skipped.
    fn records(&self, contents: Contents, now: Moment, since: SinceWritten) -> io::Result<Records> {
        let observed_at = time(&contents.observed_at);
        let observed_at = observed_at.ok_or_else(|| invalid("its time is invalid"))?;
        let end = match since {
            SinceWritten::Counts(until) => until.max(observed_at),
            SinceWritten::Ignored => observed_at,
        };
        // A time in the future is that of a clock that was set back.
        let moment = |text: &str| {
            let age = end.duration_since(time(text)?);
            Some(now.before(Duration::try_from(age).unwrap_or_default()))
        };
        let mut usages = BTreeMap::new();
        let mut skipped = 0_usize;
        for (key, entry) in contents.images {
            let first_detected = moment(&entry.first_detected);
            let last_used = entry.last_used.as_deref().map(moment);
            let (Some(first_detected), Some(last_used)) = (
                first_detected.filter(|_| !key.is_empty()),
                last_used.map_or(Some(None), |used| used.map(Some)),
            ) else {
                skipped += 1;
                continue;
            };
            let last_used = last_used.map(|used| used.max(first_detected));
            usages.insert(
                key,
                Usage {
                    first_detected,
                    last_used,
                },
            );
        }
        if skipped > 0 {
            let path = self.path.display();
            warn!(%path, skipped, "ignoring invalid records of when images were used");
        }
        Ok(Records::new(usages))
    }

    /// Writes the records durably. `now` and `time` are the same.
    ///
    /// # Errors
    /// Any I/O error; the old records are kept.
    pub(super) fn save(&self, records: &Records, now: Moment, time: Timestamp) -> io::Result<()> {
        let text = |moment: Moment| {
            let age = SignedDuration::try_from(moment.age(now)).unwrap_or(SignedDuration::MAX);
            let at = time.checked_sub(age).unwrap_or(Timestamp::MIN);
            Timestamp::from_millisecond(at.as_millisecond())
                .unwrap_or(at)
                .to_string()
        };
        let images = records.usages().iter().map(|(key, usage)| {
            let entry = Entry {
                first_detected: text(usage.first_detected),
                last_used: usage.last_used.map(text),
            };
            (key.clone(), entry)
        });
        let contents = serde_json::to_vec(&Contents {
            version: VERSION,
            observed_at: text(now),
            images: images.collect(),
        })?;
        if contents.len() as u64 > MAX_SIZE {
            return Err(invalid("the records exceed the maximum file size"));
        }
        let _held = self.writing.lock();
        atomic_file::replace(&self.path, &contents, 0o600, Durability::Synced)
    }
}

fn time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests;
