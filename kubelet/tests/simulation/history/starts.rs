//! Which containers are started, how often, and in which order.

use fake_runtime::{ContainerEvent, ContainerHistory};
use k8s_openapi::api::core::v1::Container;
use tokio::time::Instant;

use super::History;
use crate::{pods::is_sidecar, simulated_pod::PodEvent};

pub(super) fn problem(history: &History<'_>) -> Option<String> {
    history.lives.iter().enumerate().find_map(|(index, life)| {
        if history.subject.is_ephemeral(&life.name) {
            return None;
        }
        let Some((place, container)) = history.subject.container(&life.name) else {
            return Some(format!("{} is no container of it", life.name));
        };
        let earlier = &history.lives[..index];
        let earlier = || earlier.iter().copied().filter(|e| e.name == life.name);
        let last = earlier().next_back();
        let again = last
            .and_then(|last| count(history, last, life).or_else(|| unused(history, last, life)));
        again.or_else(|| {
            let started = life.started()?;
            // A container with another image is a different one.
            let mut same = earlier().rev().take_while(|e| e.image == life.image);
            let twice = same.find_map(|e| run_again(history, place, container, e, life));
            twice.or_else(|| too_early(history, place, life, started))
        })
    })
}

/// The restart policy of a container.
enum Policy {
    Always,
    OnFailure,
    Never,
}

fn policy(history: &History<'_>, container: &Container) -> Policy {
    let of_pod = history.subject.spec().restart_policy.as_deref();
    match container.restart_policy.as_deref().or(of_pod) {
        Some("OnFailure") => Policy::OnFailure,
        Some("Never") => Policy::Never,
        _ => Policy::Always,
    }
}

/// A container that ended for good is not run again: a completed job, a container with restart
/// policy `Never`, or an init container that succeeded in the sandbox.
fn run_again(
    history: &History<'_>,
    place: usize,
    container: &Container,
    earlier: &ContainerHistory,
    later: &ContainerHistory,
) -> Option<String> {
    let (begun, again) = (earlier.started()?, later.started()?);
    // A pod that came back starts from the beginning.
    if history
        .subject
        .done(PodEvent::Removed, begun, again)
        .is_some()
    {
        return None;
    }
    let code = earlier.ended().map(|(.., code)| code);
    let initialises = place < history.subject.init_containers() && !is_sidecar(container);
    if initialises && earlier.sandbox_id != later.sandbox_id {
        // The init containers run again in each new sandbox.
        return None;
    }
    let for_good = match policy(history, container) {
        Policy::Always => initialises && code == Some(0),
        Policy::OnFailure => code == Some(0),
        Policy::Never => true,
    };
    for_good.then(|| {
        format!(
            "{} ended with {code:?} as attempt {}, and was started again as attempt {}",
            earlier.name, earlier.attempt, later.attempt
        )
    })
}

/// Each creation increments the attempt, except of init containers in a new sandbox.
fn count(
    history: &History<'_>,
    last: &ContainerHistory,
    next: &ContainerHistory,
) -> Option<String> {
    let (from, to) = (last.events[0].0, next.events[0].0);
    let (place, _) = history.subject.container(&next.name)?;
    let anew = place < history.subject.init_containers() && last.sandbox_id != next.sandbox_id;
    let is_next = next.attempt == last.attempt + 1;
    let is_known = !anew && history.subject.done(PodEvent::Removed, from, to).is_none();
    (is_known && !is_next).then(|| {
        format!(
            "{}: attempt {} after attempt {}",
            next.name, next.attempt, last.attempt
        )
    })
}

/// The kubelet starts each container that it created, unless it never learned of the creation. A
/// failed start counts.
fn unused(
    history: &History<'_>,
    last: &ContainerHistory,
    next: &ContainerHistory,
) -> Option<String> {
    let (from, to) = (last.events[0].0, next.events[0].0);
    let is_used =
        last.has(&ContainerEvent::StartCalled) || !last.has(&ContainerEvent::CreateReturned);
    let is_same = last.sandbox_id == next.sandbox_id && history.is_unbroken(from, to);
    (is_same && !is_used).then(|| {
        format!(
            "attempt {} of {} was created and not started",
            last.attempt, last.name
        )
    })
}

/// Everything that precedes a container in its pod precedes its start: init containers succeeded in
/// the same sandbox, and sidecars were started there and passed their startup probes.
fn too_early(
    history: &History<'_>,
    place: usize,
    life: &ContainerHistory,
    at: Instant,
) -> Option<String> {
    let subject = history.subject;
    let init = subject.spec().init_containers.iter().flatten();
    init.take(place).find_map(|before| {
        let mut runs = history.of(&before.name);
        let is_done = runs.any(|run| {
            run.sandbox_id == life.sandbox_id
                && if is_sidecar(before) {
                    has_started(before, run, at)
                } else {
                    run.ended()
                        .is_some_and(|(ended, _, code)| ended <= at && code == 0)
                }
        });
        (!is_done).then(|| format!("{} was started before {} was done", life.name, before.name))
    })
}

fn has_started(sidecar: &Container, run: &ContainerHistory, by: Instant) -> bool {
    let Some(probe) = &sidecar.startup_probe else {
        return run.started().is_some_and(|started| started <= by);
    };
    let command = probe.exec.as_ref().and_then(|exec| exec.command.clone());
    let found = ContainerEvent::ExecEnded(command.unwrap_or_default(), 0);
    let mut events = run.events.iter();
    events.any(|(at, event)| *at <= by && *event == found)
}
