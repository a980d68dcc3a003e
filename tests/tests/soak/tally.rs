//! What the workers and who disturbs them know of each other.

use std::{
    collections::HashSet,
    fmt,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use e2e::engine_proxy::EngineProxy;
use parking_lot::Mutex;
use tokio::sync::watch;

/// How long nothing may become whole before the test is given up: it hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// The count of pods and of disturbances.
#[derive(Debug, Default)]
pub struct Tally {
    /// Pods whose log was seen whole.
    whole: watch::Sender<usize>,
    /// Those of them in whose life the shim was killed.
    survivors: AtomicUsize,
    /// Pods that something kept from it.
    disturbed: AtomicUsize,
    /// Goes up when something begins to go down, and when it is back, so that it is odd in between.
    turns: watch::Sender<u64>,
    /// The same of the engine alone: what it had not read of its containers is gone.
    engine_turns: AtomicU64,
    /// Pods whose sandbox the runtime was asked for, and never told of.
    unanswered: Mutex<HashSet<String>>,
}

/// What was disturbed when a pod's life began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    turns: u64,
    engine_turns: u64,
    faults: usize,
    /// An answer of the engine is late.
    holds_back: bool,
}

/// What becomes of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It ended as it should, and the engine was there all the time.
    Whole,
    /// Something was killed or refused in its life.
    Disturbed,
    /// It failed, and nothing did.
    Unexplained,
}

impl Tally {
    /// Now.
    pub fn moment(&self, proxy: &EngineProxy) -> Moment {
        Moment {
            turns: *self.turns.borrow(),
            engine_turns: self.engine_turns.load(Ordering::SeqCst),
            faults: proxy.faults(),
            holds_back: proxy.holds_back(),
        }
    }

    /// What became of a pod that lived from `begun` to `end`, and got to its end or not.
    pub fn outcome(&self, begun: Moment, end: Moment, ended_well: bool) -> Outcome {
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
    pub fn count(&self, begun: Moment, end: Moment, outcome: Outcome) {
        if outcome != Outcome::Whole {
            self.disturbed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if begun.turns != end.turns {
            self.survivors.fetch_add(1, Ordering::Relaxed);
        }
        self.whole.send_modify(|whole| *whole += 1);
    }

    /// Something goes down, or is back.
    pub fn turn(&self) {
        self.turns.send_modify(|turns| *turns += 1);
    }

    /// The engine goes down, or is back.
    pub fn engine_turn(&self) {
        self.engine_turns.fetch_add(1, Ordering::SeqCst);
        self.turn();
    }

    /// Waits until nothing is down.
    pub async fn all_up(&self) {
        // The sender lives in `self`, so it cannot be gone.
        let _ = self
            .turns
            .subscribe()
            .wait_for(|turns| turns.is_multiple_of(2))
            .await;
    }

    /// Waits for one more pod to become whole, so that there is always a share of them.
    ///
    /// # Panics
    /// None does.
    pub async fn one_more_whole(&self) {
        let mut whole = self.whole.subscribe();
        let before = *whole.borrow_and_update();
        let more = whole.wait_for(|whole| *whole > before);
        let waited = tokio::time::timeout(PATIENCE, more).await;
        assert!(
            waited.is_ok(),
            "no pod became whole in {PATIENCE:?}: {self}"
        );
    }

    /// The runtime is asked for the sandbox of this pod.
    pub fn ask(&self, uid: &str) {
        self.unanswered.lock().insert(uid.to_owned());
    }

    /// The runtime has told of it.
    pub fn answered(&self, uid: &str) {
        self.unanswered.lock().remove(uid);
    }

    /// Whether the runtime never told of the pod's sandbox.
    pub fn is_unanswered(&self, uid: &str) -> bool {
        self.unanswered.lock().contains(uid)
    }

    /// How many pods became whole.
    pub fn whole(&self) -> usize {
        *self.whole.borrow()
    }

    /// How many pods something kept from it.
    pub fn disturbed(&self) -> usize {
        self.disturbed.load(Ordering::Relaxed)
    }

    /// How often something was killed or stopped.
    pub fn kills(&self) -> usize {
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
