//! When probes run.

use std::time::Duration;

use e2e::fake_runtime::{Event, Life};
use k8s_openapi::api::core::v1::Probe;
use tokio::time::Instant;

use super::History;
use crate::pods;

/// How often what fails to run is tried at once, as upstream.
const TRIES: usize = 3;

/// One probe that was run.
struct Run<'a> {
    /// Id of the container.
    id: &'a str,
    at: Instant,
    /// How often it was tried.
    tries: usize,
    /// What it found, where it was answered at once.
    found: Option<i32>,
}

pub fn problem(history: &History<'_>) -> Option<String> {
    pods::containers(&history.subject.pod).find_map(|container| {
        [
            (&container.liveness_probe, false),
            (&container.readiness_probe, true),
            (&container.startup_probe, false),
        ]
        .into_iter()
        .find_map(|(probe, is_readiness)| {
            let probe = probe.as_ref()?;
            periods(history, &container.name, probe, is_readiness)
        })
    })
}

/// No probe runs more often than in its period, and none less often while nothing keeps it.
fn periods(history: &History<'_>, name: &str, probe: &Probe, is_readiness: bool) -> Option<String> {
    let command = probe.exec.as_ref()?.command.clone()?;
    let period = Duration::from_secs(probe.period_seconds?.unsigned_abs().into());
    // One worker probes all containers of a name, one after the other.
    let runs: Vec<Run<'_>> = history
        .of(name)
        .flat_map(|life| runs(life, &command))
        .collect();
    if let Some(run) = runs.iter().find(|run| run.tries > TRIES && !is_readiness) {
        return Some(format!(
            "{command:?} was tried {} times in {name}",
            run.tries
        ));
    }
    // What took its time is followed by a probe at once, and that by one in time again.
    runs.windows(3).find_map(|three| {
        let [before, run, next] = three else {
            return None;
        };
        if run.id != next.id || !history.is_unbroken(before.at, next.at) {
            return None;
        }
        let (_, found) = (before.found?, run.found?);
        // What is not ready yet is looked at whenever its pod is.
        let is_early = next.at - run.at < period && !(is_readiness && found != 0);
        let due = run.at + period;
        let is_late = next.at > due && history.is_calm(before.at, due);
        (is_early || is_late).then(|| {
            format!(
                "{command:?} ran in {name} {:?} after the last time; its period is {period:?}",
                next.at - run.at
            )
        })
    })
}

/// The probes of one container with a command.
fn runs<'a>(life: &'a Life, command: &[String]) -> Vec<Run<'a>> {
    let mut runs: Vec<Run<'_>> = Vec::new();
    for (at, event) in &life.events {
        match event {
            Event::CommandAsked(asked) if asked == command => match runs.last_mut() {
                Some(run) if run.at == *at => run.tries += 1,
                _ => runs.push(Run {
                    id: &life.id,
                    at: *at,
                    tries: 1,
                    found: None,
                }),
            },
            Event::CommandEnded(ran, code) if ran == command => {
                let run = runs.last_mut().filter(|run| run.at == *at);
                run.into_iter().for_each(|run| run.found = Some(*code));
            }
            _ => {}
        }
    }
    runs
}
