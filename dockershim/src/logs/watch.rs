//! Tells when the engine wrote to a container's log: one inotify instance for all.

use std::{
    collections::HashMap,
    io,
    path::Path,
    sync::{Arc, Weak},
};

use futures::StreamExt as _;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use parking_lot::Mutex;
use tokio::sync::Notify;

const BUFFER: usize = 16 * 1024;

/// Watches the directories of the engine's logs.
#[derive(Debug)]
pub struct Watcher {
    watches: Mutex<Watches>,
    woken: Arc<Mutex<HashMap<WatchDescriptor, Weak<Notify>>>>,
}

/// A watched directory; it is watched until this is dropped.
#[derive(Debug)]
pub struct Watch {
    watcher: Arc<Watcher>,
    descriptor: WatchDescriptor,
    changed: Arc<Notify>,
}

impl Watcher {
    /// Starts watching; the task ends with the last user.
    ///
    /// # Errors
    /// The system's: the user's limit of inotify instances is reached.
    pub fn start() -> io::Result<Arc<Self>> {
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

    /// Watches the files of `directory`.
    ///
    /// # Errors
    /// The system's: it is not there, or the user's limit of watches is reached.
    pub fn watch(self: &Arc<Self>, directory: &Path) -> io::Result<Watch> {
        let mask = WatchMask::MODIFY | WatchMask::CREATE | WatchMask::MOVED_TO;
        let changed = Arc::new(Notify::new());
        // Locked before the watch is there, so that its first event finds whom to wake.
        let mut woken = self.woken.lock();
        let descriptor = self.watches.lock().add(directory, mask)?;
        woken.insert(descriptor.clone(), Arc::downgrade(&changed));
        Ok(Watch {
            watcher: Arc::clone(self),
            descriptor,
            changed,
        })
    }
}

async fn wake(mut events: EventStream<Vec<u8>>, watcher: Weak<Watcher>) {
    while let Some(event) = events.next().await {
        let Some(watcher) = watcher.upgrade() else {
            return;
        };
        let woken = watcher.woken.lock();
        match event {
            // Events were dropped: anyone may have missed one.
            Ok(event) if event.mask.contains(EventMask::Q_OVERFLOW) => {
                woken
                    .values()
                    .filter_map(Weak::upgrade)
                    .for_each(|w| w.notify_one());
            }
            Ok(event) => {
                if let Some(changed) = woken.get(&event.wd).and_then(Weak::upgrade) {
                    changed.notify_one();
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read what the kernel tells of the engine's logs")
            }
        }
    }
}

impl Watch {
    /// Waits until something was written since the last call returned.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.watcher.woken.lock().remove(&self.descriptor);
        // The kernel ends it by itself when the directory is removed.
        let _ = self.watcher.watches.lock().remove(self.descriptor.clone());
    }
}
