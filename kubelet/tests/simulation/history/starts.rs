//! What is started, how often, and in which order.

use e2e::fake_runtime::{Event, Life};
use k8s_openapi::api::core::v1::Container;
use tokio::time::Instant;

use super::History;
use crate::{pods::is_sidecar, subject::Deed};

pub fn problem(history: &History<'_>) -> Option<String> {
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
            // A container of another image is another one.
            let mut same = earlier().rev().take_while(|e| e.image == life.image);
            let twice = same.find_map(|e| run_again(history, place, container, e, life));
            twice.or_else(|| too_early(history, place, life, started))
        })
    })
}

/// How often a container is started again, as its policy has it.
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

/// What ended for good is not run again: a job that is done, a container that is to run once,
/// and what has initialised the sandbox.
fn run_again(
    history: &History<'_>,
    place: usize,
    container: &Container,
    earlier: &Life,
    later: &Life,
) -> Option<String> {
    let (begun, again) = (earlier.started()?, later.started()?);
    // A pod that came back begins anew.
    if history.subject.done(Deed::Removed, begun, again).is_some() {
        return None;
    }
    let code = earlier.ended().map(|(.., code)| code);
    let initialises = place < history.subject.init_containers() && !is_sidecar(container);
    if initialises && earlier.sandbox_id != later.sandbox_id {
        // Every sandbox is initialised.
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

/// Each creation is one attempt more, of what is not initialised anew.
fn count(history: &History<'_>, last: &Life, next: &Life) -> Option<String> {
    let (from, to) = (last.events[0].0, next.events[0].0);
    let (place, _) = history.subject.container(&next.name)?;
    let anew = place < history.subject.init_containers() && last.sandbox_id != next.sandbox_id;
    let is_next = next.attempt == last.attempt + 1;
    let is_known = !anew && history.subject.done(Deed::Removed, from, to).is_none();
    (is_known && !is_next).then(|| {
        format!(
            "{}: attempt {} after attempt {}",
            next.name, next.attempt, last.attempt
        )
    })
}

/// Nothing is created to be left, unless its start failed or nobody knew of it.
fn unused(history: &History<'_>, last: &Life, next: &Life) -> Option<String> {
    let (from, to) = (last.events[0].0, next.events[0].0);
    let is_used = last.has(&Event::StartAsked) || !last.has(&Event::Told);
    let is_same = last.sandbox_id == next.sandbox_id && history.is_unbroken(from, to);
    (is_same && !is_used).then(|| {
        format!(
            "attempt {} of {} was created and not started",
            last.attempt, last.name
        )
    })
}

/// What comes before a container in its pod comes first: what initialises the pod succeeded
/// in the sandbox, and sidecars began there, and had started as their probes say.
fn too_early(history: &History<'_>, place: usize, life: &Life, at: Instant) -> Option<String> {
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

fn has_started(sidecar: &Container, run: &Life, by: Instant) -> bool {
    let Some(probe) = &sidecar.startup_probe else {
        return run.started().is_some_and(|started| started <= by);
    };
    let command = probe.exec.as_ref().and_then(|exec| exec.command.clone());
    let found = Event::CommandEnded(command.unwrap_or_default(), 0);
    let mut events = run.events.iter();
    events.any(|(at, event)| *at <= by && *event == found)
}
