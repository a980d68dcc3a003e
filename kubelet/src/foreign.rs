//! Work on files that are not the kubelet's own: what pods mount may be on a server
//! that does not answer any more, and whoever asks for it then hangs, maybe for ever.
//! Such work has threads up to a bound, so that there are always some for the rest.

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    task::JoinError,
};

use crate::repeatable;

/// Threads for each kind of work.
const THREADS: usize = 64;

/// Threads that all such work has at most: of its three kinds, and as many again to force
/// an end on what hangs in volumes.
pub const MAX_THREADS: usize = 4 * THREADS;

/// Mounts, unmounts, removals and the like, for the volumes of pods.
pub(crate) static VOLUMES: Bound = Bound::new(THREADS);
/// What containers name in their volumes before they start.
pub(crate) static CONTAINERS: Bound = Bound::new(THREADS);
/// What containers leave behind when they end.
pub(crate) static MESSAGES: Bound = Bound::new(THREADS);

/// The threads for one kind of work.
#[derive(Debug)]
pub(crate) struct Bound(Semaphore);

/// The right to one of the threads.
#[derive(Debug)]
pub(crate) struct Turn {
    _permit: Option<SemaphorePermit<'static>>,
}

impl Bound {
    const fn new(threads: usize) -> Self {
        Self(Semaphore::const_new(threads))
    }

    /// Waits for a thread.
    pub(crate) async fn turn(&'static self) -> Turn {
        if repeatable::is_repeatable() {
            // It needs no thread, and is not to wait for those of other runs.
            return Turn { _permit: None };
        }
        // Nobody closes it.
        let _permit = self.0.acquire().await.ok();
        Turn { _permit }
    }

    /// Runs what blocks and may hang.
    ///
    /// # Errors
    /// It panicked.
    pub(crate) async fn blocking<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        self.turn().await.blocking(work).await
    }
}

impl Turn {
    /// As [`Bound::blocking`]. The thread is taken until the work ends, whether somebody
    /// still waits for it or not.
    ///
    /// # Errors
    /// It panicked.
    pub(crate) async fn blocking<T: Send + 'static>(
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

    use futures::future::join_all;
    use parking_lot::Mutex;
    use tokio::{runtime::Builder, task::yield_now};

    use super::*;

    #[test]
    fn what_hangs_leaves_threads_for_the_rest() {
        static BOUND: Bound = Bound::new(2);
        let runtime = Builder::new_current_thread()
            .max_blocking_threads(3)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (server, answers) = mpsc::channel::<()>();
            let answers = Arc::new(Mutex::new(answers));
            let hang = || {
                let answers = Arc::clone(&answers);
                tokio::spawn(BOUND.blocking(move || answers.lock().recv().is_err()))
            };
            let abandoned = [hang(), hang()];
            let waiting = [hang(), hang()];
            yield_now().await;
            repeatable::blocking(|| ()).await.unwrap();
            for task in &abandoned {
                task.abort();
            }
            // That nobody waits for them does not end them.
            for ended in join_all(abandoned).await {
                assert!(ended.unwrap_err().is_cancelled());
            }
            yield_now().await;
            assert_eq!(BOUND.0.available_permits(), 0);
            repeatable::blocking(|| ()).await.unwrap();
            drop(server);
            for ended in join_all(waiting).await {
                assert!(ended.unwrap().unwrap());
            }
        });
        drop(runtime);
        assert_eq!(BOUND.0.available_permits(), 2);
    }
}
