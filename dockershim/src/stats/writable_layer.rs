//! The size of the containers' writable layers: the content of each overlay's upper directory.
//! Other storage drivers are not measured. If the engine does not report the directory, a container
//! is measured only while it is running.
//!
//! A measurement walks through all files, so it happens in the background: one directory at a time,
//! for at most a fixed share of the time, and only while stats are being requested.
//!
//! The container's output that the engine keeps for the shim is included: it is in the same file
//! system, and a container that writes faster than the shim reads may fill it.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cri_proto::runtime::v1::ContainerState;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;
use tree_walk::DiskWalk;

use super::upper_dir;
use crate::{
    clock::now,
    logs::backlog,
    model::{Container, Id, Model},
    process::Processes,
};

/// The minimum interval between measurements of a container, if all of them take little time. What
/// a pod has written since may decide whether it is evicted.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(10);
/// The same, if they take much.
const LONGEST_INTERVAL: Duration = Duration::from_secs(120);
/// The interval, as a multiple of the time that the measurements of all containers take, pauses
/// included: the walks take a hundredth of the time of one CPU, unless the interval is the longest.
const SPARSENESS: u32 = 10;
/// How long after a request measurements continue.
const INTEREST: Duration = Duration::from_secs(300);
/// How long a walk runs without a pause ...
const SLICE: Duration = Duration::from_millis(20);
/// ... and the pause, as a multiple of that time.
const REST: u32 = 9;

/// The size of one container's writable layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measurement {
    /// The time of the measurement, as Unix time in nanoseconds.
    pub timestamp: i64,
    /// The bytes on disk.
    pub bytes: u64,
    /// The number of files and directories.
    pub inodes: u64,
    /// Whether both are lower bounds, because the walk exceeded its memory limits.
    pub is_partial: bool,
}

/// The last measurement of each container.
#[derive(Debug, Default)]
pub struct WritableLayers {
    measured: Mutex<HashMap<Id, Outcome>>,
    requested: Notify,
    /// Notifies when another container has been measured.
    advanced: Notify,
    last_requested: Mutex<Option<Instant>>,
    /// The number of partial measurements.
    pub in_part: Counter,
    has_backlogs: bool,
}

#[derive(Debug, Clone, Copy)]
struct Outcome {
    at: Instant,
    /// How long it took, pauses included.
    took: Duration,
    /// `None` if there was nothing to measure, or it is gone.
    found: Option<Measurement>,
}

impl WritableLayers {
    /// Starts the measuring task, which runs until `stop`. `has_backlogs`: the engine keeps output
    /// for the shim.
    pub fn start(
        model: Arc<Model>,
        processes: Arc<Processes>,
        has_backlogs: bool,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let layers = Arc::new(Self {
            has_backlogs,
            ..Self::default()
        });
        let work = Arc::clone(&layers).run(model, processes);
        tokio::spawn(stop.run_until_cancelled_owned(work));
        layers
    }

    /// Requests measurements.
    pub fn request(&self) {
        *self.last_requested.lock() = Some(Instant::now());
        self.requested.notify_one();
    }

    /// Requests measurements, and waits for at most `limit` until every running container has a
    /// recent one. Those that took longer than `limit` the last time are not waited for.
    pub async fn recent(&self, model: &Model, limit: Duration) {
        self.request();
        let measured = async {
            loop {
                let advanced = self.advanced.notified();
                if !self.is_measuring(model, limit) {
                    return;
                }
                advanced.await;
            }
        };
        // What is missing is reported next time.
        let _ = tokio::time::timeout(limit, measured).await;
    }

    /// Whether a running container has no recent measurement, and a new one may come within `limit`.
    fn is_measuring(&self, model: &Model, limit: Duration) -> bool {
        let snapshot = model.snapshot();
        let measured = self.measured.lock();
        let interval = interval(&measured);
        snapshot.containers().any(|container| {
            container.status.state() == ContainerState::ContainerRunning
                && is_measurable(container)
                && measured
                    .get(container.id())
                    .is_none_or(|last| last.took <= limit && is_due(container, last, interval))
        })
    }

    /// The last measurement of a container, which may be [partial]; `None` if there is none.
    ///
    /// [partial]: Measurement::is_partial
    pub fn of(&self, id: &str) -> Option<Measurement> {
        self.measured.lock().get(id)?.found
    }

