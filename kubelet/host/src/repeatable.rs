//! What a run of the kubelet depends on beside its input and tokio's clock: chance,
//! the time of day, and the order in which file work ends. All of it is here, so
//! that a simulation can repeat a run exactly.

use std::{
    cell::Cell,
    hash::{BuildHasher as _, RandomState},
    marker::PhantomData,
};

use jiff::Timestamp;
use tokio::{task::JoinError, time::Instant};

use crate::file_work;

/// The run of one thread.
#[derive(Clone, Copy)]
struct Run {
    random: u64,
    /// An instant of tokio's clock, and the time of day then.
    epoch: (Instant, Timestamp),
}

thread_local! {
    /// None but in simulations.
    static RUN: Cell<Option<Run>> = const { Cell::new(None) };
}

/// While it lives, whatever the kubelet does on this thread follows from its input
/// alone: chance from a seed, the time of day from tokio's clock, and file work
/// done at once instead of on threads of its own. For a `current_thread` runtime
/// on paused time.
#[derive(Debug)]
pub struct Repeatable {
    /// Belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl Repeatable {
    /// Begins on this thread, at `epoch` by the time of day. Must be called inside
    /// a tokio runtime.
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

/// A number by chance.
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

/// The time of day at `now` by tokio's clock; `None` where that is the system's
/// affair.
pub(crate) fn time_of_day(now: Instant) -> Option<Timestamp> {
    let (begun, epoch) = RUN.get()?.epoch;
    epoch.checked_add(now.duration_since(begun)).ok()
}

/// Whether this thread is in a simulation.
pub(crate) fn is_repeatable() -> bool {
    RUN.get().is_some()
}

/// Runs what blocks, on the file system mostly, where it blocks nobody. What may hang
/// belongs in [`foreign`](crate::foreign).
///
/// # Errors
/// It panicked.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    if is_repeatable() {
        return Ok(work());
    }
    let token = file_work::token();
    let work = move || {
        let _token = token;
        work()
    };
    tokio::task::spawn_blocking(work).await
}

/// As [`blocking`], for work whose end nobody waits for.
pub fn blocking_detached(work: impl FnOnce() + Send + 'static) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) if !is_repeatable() => drop(runtime.spawn_blocking(work)),
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
