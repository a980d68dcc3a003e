//! The lock file of `--lock-file`, by which one kubelet replaces another.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::StreamExt as _;
use inotify::{EventStream, Inotify, WatchMask};
use rustix::fs::{FlockOperation, flock};
use tokio::time;
use tokio_util::sync::CancellationToken;
use tracing::info;

/// Between attempts to lock the file.
const RETRY: Duration = Duration::from_millis(250);

/// Buffer for a few events; one is enough.
const BUFFER: usize = 1024;

/// The file, and what happens when another process opens it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockFileOptions {
    /// `--lock-file`.
    pub path: PathBuf,
    /// Stop when another process opens or removes the file (`--exit-on-lock-contention`).
    pub exit_on_contention: bool,
}

/// The lock file is unusable.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the lock file {} (--lock-file): {source}", path.display())]
pub struct LockFileError {
    path: PathBuf,
    source: io::Error,
}

/// Holds the lock while it lives.
#[derive(Debug)]
pub(crate) struct LockFile {
    _file: File,
    contention: Option<EventStream<[u8; BUFFER]>>,
}

impl LockFile {
    /// Waits until no other process holds the lock, and takes it. `None` if cancelled before.
    ///
    /// # Errors
    /// The file cannot be opened, locked or watched.
    pub(crate) async fn acquire(
        options: &LockFileOptions,
        cancel: &CancellationToken,
    ) -> Result<Option<Self>, LockFileError> {
        let path = &options.path;
        let fault = |source| LockFileError {
            path: path.clone(),
            source,
        };
        let mut open = OpenOptions::new();
        open.create(true).truncate(false).write(true).mode(0o600);
        let file = open.open(path).map_err(fault)?;
        let mut is_waiting = false;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(error) => return Err(fault(error.into())),
            }
            if !is_waiting {
                info!(path = %path.display(), "waiting for the process that holds the lock file");
                is_waiting = true;
            }
            let retry = time::sleep(RETRY);
            if cancel.run_until_cancelled(retry).await.is_none() {
                return Ok(None);
            }
        }
        let contention = if options.exit_on_contention {
            Some(watch(path).map_err(fault)?)
        } else {
            None
        };
        Ok(Some(Self {
            _file: file,
            contention,
        }))
    }

    /// Waits until another process wants the lock; forever if it does not matter.
    pub(crate) async fn contention(&mut self) {
        match &mut self.contention {
            Some(events) => _ = events.next().await,
            None => std::future::pending().await,
        }
    }
}

fn watch(path: &Path) -> io::Result<EventStream<[u8; BUFFER]>> {
    let inotify = Inotify::init()?;
    let mask = WatchMask::OPEN | WatchMask::DELETE_SELF;
    inotify.watches().add(path, mask)?;
    inotify.into_event_stream([0; BUFFER])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_holder_gives_way_to_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let cancel = CancellationToken::new();
        let options = LockFileOptions {
            path: dir.path().join("lock"),
            exit_on_contention: true,
        };
        let first = LockFile::acquire(&options, &cancel).await.unwrap();
        let mut first = first.unwrap();
        let holder = tokio::spawn(async move { first.contention().await });
        let next = LockFile::acquire(&options, &cancel).await.unwrap();
        assert!(next.is_some());
        holder.await.unwrap();
    }

    #[tokio::test]
    async fn a_cancelled_kubelet_does_not_wait() {
        let dir = tempfile::tempdir().unwrap();
        let cancel = CancellationToken::new();
        let options = LockFileOptions {
            path: dir.path().join("lock"),
            exit_on_contention: false,
        };
        let held = LockFile::acquire(&options, &cancel).await.unwrap();
        cancel.cancel();
        let next = LockFile::acquire(&options, &cancel).await.unwrap();
        assert!(held.is_some() && next.is_none());
    }

    #[tokio::test]
    async fn an_unusable_file_is_an_error() {
        let options = LockFileOptions {
            path: "/nowhere/lock".into(),
            exit_on_contention: false,
        };
        let failed = LockFile::acquire(&options, &CancellationToken::new()).await;
        let error = failed.unwrap_err().to_string();
        assert!(
            error.starts_with("cannot use the lock file /nowhere/lock"),
            "{error}"
        );
    }
}
