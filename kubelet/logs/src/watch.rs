//! Notifies when a log file is written to or replaced.

use std::{ffi::OsString, io, path::Path, time::Duration};

use futures::StreamExt as _;
use inotify::{EventStream, Inotify, WatchMask};

/// Space for a handful of events; the kernel queues more.
const BUFFER: usize = 1024;
/// Writes within this time count as one change.
const QUIET: Duration = Duration::from_millis(10);
/// The interval of checks of a file that cannot be watched.
const POLL_PERIOD: Duration = Duration::from_millis(250);

/// A watch on one file by name.
pub(super) struct FileWatch {
    name: OsString,
    /// `None` if the kernel grants no more watches.
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
                // Another file, such as one that was compressed.
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
