//! What must hold of all that ever happened to the containers of a run, whatever the faults.

mod back_off;
mod endings;
mod probing;
mod starts;

use std::{collections::BTreeMap, ops::Range};

use e2e::fake_runtime::Life;
use tokio::time::Instant;

use crate::{
    driver::Simulation,
    subject::{Deed, Subject},
};

/// What happened to one pod.
struct History<'a> {
    simulation: &'a Simulation,
    subject: &'a Subject,
    /// Its containers, the oldest first.
    lives: Vec<&'a Life>,
}

impl<'a> History<'a> {
    /// The containers of one name, the oldest first.
    fn of(&self, name: &str) -> impl Iterator<Item = &'a Life> {
        let lives = self.lives.iter().copied();
        lives.filter(move |life| life.name == name)
    }

    /// Whether both containers are of one life of the pod, under one kubelet.
    fn is_unbroken(&self, from: Instant, to: Instant) -> bool {
        self.subject.done(Deed::Removed, from, to).is_none() && !self.kubelet_died(from, to)
    }

    /// Whether a kubelet was killed in a time.
    fn kubelet_died(&self, from: Instant, to: Instant) -> bool {
        let mut kills = self.simulation.kills.iter();
        kills.any(|kill| from <= *kill && *kill <= to)
    }

    /// Whether nothing failed or was disturbed in a time, and had not for long.
    fn is_calm(&self, from: Instant, to: Instant) -> bool {
        let contains = |calm: &Range<Instant>| calm.start <= from && to <= calm.end;
        self.simulation.calm.iter().any(contains)
    }
}

/// The first thing that should not have happened.
pub fn problem(simulation: &Simulation) -> Option<String> {
    let lives = simulation.node.runtime.lives();
    let mut by_pod: BTreeMap<&str, Vec<&Life>> = BTreeMap::new();
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
            .or_else(|| endings::problem(&history))
            .or_else(|| back_off::problem(&history))
            .or_else(|| probing::problem(&history))?;
        Some(format!(
            "{}: {problem}; {:#?}; before:\n{}",
            subject.uid,
            history.told(),
            simulation.node.trace.about(&subject.uid)
        ))
    })
}

impl History<'_> {
    /// All of it in order, for people.
    fn told(&self) -> Vec<String> {
        let begun = self.simulation.node.trace.begun();
        let lives = self.lives.iter().map(|life| {
            let events = life.events.iter();
            let events: Vec<String> = events
                .map(|(at, event)| format!("{:?} {event:?}", *at - begun))
                .collect();
            format!(
                "{} attempt {} in {} {}: {}",
                life.name,
                life.attempt,
                &life.sandbox_id[..6],
                life.image,
                events.join(", ")
            )
        });
        let deeds = self.subject.deeds.iter();
        let deeds = deeds.map(|(at, deed)| format!("{:?} {deed:?}", *at - begun));
        let kills = self.simulation.kills.iter();
        let kills = kills.map(|at| format!("{:?} the kubelet is killed", *at - begun));
        lives.chain(deeds).chain(kills).collect()
    }
}
