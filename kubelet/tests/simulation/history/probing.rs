//! The timing of probes.

use std::time::Duration;

use fake_runtime::{ContainerEvent, ContainerHistory};
use k8s_openapi::api::core::v1::Probe;
use tokio::time::Instant;

use super::History;
use crate::pods;

/// Attempts of a probe that fails or cannot run, as upstream.
const TRIES: usize = 3;

/// One run of a probe.
struct Run<'a> {
    /// Id of the container.
    id: &'a str,
    at: Instant,
    /// The number of attempts.
    tries: usize,
    /// The exit code, if the run took no time.
    found: Option<i32>,
}

pub(super) fn problem(history: &History<'_>) -> Option<String> {
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

/// No probe runs more often than its period, nor less often while nothing delays it.
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
    // A probe follows a slow one immediately, and the next one is on time again.
    runs.windows(3).find_map(|three| {
        let [before, run, next] = three else {
            return None;
        };
        if run.id != next.id || !history.is_unbroken(before.at, next.at) {
            return None;
        }
        let (_, found) = (before.found?, run.found?);
        // A container that is not ready is also probed at each new pod status.
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

/// The runs of a command in one container.
fn runs<'a>(life: &'a ContainerHistory, command: &[String]) -> Vec<Run<'a>> {
    let mut runs: Vec<Run<'_>> = Vec::new();
    for (at, event) in &life.events {
        match event {
            ContainerEvent::ExecCalled(asked) if asked == command => match runs.last_mut() {
                Some(run) if run.at == *at => run.tries += 1,
                _ => runs.push(Run {
                    id: &life.id,
                    at: *at,
                    tries: 1,
                    found: None,
                }),
            },
            ContainerEvent::ExecEnded(ran, code) if ran == command => {
                let run = runs.last_mut().filter(|run| run.at == *at);
                run.into_iter().for_each(|run| run.found = Some(*code));
            }
            _ => {}
        }
    }
    runs
}
