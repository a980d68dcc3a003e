//! Work on files that are not the kubelet's own: what pods mount may be on a server
//! that does not answer any more, and whoever asks for it then hangs, maybe for ever.
//! Such work has threads up to a bound for each server, so that one that hangs holds up
//! nobody else's, and up to a bound in all, so that there are always some for the rest.

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

/// Threads for one kind of work, of all servers and of one.
const THREADS: usize = 256;
const SERVER_THREADS: usize = 8;

/// Threads that all such work has at most: of its three kinds, and as many again as volumes
/// have to force an end on what hangs in them.
pub const MAX_THREADS: usize = 4 * THREADS;

/// Mounts, unmounts and the like, for the volumes of pods.
pub static VOLUMES: Servers = Servers::new(THREADS, SERVER_THREADS);
/// What containers name in their volumes before they start.
pub static CONTAINERS: Servers = Servers::new(THREADS, SERVER_THREADS);
/// What containers leave behind when they end.
pub static MESSAGES: Servers = Servers::new(THREADS, SERVER_THREADS);

/// The threads for one kind of work, with a bound for each server.
#[derive(Debug)]
pub struct Servers {
    all: Semaphore,
    each: usize,
    by_name: Mutex<BTreeMap<String, Weak<Semaphore>>>,
}

/// The right to one of the threads.
#[derive(Debug)]
pub struct Turn {
    _permit: Option<SemaphorePermit<'static>>,
    _of_server: Option<OwnedSemaphorePermit>,
}

impl Servers {
    const fn new(all: usize, each: usize) -> Self {
        Self {
            all: Semaphore::const_new(all),
            each,
            by_name: Mutex::new(BTreeMap::new()),
        }
    }

    /// Waits for a thread for the work on a server: whatever all of it hangs with.
    pub async fn turn(&'static self, server: &str) -> Turn {
        if repeatable::is_repeatable() {
            // It needs no thread, and is not to wait for those of other runs.
            return Turn {
                _permit: None,
                _of_server: None,
            };
        }
        // The server's permit first: a turn that waits for it takes no thread from the others.
        // Nobody closes either.
        let of_server = self.of(server).acquire_owned().await.ok();
        Turn {
            _permit: self.all.acquire().await.ok(),
            _of_server: of_server,
        }
    }

    /// As [`turn`](Self::turn), for the file system that a path is on, whatever that is.
    ///
    /// # Errors
    /// `/proc` is not there.
    pub async fn turn_at(&'static self, path: &Path) -> io::Result<Turn> {
        let path = path.to_owned();
        let device = repeatable::blocking(move || mount_info::device_of(&path)).await??;
        Ok(self.turn(&device).await)
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

impl Turn {
    /// Runs what blocks and may hang. The thread is taken until the work ends, whether
    /// somebody still waits for it or not.
    ///
    /// # Errors
    /// It panicked.
    pub async fn blocking<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        repeatable::blocking(move || {
            let _turn = self;
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
    fn what_hangs_leaves_threads_for_the_rest() {
        static SERVERS: Servers = Servers::new(2, 2);
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
                    let turn = SERVERS.turn("dead").await;
                    turn.blocking(move || answers.lock().recv().is_err()).await
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
            // That nobody waits for them does not end them.
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
    async fn a_server_that_hangs_holds_up_no_other() {
        static SERVERS: Servers = Servers::new(10, 2);
        let hung = [SERVERS.turn("dead").await, SERVERS.turn("dead").await];
        let mut third = Box::pin(SERVERS.turn("dead"));
        assert!(third.as_mut().now_or_never().is_none());
        let well = SERVERS.turn("well").now_or_never();
        assert!(well.is_some());
        // A turn that waits for its server takes no thread from the others.
        assert_eq!(SERVERS.all.available_permits(), 7);
        drop(hung);
        third.await;
        drop(well);
        SERVERS.turn("next").await;
        assert_eq!(SERVERS.by_name.lock().len(), 1, "others are forgotten");
    }

    #[tokio::test]
    async fn paths_of_one_file_system_are_of_one_server() {
        static SERVERS: Servers = Servers::new(10, 2);
        let at = |path| SERVERS.turn_at(Path::new(path));
        let _same = [at("/proc/1").await, at("/proc/self/none").await];
        assert_eq!(SERVERS.by_name.lock().len(), 1);
        let _other = at("/").await;
        assert_eq!(SERVERS.by_name.lock().len(), 2);
    }
}
