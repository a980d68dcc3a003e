//! Everything a run of the kubelet depends on besides its input and tokio's clock: random
//! numbers, the time of day, and the order in which file work finishes. A simulation controls
//! all three here, so that it can repeat a run exactly.

use std::{
    cell::Cell,
    hash::{BuildHasher as _, RandomState},
    marker::PhantomData,
    sync::Arc,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::{task::JoinError, time::Instant};
use tracing::Span;

use crate::file_work;

/// The simulated run of one thread.
#[derive(Clone, Copy)]
struct Run {
    random: u64,
    /// An instant of tokio's clock, and the time of day at that instant.
    epoch: (Instant, Timestamp),
}

thread_local! {
    /// Set only in simulations.
    static RUN: Cell<Option<Run>> = const { Cell::new(None) };
}

/// Makes this thread's run repeatable while it lives: random numbers come from a seed, the
/// time of day follows tokio's clock, and file work runs inline instead of on other threads.
/// For a `current_thread` runtime with paused time.
#[derive(Debug)]
pub struct Repeatable {
    /// Not `Send`: the state belongs to this thread.
    _thread: PhantomData<*const ()>,
}

impl Repeatable {
    /// Begins a repeatable run on this thread, with `epoch` as the current time of day. Must
    /// be called inside a tokio runtime.
    pub fn on_this_thread(seed: u64, epoch: Timestamp) -> Self {
        RUN.set(Some(Run {
            random: seed,
            epoch: (Instant::now(), epoch),
        }));
        Self {
            _thread: PhantomData,
        }
    }
}

impl Drop for Repeatable {
    fn drop(&mut self) {
        RUN.set(None);
    }
}

/// A random number; not for secrets.
pub fn random() -> u64 {
    let Some(mut run) = RUN.get() else {
        return RandomState::new().hash_one(());
    };
    // SplitMix64, <https://prng.di.unimi.it/splitmix64.c>.
    run.random = run.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    RUN.set(Some(run));
    let mut z = run.random;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The simulated time of day at `now`; `None` outside a simulation.
pub(crate) fn time_of_day(now: Instant) -> Option<Timestamp> {
    let (begun, epoch) = RUN.get()?.epoch;
    epoch.checked_add(now.duration_since(begun)).ok()
}

/// Whether this thread runs a simulation.
pub(crate) fn is_repeatable() -> bool {
    RUN.get().is_some()
}

/// Runs blocking work, mostly on files, on a thread where it blocks no task. Work that may
/// hang belongs in [`bounded_io`](crate::bounded_io).
///
/// # Errors
/// The work panicked.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    if is_repeatable() {
        return Ok(work());
    }
    let result = Arc::new(Mutex::new(None));
    let slot = Arc::clone(&result);
    // One type of work for all callers: each further one adds a copy of the runtime's tasks to
    // the binary.
    on_another_thread(Box::new(move || *slot.lock() = Some(work()))).await?;
    let result = result.lock().take();
    Ok(result.unwrap_or_else(|| unreachable!("the work has set its result")))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the place where blocking work is started"
)]
async fn on_another_thread(work: Box<dyn FnOnce() + Send>) -> Result<(), JoinError> {
    let token = file_work::token();
    let span = Span::current();
    let work = move || {
        let _token = token;
        span.in_scope(work)
    };
    tokio::task::spawn_blocking(work).await
}

/// Runs blocking work like [`blocking`], without waiting for its end.
pub fn blocking_detached(work: impl FnOnce() + Send + 'static) {
    let work: Box<dyn FnOnce() + Send> = Box::new(work);
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) if !is_repeatable() => {
            let span = Span::current();
            drop(runtime.spawn_blocking(move || span.in_scope(work)));
        }
        _ => work(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_seed_gives_the_same_numbers_at_the_same_time() {
        let epoch = Timestamp::UNIX_EPOCH;
        let numbers = || {
            let _run = Repeatable::on_this_thread(7, epoch);
            [random(), random(), random()]
        };
        assert_eq!(numbers(), numbers());
        assert_ne!([random(), random()], [random(), random()]);
        let _run = Repeatable::on_this_thread(7, epoch);
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        assert_eq!(time_of_day(Instant::now()).unwrap().as_second(), 3);
        let here = std::thread::current().id();
        let there = blocking(|| std::thread::current().id()).await.unwrap();
        assert_eq!(here, there);
    }
}
