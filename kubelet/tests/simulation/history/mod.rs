//! Invariants of the containers' history, which hold despite all faults.

mod back_off;
mod probing;
mod starts;
mod terminations;

use std::{collections::BTreeMap, fmt::Write as _, ops::Range, time::Duration};

use fake_runtime::ContainerHistory;
use tokio::time::Instant;

use crate::{
    driver::Simulation,
    simulated_pod::{PodEvent, SimulatedPod},
};

/// The longest time that the runtime may seem down after it began to fail all calls: its status is
/// read every five seconds, and fails eight times at most.
const OUTAGE: Duration = Duration::from_secs(120);

/// The history of one pod.
struct History<'a> {
    simulation: &'a Simulation,
    subject: &'a SimulatedPod,
    /// Its containers, oldest first.
    lives: Vec<&'a ContainerHistory>,
}

impl<'a> History<'a> {
    /// The containers of one name, oldest first.
    fn of(&self, name: &str) -> impl Iterator<Item = &'a ContainerHistory> {
        let lives = self.lives.iter().copied();
        lives.filter(move |life| life.name == name)
    }

    /// Whether the pod was not removed and no kubelet was killed in a period.
    fn is_unbroken(&self, from: Instant, to: Instant) -> bool {
        self.subject.done(PodEvent::Removed, from, to).is_none() && !self.kubelet_died(from, to)
    }

    /// Whether a kubelet was killed in a period.
    fn kubelet_died(&self, from: Instant, to: Instant) -> bool {
        let mut kills = self.simulation.kills.iter();
        kills.any(|kill| from <= *kill && *kill <= to)
    }

    /// Whether the kubelet may have received no updates at a time: it accepts none while its
    /// runtime seems down, which it notices only after 30 s, and receives none from an API server
    /// that fails.
    fn is_unheard(&self, at: Instant) -> bool {
        let cluster = self.simulation.node.cluster.as_ref();
        let fails = cluster.is_some_and(|c| c.well_since.is_none_or(|since| at < since));
        let mut outages = self.simulation.outages.iter();
        fails || outages.any(|outage| *outage <= at && at <= *outage + OUTAGE)
    }

    /// Whether a period was calm: no fault or disturbance, and recovery from earlier ones complete.
    fn is_calm(&self, from: Instant, to: Instant) -> bool {
        let contains = |calm: &Range<Instant>| calm.start <= from && to <= calm.end;
        self.simulation.calm.iter().any(contains)
    }
}

/// The first violation of an invariant.
pub(crate) fn problem(simulation: &Simulation) -> Option<String> {
    let lives = simulation.node.runtime.histories();
    let mut by_pod: BTreeMap<&str, Vec<&ContainerHistory>> = BTreeMap::new();
    for life in &lives {
        by_pod.entry(&life.pod_uid).or_default().push(life);
    }
    simulation.subjects.iter().find_map(|subject| {
        let history = History {
            simulation,
            subject,
            lives: by_pod.remove(subject.uid.as_str()).unwrap_or_default(),
        };
        let problem = starts::problem(&history)
            .or_else(|| terminations::problem(&history))
            .or_else(|| back_off::problem(&history))
            .or_else(|| probing::problem(&history))?;
        let told = describe(simulation, subject);
        Some(format!("{}: {problem}; before:\n{told}", subject.uid))
    })
}

/// The history of a pod, for people.
pub(crate) fn describe(simulation: &Simulation, subject: &SimulatedPod) -> String {
    let begun = simulation.node.trace.begun();
    let mut told = simulation.node.trace.about(&subject.uid);
    let lives = simulation.node.runtime.histories().into_iter();
    for life in lives.filter(|life| life.pod_uid == subject.uid) {
        let _ = write!(
            told,
            "{} attempt {} in {} of {}:",
            life.name,
            life.attempt,
            &life.sandbox_id[..6],
            life.image
        );
        for (at, event) in &life.events {
            let _ = write!(told, " {:?} {event:?}", *at - begun);
        }
        told.push('\n');
    }
    for kill in &simulation.kills {
        let _ = writeln!(told, "{:?} the kubelet is killed", *kill - begun);
    }
    told
}
