//! The back-off of restarts.

use std::time::Duration;

use fake_runtime::{ContainerEvent, ContainerHistory};
use tokio::time::Instant;

use super::History;
use crate::pods;

/// The first delay, as upstream; it doubles with each restart.
const BASE: Duration = Duration::from_secs(10);
/// The back-off resets after a container ran for this long, as upstream. The restart may have begun
/// some time before the runtime was asked for it, because the image pull comes first.
const RESET: Duration = Duration::from_secs(600 - 120);
/// From a container's exit to the sync: an event is read after 10 ms; without events, the relist
/// comes every second. Without faults nothing else takes time.
const PROMPT: Duration = Duration::from_millis(1100);

pub(super) fn problem(history: &History<'_>) -> Option<String> {
    pods::containers(&history.subject.pod).find_map(|container| {
        let starts = history.of(&container.name).filter_map(|life| {
            let mut events = life.events.iter();
            let asked = events
                .find(|(_, event)| *event == ContainerEvent::StartCalled)?
                .0;
            life.started().map(|_| (life, asked))
        });
        let starts: Vec<(&ContainerHistory, Instant)> = starts.collect();
        let mut restarts = 0;
        starts.windows(2).find_map(|pair| {
            let [(last, before), (next, again)] = pair else {
                return None;
            };
            let is_same = last.sandbox_id == next.sandbox_id
                && last.image == next.image
                && history.is_unbroken(*before, *again);
            if is_same && last.stops().next().is_some() {
                // A container that the kubelet stops in order to restart it has not exited yet at
                // that decision, so it has no back-off, as upstream.
                return None;
            }
            restarts = if is_same { restarts + 1 } else { 0 };
            let (ended, ..) = last.ended().filter(|_| is_same)?;
            if *again - *before > RESET {
                restarts = 1;
                return None;
            }
            let least = delay(history, restarts);
            let longest = history.simulation.node.options.restart_delays.longest;
            let waited = *again - ended;
            let due = ended + longest + PROMPT;
            let is_late = *again > due && history.is_calm(ended, due);
            (waited < least || is_late).then(|| {
                format!(
                    "attempt {} of {} was started {waited:?} after the last had ended; \
                     {least:?} to {longest:?} are due",
                    next.attempt, next.name
                )
            })
        })
    })
}

/// The least delay before the n-th consecutive restart. Failed attempts lengthen it.
fn delay(history: &History<'_>, restarts: u32) -> Duration {
    let longest = history.simulation.node.options.restart_delays.longest;
    match restarts {
        0 | 1 => Duration::ZERO,
        more => (BASE * 2_u32.saturating_pow((more - 2).min(16))).min(longest),
    }
}
