//! Notifies followers when the engine writes to a container's log, with one inotify instance for
//! all.
//!
//! The watches are one-shot. Otherwise a container that writes a lot would wake the shim for every
//! line, which costs the engine more than writing the line.

use std::{
    collections::HashMap,
    io,
    path::PathBuf,
    sync::{Arc, Weak},
};

use futures::StreamExt as _;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use parking_lot::Mutex;
use tokio::sync::Notify;

const BUFFER: usize = 16 * 1024;

/// Watches the directories of the engine's logs.
#[derive(Debug)]
pub(super) struct Watcher {
    watches: Mutex<Watches>,
    woken: Arc<Mutex<HashMap<WatchDescriptor, Weak<Notify>>>>,
}

/// A watch on a directory; dropping it removes the watch.
#[derive(Debug)]
pub(super) struct Watch {
    watcher: Arc<Watcher>,
    directory: PathBuf,
    descriptor: Option<WatchDescriptor>,
    changed: Arc<Notify>,
}

impl Watcher {
    /// Starts the watcher; its task ends with the last user.
    ///
    /// # Errors
    /// The system's: the user's limit on inotify instances is reached.
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let inotify = Inotify::init()?;
        let woken = Arc::default();
        let watcher = Arc::new(Self {
            watches: Mutex::new(inotify.watches()),
            woken: Arc::clone(&woken),
        });
        let events = inotify.into_event_stream(vec![0; BUFFER])?;
        tokio::spawn(wake(events, Arc::downgrade(&watcher)));
        Ok(watcher)
    }

    /// Creates a watch on the files in `directory`, which is not armed yet.
    pub(super) fn of(self: &Arc<Self>, directory: PathBuf) -> Watch {
        Watch {
            watcher: Arc::clone(self),
            directory,
            descriptor: None,
            changed: Arc::default(),
        }
    }
}

async fn wake(mut events: EventStream<Vec<u8>>, watcher: Weak<Watcher>) {
    while let Some(event) = events.next().await {
        let Some(watcher) = watcher.upgrade() else {
            return;
        };
        let mut woken = watcher.woken.lock();
        match event {
            // The queue overflowed, so any watch may have missed an event.
            Ok(event) if event.mask.contains(EventMask::Q_OVERFLOW) => {
                woken
                    .drain()
                    .filter_map(|(_, changed)| changed.upgrade())
                    .for_each(|changed| changed.notify_one());
            }
            Ok(event) => {
                let changed = woken.remove(&event.wd);
                if let Some(changed) = changed.and_then(|changed| changed.upgrade()) {
                    changed.notify_one();
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read inotify events of the engine's logs")
            }
        }
    }
}

impl Watch {
    /// Arms the watch if it is not armed: writes are reported from now on.
    ///
    /// # Errors
    /// The system's: the directory does not exist, or the user's limit on watches is reached.
    pub(super) fn arm(&mut self) -> io::Result<()> {
        let events = WatchMask::MODIFY | WatchMask::CREATE | WatchMask::MOVED_TO;
        // Locked before the watch is added, so that its event finds the waiter.
        let mut woken = self.watcher.woken.lock();
        let armed = self.descriptor.as_ref();
        if armed.is_some_and(|descriptor| woken.contains_key(descriptor)) {
            return Ok(());
        }
        let mut watches = self.watcher.watches.lock();
        let descriptor = watches.add(&self.directory, events | WatchMask::ONESHOT)?;
        woken.insert(descriptor.clone(), Arc::downgrade(&self.changed));
        self.descriptor = Some(descriptor);
        Ok(())
    }

    /// Waits for a write since [`Watch::arm`].
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(descriptor) = self.descriptor.take() else {
            return;
        };
        if self.watcher.woken.lock().remove(&descriptor).is_some() {
            // The kernel removes the watch itself when the directory is removed.
            let _ = self.watcher.watches.lock().remove(descriptor);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);
    const A_WHILE: Duration = Duration::from_millis(200);

    #[tokio::test]
    async fn one_write_is_told_each_time_it_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let watcher = Watcher::start().unwrap();
        let mut watch = watcher.of(dir.path().to_owned());
        let other = dir.path().join("other");
        fs::create_dir(&other).unwrap();
        let mut beside = watcher.of(other);
        beside.arm().unwrap();
        let file = dir.path().join("c-json.log");
        for text in ["one", "two"] {
            watch.arm().unwrap();
            watch.arm().unwrap();
            for n in 0..100 {
                fs::write(&file, format!("{text} {n}")).unwrap();
            }
            timeout(SOON, watch.changed()).await.unwrap();
            // Further writes are not reported.
            timeout(A_WHILE, watch.changed()).await.unwrap_err();
        }
        timeout(A_WHILE, beside.changed()).await.unwrap_err();
        assert_eq!(watcher.woken.lock().len(), 1);
        drop(beside);
        assert_eq!(watcher.woken.lock().len(), 0);
        let mut gone = watcher.of(dir.path().join("gone"));
        assert!(gone.arm().is_err());
    }
}
