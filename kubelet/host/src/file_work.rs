//! Work on files that a task has on threads of their own. It goes on when the task is
//! aborted: whoever undoes what the task did waits for it.

use std::future::Future;

use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

tokio::task_local! {
    /// None outside of tracked tasks.
    static CURRENT: FileWork;
}

/// The file work of one task, and of those that follow it.
#[derive(Clone, Debug, Default)]
pub struct FileWork {
    begun: TaskTracker,
    given_up: CancellationToken,
}

impl FileWork {
    /// That of the task at hand; one that nobody gives up where it is not tracked.
    pub fn current() -> Self {
        CURRENT.try_with(Self::clone).unwrap_or_default()
    }

    /// Tracks what `task` does by [`repeatable::blocking`](crate::repeatable::blocking), but
    /// not what it leaves to further tasks.
    pub fn track<F: Future>(&self, task: F) -> impl Future<Output = F::Output> + use<F> {
        CURRENT.scope(self.clone(), task)
    }

    /// Whatever was begun is in vain.
    pub fn give_up(&self) {
        self.given_up.cancel();
    }

    /// Whether it is in vain. To be asked right before something is made that a clean-up
    /// could miss.
    pub fn is_given_up(&self) -> bool {
        self.given_up.is_cancelled()
    }

    /// Waits until nothing is at work.
    pub async fn ended(&self) {
        self.begun.close();
        self.begun.wait().await;
    }
}

/// To be held by work as long as it goes on.
pub fn token() -> Option<TaskTrackerToken> {
    CURRENT.try_with(|work| work.begun.token()).ok()
}
