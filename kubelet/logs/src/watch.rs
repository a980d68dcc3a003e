//! Being woken when a log file is written to, or another is put in its place.

use std::{ffi::OsString, io, path::Path, time::Duration};

use futures::StreamExt as _;
use inotify::{EventStream, Inotify, WatchMask};

/// A handful of events at a time; more wait in the kernel.
const BUFFER: usize = 1024;
/// Writes within this time are one change.
const QUIET: Duration = Duration::from_millis(10);
/// How often a file that cannot be watched is looked at.
const POLL_PERIOD: Duration = Duration::from_millis(250);

/// A watch of one file, by its name.
pub(super) struct FileWatch {
    name: OsString,
    /// None where the kernel has no more watches to give.
    events: Option<EventStream<[u8; BUFFER]>>,
}

impl FileWatch {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            name: path.file_name().unwrap_or_default().to_owned(),
            events: watch(path).ok(),
        }
    }

    /// Waits until the file may have changed.
    pub(super) async fn changed(&mut self) {
        loop {
            let Some(events) = &mut self.events else {
                return tokio::time::sleep(POLL_PERIOD).await;
            };
            match events.next().await {
                // A file of another name, such as one that was compressed.
                Some(Ok(event)) if event.name.as_ref().is_some_and(|name| *name != self.name) => {}
                Some(Ok(_)) => return tokio::time::sleep(QUIET).await,
                Some(Err(_)) | None => self.events = None,
            }
        }
    }
}

fn watch(path: &Path) -> io::Result<EventStream<[u8; BUFFER]>> {
    let dir = path.parent().ok_or(io::ErrorKind::NotFound)?;
    let inotify = Inotify::init()?;
    let changes = WatchMask::MODIFY | WatchMask::CREATE | WatchMask::MOVED_TO;
    inotify.watches().add(dir, changes)?;
    inotify.into_event_stream([0; BUFFER])
}
