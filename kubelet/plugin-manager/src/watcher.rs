//! Watches the sockets below a directory.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _};
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use kubelet_host::repeatable::blocking;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

/// Space for a handful of events; the kernel queues more.
const BUFFER: usize = 4096;
/// The directory is read again after this time even without an event.
const RESCAN: Duration = Duration::from_secs(60);
/// Watching is retried after this time if it failed.
const RETRY: Duration = Duration::from_secs(10);
/// Sockets by path, each with a generation that no earlier socket at that path had.
pub(super) type Sockets = BTreeMap<PathBuf, u64>;

/// Identity of a socket at a path: device, inode and creation time. Changes of owner or mode do
/// not affect it.
type Identity = (u64, u64, i64, i64);

/// Watches a directory and everything in it.
pub(super) struct Watcher {
    dir: PathBuf,
    watch: Option<Watch>,
    known: BTreeMap<PathBuf, (Identity, u64)>,
    last_number: u64,
    /// Whether something may have changed since the last scan.
    stale: bool,
    failing: bool,
}

struct Watch {
    events: EventStream<[u8; BUFFER]>,
    dirs: HashMap<WatchDescriptor, PathBuf>,
}

impl Watcher {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            watch: None,
            known: BTreeMap::new(),
            last_number: 0,
            stale: true,
            failing: false,
        }
    }

    /// Returns the current sockets: at once on the first call, then whenever something may have
    /// changed. Dropping the future loses nothing.
    pub(super) async fn changed(&mut self) -> Sockets {
        if !self.stale {
            match &mut self.watch {
                Some(watch) => {
                    let news = timeout(RESCAN, watch.next(&mut self.known));
                    if news.await == Ok(false) {
                        self.watch = None;
                    }
                }
                None => sleep(RETRY).await,
            }
            self.stale = true;
        }
        if self.watch.is_none() {
            self.watch = self.report(Watch::new());
        }
        let watches = self.watch.as_ref().map(|watch| watch.events.watches());
        let dir = self.dir.clone();
        let scanned = blocking(move || scan(&dir, watches)).await;
        let scanned = scanned.map_err(io::Error::other).and_then(|scan| scan);
        match self.report(scanned) {
            Some(mut scan) => {
                let unwatched = scan.unwatched.take();
                self.take(scan);
                if let Some(error) = unwatched {
                    self.report::<()>(Err(error));
                    self.watch = None;
                }
            }
            None => self.watch = None,
        }
        self.failing = self.watch.is_none();
        self.stale = false;
        let sockets = self.known.iter();
        sockets
            .map(|(path, (_, number))| (path.clone(), *number))
            .collect()
    }

    fn take(&mut self, scan: Scan) {
        if let Some(watch) = &mut self.watch {
            watch.dirs = scan.dirs;
        }
        let mut known = BTreeMap::new();
        for (path, identity) in scan.sockets {
            let number = match self.known.get(&path) {
                Some((was, number)) if *was == identity => *number,
                _ => {
                    self.last_number += 1;
                    self.last_number
                }
            };
            known.insert(path, (identity, number));
        }
        self.known = known;
    }

    fn report<T>(&mut self, result: io::Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                if !self.failing {
                    warn!(dir = %self.dir.display(), %error, "cannot watch for plugins; retrying");
                }
                self.failing = true;
                None
            }
        }
    }
}

impl Watch {
    fn new() -> io::Result<Self> {
        Ok(Self {
            events: Inotify::init()?.into_event_stream([0; BUFFER])?,
            dirs: HashMap::new(),
        })
    }

    /// Waits for events and drops sockets that were removed, so that a new socket at the same path
    /// gets a new generation. Returns whether the watch is still valid.
    async fn next(&mut self, known: &mut BTreeMap<PathBuf, (Identity, u64)>) -> bool {
        let mut next = Some(self.events.next().await);
        while let Some(event) = next {
            let Some(Ok(event)) = event else {
                return false;
            };
            if let (Some(name), Some(dir)) = (&event.name, self.dirs.get(&event.wd))
                && event
                    .mask
                    .intersects(EventMask::DELETE | EventMask::MOVED_FROM)
            {
                let gone = dir.join(name);
                known.retain(|path, _| !path.starts_with(&gone));
            }
            next = self.events.next().now_or_never();
        }
        true
    }
}

fn is_unreachable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::InvalidFilename
    )
}

/// Contents of a directory tree.
struct Scan {
    sockets: BTreeMap<PathBuf, Identity>,
    dirs: HashMap<WatchDescriptor, PathBuf>,
    /// Why a directory is not watched.
    unwatched: Option<io::Error>,
}

/// Creates the directory if missing, and watches it and its subdirectories, each before reading
/// it. A subdirectory that cannot be read is left out.
fn scan(dir: &Path, mut watches: Option<Watches>) -> io::Result<Scan> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(dir)?;
    let mut scan = Scan {
        sockets: BTreeMap::new(),
        dirs: HashMap::new(),
        unwatched: None,
    };
    let mut left = Vec::new();
    scan.read(dir, &mut left, watches.as_mut())?;
    while let Some(dir) = left.pop() {
        if let Err(error) = scan.read(&dir, &mut left, watches.as_mut()) {
            debug!(dir = %dir.display(), %error, "cannot look for plugins in a directory");
        }
    }
    Ok(scan)
}

impl Scan {
    fn read(
        &mut self,
        dir: &Path,
        left: &mut Vec<PathBuf>,
        watches: Option<&mut Watches>,
    ) -> io::Result<()> {
        if let Some(watches) = watches {
            let mask = WatchMask::CREATE
                | WatchMask::DELETE
                | WatchMask::DELETE_SELF
                | WatchMask::MOVE
                | WatchMask::MOVE_SELF
                | WatchMask::ONLYDIR;
            match watches.add(dir, mask) {
                Ok(descriptor) => {
                    self.dirs.insert(descriptor, dir.to_owned());
                }
                // Removed in the meantime, or too deep.
                Err(error) if is_unreachable(&error) => return Err(error),
                Err(error) => self.unwatched = Some(error),
            }
        }
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = entry.path();
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if kind.is_dir() {
                left.push(path);
            } else if let Ok(found) = fs::metadata(&path)
                && found.file_type().is_socket()
            {
                let identity = (found.dev(), found.ino(), found.mtime(), found.mtime_nsec());
                self.sockets.insert(path, identity);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use deep_tree::InMemory;

    use super::*;

    #[test]
    fn directories_that_cannot_be_read_hide_no_sockets() {
        let dir = InMemory::new().unwrap();
        let socket = dir.path().join("a.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        // The paths of the innermost directories are too long.
        deep_tree::nest(dir.path()).unwrap();
        let inotify = Inotify::init().unwrap();
        for watches in [None, Some(inotify.watches())] {
            let found = scan(dir.path(), watches).unwrap();
            assert!(found.unwatched.is_none(), "{:?}", found.unwatched);
            assert_eq!(found.sockets.keys().collect::<Vec<_>>(), [&socket]);
        }
    }
}
