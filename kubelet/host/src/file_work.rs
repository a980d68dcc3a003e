//! File work that a task runs on other threads. It continues after the task is aborted, so a
//! clean-up of what the task did has to wait for it.

use std::future::Future;

use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

tokio::task_local! {
    /// Set only in tracked tasks.
    static CURRENT: FileWork;
}

/// The file work of one task and of the tasks that follow it.
#[derive(Clone, Debug, Default)]
pub struct FileWork {
    begun: TaskTracker,
    given_up: CancellationToken,
}

impl FileWork {
    /// The file work of the current task; a new one, never given up, in a task that is not
    /// tracked.
    pub fn current() -> Self {
        CURRENT.try_with(Self::clone).unwrap_or_default()
    }

    /// Tracks the work that `task` runs through
    /// [`repeatable::blocking`](crate::repeatable::blocking), but not that of tasks it spawns.
    pub fn track<F: Future>(&self, task: F) -> impl Future<Output = F::Output> + use<F> {
        CURRENT.scope(self.clone(), task)
    }

    /// Marks everything begun so far as abandoned.
    pub fn give_up(&self) {
        self.given_up.cancel();
    }

    /// Whether the work was abandoned. Ask right before creating something that the clean-up
    /// could miss.
    pub fn is_given_up(&self) -> bool {
        self.given_up.is_cancelled()
    }

    /// Waits until no work is running.
    pub async fn ended(&self) {
        self.begun.close();
        self.begun.wait().await;
    }
}

/// A token to hold while work of the current task runs; `None` in a task that is not tracked.
pub fn token() -> Option<TaskTrackerToken> {
    CURRENT.try_with(|work| work.begun.token()).ok()
}