    /// The total bytes and inodes of all measured layers.
    pub fn total(&self) -> (u64, u64) {
        let measured = self.measured.lock();
        let found = measured.values().filter_map(|outcome| outcome.found);
        found.fold((0, 0), |(bytes, inodes), one| {
            (bytes + one.bytes, inodes + one.inodes)
        })
    }

    async fn run(self: Arc<Self>, model: Arc<Model>, processes: Arc<Processes>) {
        loop {
            let wanted = self
                .last_requested
                .lock()
                .is_some_and(|at| at.elapsed() < INTEREST);
            match self.next(&model) {
                Some(container) if wanted => {
                    let began = Instant::now();
                    let found = measure(&container, &processes, self.has_backlogs).await;
                    let outcome = Outcome {
                        at: Instant::now(),
                        took: began.elapsed(),
                        found,
                    };
                    let id = container.id();
                    let last = self.measured.lock().insert(id.into(), outcome);
                    if is_partial(found) {
                        self.in_part.inc();
                        if !last.is_some_and(|last| is_partial(last.found)) {
                            tracing::warn!(
                                container_id = id,
                                "cannot measure all of the container's writable layer; reporting a \
                                 part of it"
                            );
                        }
                    }
                    self.advanced.notify_waiters();
                }
                // Containers that become due meanwhile are measured at the next request.
                _ => self.requested.notified().await,
            }
        }
    }

    /// The container whose measurement is most overdue.
    fn next(&self, model: &Model) -> Option<Arc<Container>> {
        let snapshot = model.snapshot();
        let mut measured = self.measured.lock();
        measured.retain(|id, _| snapshot.contains(id));
        let interval = interval(&measured);
        let due = snapshot.containers().filter_map(|container| {
            if !is_measurable(container) {
                return None;
            }
            let last = measured.get(container.id());
            let due = last.is_none_or(|last| is_due(container, last, interval));
            due.then(|| (last.map(|last| last.at), container))
        });
        due.min_by_key(|(at, _)| *at)
            .map(|(_, container)| Arc::clone(container))
    }
}

fn is_partial(found: Option<Measurement>) -> bool {
    found.is_some_and(|found| found.is_partial)
}

fn is_measurable(container: &Container) -> bool {
    !container.upper_dir.is_empty() || container.pid > 0
}

/// The time between two measurements of a container.
fn interval(measured: &HashMap<Id, Outcome>) -> Duration {
    let all: Duration = measured.values().map(|outcome| outcome.took).sum();
    (all * SPARSENESS).clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL)
}

fn is_due(container: &Container, last: &Outcome, interval: Duration) -> bool {
    let status = &container.status;
    let ended = status.state() == ContainerState::ContainerExited;
    // An exited container writes no more.
    let settled = ended && last.found.is_some_and(|m| m.timestamp > status.finished_at);
    !settled && last.at.elapsed() >= interval
}

/// Measures a container's writable layer in slices.
async fn measure(
    container: &Arc<Container>,
    processes: &Arc<Processes>,
    has_backlog: bool,
) -> Option<Measurement> {
    let mut walk = None;
    loop {
        let (container, processes) = (Arc::clone(container), Arc::clone(processes));
        let slice = tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            let mut walk = match walk {
                Some(walk) => walk,
                None => DiskWalk::start(&directory(&container, &processes)?).ok()?,
            };
            let done = !walk.go_on(|| began.elapsed() < SLICE);
            let is_converted = has_backlog && container.cri_log;
            let backlog = if done && is_converted && !container.engine_log.is_empty() {
                backlog(Path::new(&container.engine_log))
            } else {
                0
            };
            Some((walk, done, backlog, began.elapsed()))
        });
        let (advanced, done, backlog, took) = slice.await.ok().flatten()?;
        tokio::time::sleep(took * REST).await;
        if done {
            return Some(Measurement {
                timestamp: now(),
                bytes: advanced.bytes() + backlog,
                inodes: advanced.inodes(),
                is_partial: advanced.is_partial(),
            });
        }
        walk = Some(advanced);
    }
}

fn directory(container: &Container, processes: &Processes) -> Option<PathBuf> {
    if container.upper_dir.is_empty() {
        return upper_dir::find(processes, container.id(), container.pid);
    }
    Some(PathBuf::from(&container.upper_dir))
}

#[cfg(test)]
#[path = "writable_layer_tests.rs"]
mod tests;
