//! State shared by the workers and the tasks that disturb them.

use std::{
    collections::HashSet,
    fmt,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use e2e::engine_proxy::EngineProxy;
use parking_lot::Mutex;
use tokio::sync::watch;

/// The longest time without a complete pod; after it, the test fails as hung.
const PATIENCE: Duration = Duration::from_secs(300);

/// The counts of pods and of disturbances.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Pods whose log was complete.
    whole: watch::Sender<usize>,
    /// Complete pods during whose life the shim was killed.
    survivors: AtomicUsize,
    /// Pods that did not complete because of a disturbance.
    disturbed: AtomicUsize,
    /// Incremented when something starts to go down and when it is back, so it is odd in between.
    turns: watch::Sender<u64>,
    /// The same for the engine alone: when it is killed, it loses container output that it has not
    /// read.
    engine_turns: AtomicU64,
    /// Pods whose sandbox was requested but never confirmed.
    unanswered: Mutex<HashSet<String>>,
}

/// The disturbances at the time when a pod's life began or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    turns: u64,
    engine_turns: u64,
    faults: usize,
    /// Whether an answer of the engine is being delayed.
    holds_back: bool,
}

/// The outcome of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It ended as expected, and the engine was up all the time.
    Whole,
    /// Something was killed or refused during its life.
    Disturbed,
    /// It failed without a disturbance.
    Unexplained,
}

impl Tally {
    /// The current state of the disturbances.
    pub(crate) fn moment(&self, proxy: &EngineProxy) -> Moment {
        Moment {
            turns: *self.turns.borrow(),
            engine_turns: self.engine_turns.load(Ordering::SeqCst),
            faults: proxy.faults(),
            holds_back: proxy.holds_back(),
        }
    }

    /// The outcome of a pod that lived from `begun` to `end`.
    pub(crate) fn outcome(&self, begun: Moment, end: Moment, ended_well: bool) -> Outcome {
        let engine_was_there =
            begun.engine_turns.is_multiple_of(2) && begun.engine_turns == end.engine_turns;
        if ended_well && engine_was_there {
            Outcome::Whole
        } else if ended_well || begun != end || !begun.turns.is_multiple_of(2) || begun.holds_back {
            Outcome::Disturbed
        } else {
            Outcome::Unexplained
        }
    }

    /// Counts a pod that lived from `begun` to `end`.
    pub(crate) fn count(&self, begun: Moment, end: Moment, outcome: Outcome) {
        if outcome != Outcome::Whole {
            self.disturbed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if begun.turns != end.turns {
            self.survivors.fetch_add(1, Ordering::Relaxed);
        }
        self.whole.send_modify(|whole| *whole += 1);
    }

    /// Something goes down, or is back up.
    pub(crate) fn turn(&self) {
        self.turns.send_modify(|turns| *turns += 1);
    }

    /// The engine goes down, or is back up.
    pub(crate) fn engine_turn(&self) {
        self.engine_turns.fetch_add(1, Ordering::SeqCst);
        self.turn();
    }

    /// Waits until nothing is down.
    pub(crate) async fn all_up(&self) {
        // The sender is part of `self`, so it cannot be gone.
        let _ = self
            .turns
            .subscribe()
            .wait_for(|turns| turns.is_multiple_of(2))
            .await;
    }

    /// Waits for one more complete pod, so that there is always a share of them.
    ///
    /// # Panics
    /// No pod completes in time.
    pub(crate) async fn one_more_whole(&self) {
        let mut whole = self.whole.subscribe();
        let before = *whole.borrow_and_update();
        let more = whole.wait_for(|whole| *whole > before);
        let waited = tokio::time::timeout(PATIENCE, more).await;
        assert!(
            waited.is_ok(),
            "no pod became whole in {PATIENCE:?}: {self}"
        );
    }

    /// The sandbox of this pod is requested.
    pub(crate) fn ask(&self, uid: &str) {
        self.unanswered.lock().insert(uid.to_owned());
    }

    /// The runtime has confirmed the sandbox.
    pub(crate) fn answered(&self, uid: &str) {
        self.unanswered.lock().remove(uid);
    }

    /// Whether the pod's sandbox was never confirmed.
    pub(crate) fn is_unanswered(&self, uid: &str) -> bool {
        self.unanswered.lock().contains(uid)
    }

    /// The number of complete pods.
    pub(crate) fn whole(&self) -> usize {
        *self.whole.borrow()
    }

    /// The number of disturbed pods.
    pub(crate) fn disturbed(&self) -> usize {
        self.disturbed.load(Ordering::Relaxed)
    }

    /// The number of times that something was killed or stopped.
    pub(crate) fn kills(&self) -> usize {
        usize::try_from(self.turns.borrow().div_ceil(2)).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let survivors = self.survivors.load(Ordering::Relaxed);
        let (whole, disturbed) = (self.whole(), self.disturbed());
        write!(
            f,
            "{whole} pods with their whole log, {survivors} of them while the shim was killed, \
             and {disturbed} that were disturbed"
        )
    }
}
