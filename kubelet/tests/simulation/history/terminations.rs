//! How containers terminate: grace periods and order.

use std::time::Duration;

use fake_runtime::{ContainerHistory, EndCause};
use tokio::time::Instant;

use super::History;
use crate::{pods::is_sidecar, simulated_pod::PodEvent};

/// The minimum of each container, as upstream.
const MINIMUM: Duration = Duration::from_secs(2);
/// The grace period of orphaned pods, as upstream.
const OF_ORPHANS: Duration = Duration::from_secs(1);
/// The grace period of evictions by a hard threshold.
const OF_EVICTIONS: Duration = Duration::from_secs(1);
/// Longer than any pod takes to terminate.
const LONGEST: Duration = Duration::from_secs(15);
/// The minimum of a whole pod, as upstream.
const MINIMUM_OF_POD: Duration = Duration::from_secs(1);
pub(super) fn problem(history: &History<'_>) -> Option<String> {
    history.lives.iter().find_map(|life| {
        by_force(life)
            .or_else(|| timeouts(history, life))
            .or_else(|| out_of_turn(history, life))
    })
}

/// No container ends with its sandbox or is removed without having been stopped before.
fn by_force(life: &ContainerHistory) -> Option<String> {
    let (_, end, _) = life.ended()?;
    let is_told = life.stops().next().is_some();
    let allowed = match end {
        EndCause::Itself | EndCause::Stop => true,
        // After its own stop failed, as upstream.
        EndCause::SandboxStop => is_told,
        EndCause::Removal => false,
    };
    (!allowed).then(|| format!("attempt {} of {}: {end:?}", life.attempt, life.name))
}

/// The grace periods that may apply to the pod at a time.
fn graces(history: &History<'_>, at: Instant) -> Vec<Duration> {
    let subject = history.subject;
    let seconds = |seconds: i64| Duration::from_secs(seconds.unsigned_abs());
    let of_spec = subject.spec().termination_grace_period_seconds;
    let of_spec = of_spec.map(seconds).unwrap_or_default();
    let first = subject.events[0].0;
    let mut graces = match subject.done(PodEvent::Deleted, first, at) {
        None => vec![of_spec],
        Some(deleted) => {
            let grace = subject.pod.metadata.deletion_grace_period_seconds;
            let of_deletion = grace.map(seconds).unwrap_or_default();
            let of_before = history.is_unheard(deleted) || was_ending(history, deleted);
            let of_before = of_before.then_some(of_spec);
            of_before.into_iter().chain([of_deletion]).collect()
        }
    };
    // To a kubelet that never received the pod, it is an orphan.
    if let Some(removed) = subject.done(PodEvent::Removed, first, at)
        && history.kubelet_died(removed, at)
    {
        if subject.done(PodEvent::Added, removed, at).is_none() {
            return vec![OF_ORPHANS];
        }
        graces.push(OF_ORPHANS);
    }
    if history.simulation.node.memory.has_evicted(at) {
        graces.push(OF_EVICTIONS);
    }
    graces
}

/// Whether the pod was terminating when it was marked for deletion; a deletion does not prolong the
/// grace period.
fn was_ending(history: &History<'_>, deleted: Instant) -> bool {
    let subject = history.subject;
    let removed = subject.done(PodEvent::Removed, subject.events[0].0, deleted);
    let mut stops = history.lives.iter().flat_map(|life| life.stops());
    removed.is_some() || stops.any(|(at, _)| at <= deleted && deleted < at + LONGEST)
}

/// The remaining time as the runtime gets it: whole seconds, rounded up, at least [`MINIMUM`].
fn left(deadline: Instant, at: Instant) -> Duration {
    let left = deadline.saturating_duration_since(at);
    let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
    Duration::from_secs(seconds).max(MINIMUM)
}

/// The timeout of each stop is the rest of the grace period since the first stop.
fn timeouts(history: &History<'_>, life: &ContainerHistory) -> Option<String> {
    let (_, container) = history.subject.container(&life.name)?;
    // A sidecar's grace period starts with that of the containers it waits for.
    let begins: Vec<Instant> = history
        .lives
        .iter()
        .filter(|_| is_sidecar(container))
        .flat_map(|other| other.stops().map(|(at, _)| at))
        .collect();
    let mut known: Option<(Instant, Instant)> = None;
    for (at, timeout) in life.stops() {
        // The kubelet does not know what an earlier one began.
        let deadline = known.filter(|(since, _)| !history.kubelet_died(*since, at));
        let deadline = deadline.map(|(_, deadline)| deadline);
        let allowed = graces(history, at).into_iter().flat_map(|grace| {
            let began = begins
                .iter()
                .filter(|began| **began < at && !history.kubelet_died(**began, at));
            let began = began.copied().chain([at]);
            began.map(move |began| {
                let own = began + grace;
                deadline.map_or(own, |deadline| own.min(deadline))
            })
        });
        let allowed: Vec<Instant> = allowed.collect();
        let Some(deadline) = allowed
            .iter()
            .find(|deadline| left(**deadline, at) == timeout)
        else {
            let wanted = allowed.iter().map(|deadline| left(*deadline, at));
            return Some(format!(
                "attempt {} of {} was given {timeout:?} to end at {at:?}, not one of {:?}",
                life.attempt,
                life.name,
                wanted.collect::<Vec<_>>()
            ));
        };
        known = Some((at, *deadline));
    }
    None
}

/// Sidecars of a terminating pod wait for the containers and later sidecars while the grace period
/// lasts.
fn out_of_turn(history: &History<'_>, life: &ContainerHistory) -> Option<String> {
    let subject = history.subject;
    let (place, container) = subject.container(&life.name)?;
    if !is_sidecar(container) {
        return None;
    }
    let (at, _) = life.stops().next()?;
    let asked = [PodEvent::Deleted, PodEvent::Removed].into_iter();
    let asked = asked
        .filter_map(|event| subject.done(event, life.started()?, at))
        .min()?;
    if history.kubelet_died(asked, at) {
        return None;
    }
    let grace = graces(history, at).into_iter().min()?.max(MINIMUM_OF_POD);
    let others = history.lives.iter().filter(|other| other.id != life.id);
    let stops = others.flat_map(|other| other.stops());
    // The grace period of all containers starts with the first stop. A stop of another container
    // shows that the whole pod terminates.
    let began = stops
        .map(|(at, _)| at)
        .filter(|stop| asked <= *stop && *stop <= at)
        .min()?;
    history.lives.iter().find_map(|other| {
        let (after, container) = subject.container(&other.name)?;
        // Sidecars do not wait for other init containers.
        let serves = after > place && (after >= subject.init_containers() || is_sidecar(container));
        let runs_on = other.ran_at(at) && other.ended().is_none_or(|(ended, ..)| ended > at);
        let is_early = at < began + grace;
        (serves && runs_on && is_early && other.sandbox_id == life.sandbox_id).then(|| {
            format!(
                "{} was signalled at {at:?}, before {} had ended",
                life.name, other.name
            )
        })
    })
}
