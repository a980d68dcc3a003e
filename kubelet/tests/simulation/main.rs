//! Dozens of pods that are added, changed, removed and crash in random order on a runtime that
//! fails by chance, under a kubelet that is killed in between. All of them must converge to their
//! specs. A run is determined by its seed.
//!
//! `SIMULATION_SEEDS=1000` runs that many seeds, `SIMULATION_SEED=7` runs that one, and
//! `SIMULATION_PODS=20` sets the number of pods.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod capacity;
mod checks;
mod cluster;
mod cpus;
mod driver;
mod faults;
mod history;
mod memory;
mod node;
mod operations;
mod pods;
mod probes;
mod rounds;
mod simulated_pod;
mod trace;

use std::{
    env,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use driver::simulate;
use parking_lot::Mutex;
use test_run::size::amount;
use trace::Trace;

/// Pods of one seed. Many small runs find more bugs than a large one.
const PODS: u64 = 60;
/// The default number of seeds: about a minute of CPU time.
const SEEDS: u64 = 10;

fn pods() -> usize {
    usize::try_from(amount("SIMULATION_PODS", PODS)).unwrap()
}

fn seeds() -> Range<u64> {
    match env::var("SIMULATION_SEED") {
        Ok(seed) => {
            let seed = seed.parse();
            let seed: u64 = seed.unwrap_or_else(|error| panic!("SIMULATION_SEED: {error}"));
            seed..seed + 1
        }
        Err(_) => 0..amount("SIMULATION_SEEDS", SEEDS),
    }
}

/// The CPU time of this thread. Unlike elapsed time, it does not depend on other processes.
fn cpu_time() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = times.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or_default())
}

fn run(seed: u64, pods: usize) -> Trace {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let begun = cpu_time();
    let trace = runtime.block_on(simulate(seed, pods));
    eprintln!(
        "seed {seed}: {pods} pods, {} entries, {} lists, {:.0?} in {:.1?} of CPU time, digest {:x}",
        trace.len(),
        trace.count("ListPodSandbox"),
        trace.duration(),
        cpu_time() - begun,
        trace.digest()
    );
    trace
}

#[test]
fn every_seed_converges() {
    let seeds = seeds();
    let next = AtomicU64::new(seeds.start);
    let failed = Mutex::new(Vec::new());
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    if catch_unwind(AssertUnwindSafe(|| run(seed, pods()))).is_err() {
                        eprintln!(
                            "seed {seed} failed; alone: SIMULATION_SEED={seed} \
                             cargo test --workspace --test simulation every_seed"
                        );
                        failed.lock().push(seed);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    assert!(failed.is_empty(), "seeds that failed: {failed:?}");
}

#[test]
fn a_seed_repeats_exactly() {
    let pods = pods();
    let runs = [1, 1, 2].map(|seed| thread::spawn(move || run(seed, pods)));
    let [first, again, other] = runs.map(|run| run.join().unwrap());
    first.assert_same(&again);
    assert_ne!(first.digest(), other.digest());
}
