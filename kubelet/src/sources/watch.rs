//! Notification of changes in a directory.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use futures::StreamExt;
use inotify::{Event, EventMask, EventStream, Inotify, WatchMask};

/// Buffer for a few events; more of them wait in the kernel.
const BUFFER: usize = 1024;

/// An inotify watch of the directory of the manifests.
///
/// Reports a file once its writer closes it, so that no partial file is read.
pub(super) struct Watch {
    dir: PathBuf,
    identity: (u64, u64),
    /// The file name to watch, if the manifest path is a file.
    only: Option<OsString>,
    events: EventStream<[u8; BUFFER]>,
}

/// What may have changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    Something,
    /// This name was gone, at least for a moment.
    Gone(OsString),
    /// The watch is invalid: the directory itself was removed or moved.
    End,
}

impl Change {
    fn of(event: Event<OsString>) -> Self {
        let (end, gone) = (
            EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED,
            EventMask::DELETE | EventMask::MOVED_FROM,
        );
        match event.name {
            _ if event.mask.intersects(end) => Self::End,
            Some(name) if event.mask.intersects(gone) => Self::Gone(name),
            _ => Self::Something,
        }
    }
}

impl Watch {
    /// Watches `path` if it is a directory, and otherwise that name in its parent directory.
    ///
    /// # Errors
    /// The directory is missing or cannot be watched.
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let (dir, only) = if path.is_dir() {
            (path, None)
        } else {
            let parent = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            (
                parent.unwrap_or(Path::new(".")),
                path.file_name().map(OsStr::to_owned),
            )
        };
        let inotify = Inotify::init()?;
        inotify.watches().add(
            dir,
            WatchMask::ATTRIB
                | WatchMask::CLOSE_WRITE
                | WatchMask::CREATE
                | WatchMask::DELETE
                | WatchMask::DELETE_SELF
                | WatchMask::MOVE
                | WatchMask::MOVE_SELF
                | WatchMask::ONLYDIR,
        )?;
        Ok(Self {
            dir: dir.to_owned(),
            identity: identity(dir)?,
            only,
            events: inotify.into_event_stream([0; BUFFER])?,
        })
    }

    /// Waits until something may have changed.
    pub(super) async fn changed(&mut self) -> Change {
        loop {
            match self.events.next().await {
                Some(Ok(event)) if self.concerns(&event) => return Change::of(event),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Change::End,
            }
        }
    }

    fn concerns<S: AsRef<OsStr>>(&self, event: &Event<S>) -> bool {
        let Some(name) = &event.name else {
            return true;
        };
        let named = match &self.only {
            Some(only) => name.as_ref() == only,
            None => !name.as_ref().as_encoded_bytes().starts_with(b"."),
        };
        named && !(event.mask.contains(EventMask::CREATE) && self.is_being_written(name.as_ref()))
    }

    /// Whether a new name is a new file rather than a link: its writer has yet to close it.
    fn is_being_written(&self, name: &OsStr) -> bool {
        fs::symlink_metadata(self.dir.join(name))
            .is_ok_and(|metadata| metadata.is_file() && metadata.nlink() == 1)
    }

    /// Whether the watch is still valid for `path`. It is not once another directory or link was
    /// put in its place.
    pub(super) fn is_current(&self, path: &Path) -> bool {
        path.is_dir() == self.only.is_none()
            && identity(&self.dir).is_ok_and(|now| now == self.identity)
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}
