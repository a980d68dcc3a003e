//! File work that may hang, on a bounded number of threads.
//!
//! A pod may mount files from a server that has stopped answering, and a thread that touches
//! them may hang forever. Each server gets a limited number of threads, so that a dead server
//! blocks only its own pods, and all servers together have a limit, so that the rest of the
//! kubelet always finds a thread.

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit},
    task::JoinError,
};

use crate::{mount_info, repeatable};

/// Threads for one kind of work: for all servers together, and for each.
const THREADS: usize = 256;
const SERVER_THREADS: usize = 8;

/// Threads for measurements, which are not urgent: for all file systems together, and for each.
const MEASURING_THREADS: usize = 32;
const FILE_SYSTEM_THREADS: usize = 2;

/// Walks: through all file systems together, and through each.
const WALKERS: usize = 64;
const FILE_SYSTEM_WALKERS: usize = 8;

/// The most threads that all bounded work uses at once: three kinds of work, and as many
/// again for the forced unmounts of volumes that hang; and measurements.
pub const MAX_THREADS: usize = 4 * THREADS + MEASURING_THREADS;

/// For mounts, unmounts and the files of volumes.
pub static VOLUMES: IoThreads = IoThreads::new(THREADS, SERVER_THREADS);
/// For paths in volumes that a container refers to before it starts.
pub static CONTAINERS: IoThreads = IoThreads::new(THREADS, SERVER_THREADS);
/// For termination messages, read after a container has ended.
pub static MESSAGES: IoThreads = IoThreads::new(THREADS, SERVER_THREADS);

/// For measurements of the usage of volumes and directories.
pub static MEASUREMENTS: IoThreads = IoThreads::new(MEASURING_THREADS, FILE_SYSTEM_THREADS);

/// For walks through large directories, which take a thread only now and then, but memory and open
/// directories all the time.
pub static WALKS: IoThreads = IoThreads::new(WALKERS, FILE_SYSTEM_WALKERS);

/// The threads for one kind of work, with a limit for each server.
#[derive(Debug)]
pub struct IoThreads {
    all: Semaphore,
    each: usize,
    by_name: Mutex<BTreeMap<String, Weak<Semaphore>>>,
}

/// Permission to use one thread.
#[derive(Debug)]
pub struct IoPermit {
    _permit: Option<SemaphorePermit<'static>>,
    _of_server: Option<OwnedSemaphorePermit>,
}

impl IoThreads {
    const fn new(all: usize, each: usize) -> Self {
        Self {
            all: Semaphore::const_new(all),
            each,
            by_name: Mutex::new(BTreeMap::new()),
        }
    }

    /// Waits for a thread for work on `server`: any name shared by all files that hang
    /// together.
    pub async fn acquire(&'static self, server: &str) -> IoPermit {
        if repeatable::is_repeatable() {
            // A simulation uses no threads, and must not wait for those of other runs.
            return IoPermit {
                _permit: None,
                _of_server: None,
            };
        }
        // The server's permit comes first: a caller that waits for it holds no thread of the
        // others. Neither semaphore is ever closed.
        let of_server = self.of(server).acquire_owned().await.ok();
        IoPermit {
            _permit: self.all.acquire().await.ok(),
            _of_server: of_server,
        }
    }

    /// Waits for a thread for work on the file system that holds `path`.
    ///
    /// # Errors
    /// `/proc/self/mountinfo` cannot be read.
    pub async fn acquire_for(&'static self, path: &Path) -> io::Result<IoPermit> {
        let path = path.to_owned();
        let device = repeatable::blocking(move || mount_info::device_of(&path)).await??;
        Ok(self.acquire(&device).await)
    }

    fn of(&self, server: &str) -> Arc<Semaphore> {
        let mut by_name = self.by_name.lock();
        if let Some(known) = by_name.get(server).and_then(Weak::upgrade) {
            return known;
        }
        by_name.retain(|_, semaphore| semaphore.strong_count() > 0);
        let semaphore = Arc::new(Semaphore::new(self.each));
        by_name.insert(server.to_owned(), Arc::downgrade(&semaphore));
        semaphore
    }
}

impl IoPermit {
    /// Runs blocking work that may hang. The thread stays in use until the work ends, even
    /// if the caller no longer waits for it.
    ///
    /// # Errors
    /// The work panicked.
    pub async fn blocking<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        repeatable::blocking(move || {
            let _permit = self;
            work()
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use futures::future::{FutureExt as _, join_all};
    use parking_lot::Mutex;
    use tokio::{runtime::Builder, task::yield_now};

    use super::*;

    #[test]
    fn work_that_hangs_leaves_threads_for_the_rest() {
        static SERVERS: IoThreads = IoThreads::new(2, 2);
        let runtime = Builder::new_current_thread()
            .max_blocking_threads(3)
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (server, answers) = mpsc::channel::<()>();
            let answers = Arc::new(Mutex::new(answers));
            let hang = || {
                let answers = Arc::clone(&answers);
                tokio::spawn(async move {
                    let permit = SERVERS.acquire("dead").await;
                    permit
                        .blocking(move || answers.lock().recv().is_err())
                        .await
                })
            };
            let abandoned = [hang(), hang()];
            let waiting = [hang(), hang()];
            yield_now().await;
            let soon = std::time::Duration::from_secs(10);
            tokio::time::timeout(soon, repeatable::blocking(|| ()))
                .await
                .unwrap()
                .unwrap();
            for task in &abandoned {
                task.abort();
            }
            // Aborting the tasks does not end the work on their threads.
            for ended in join_all(abandoned).await {
                assert!(ended.unwrap_err().is_cancelled());
            }
            yield_now().await;
            assert_eq!(SERVERS.all.available_permits(), 0);
            let soon = std::time::Duration::from_secs(10);
            tokio::time::timeout(soon, repeatable::blocking(|| ()))
                .await
                .unwrap()
                .unwrap();
            drop(server);
            for ended in join_all(waiting).await {
                assert!(ended.unwrap().unwrap());
            }
        });
        drop(runtime);
        assert_eq!(SERVERS.all.available_permits(), 2);
    }

    #[tokio::test]
    async fn a_server_that_hangs_blocks_no_other() {
        static SERVERS: IoThreads = IoThreads::new(10, 2);
        let hung = [SERVERS.acquire("dead").await, SERVERS.acquire("dead").await];
        let mut third = Box::pin(SERVERS.acquire("dead"));
        assert!(third.as_mut().now_or_never().is_none());
        let well = SERVERS.acquire("well").now_or_never();
        assert!(well.is_some());
        // A caller that waits for its server holds no thread of the others.
        assert_eq!(SERVERS.all.available_permits(), 7);
        drop(hung);
        third.await;
        drop(well);
        SERVERS.acquire("next").await;
        assert_eq!(
            SERVERS.by_name.lock().len(),
            1,
            "idle servers must be forgotten"
        );
    }

    #[tokio::test]
    async fn paths_on_one_file_system_share_a_server() {
        static SERVERS: IoThreads = IoThreads::new(10, 2);
        let at = |path| SERVERS.acquire_for(Path::new(path));
        let _same = [at("/proc/1").await, at("/proc/self/none").await];
        assert_eq!(SERVERS.by_name.lock().len(), 1);
        let _other = at("/").await;
        assert_eq!(SERVERS.by_name.lock().len(), 2);
    }
}
