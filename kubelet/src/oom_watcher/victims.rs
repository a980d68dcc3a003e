//! The containers whose processes were killed.

use std::collections::VecDeque;

/// How many containers are remembered.
const VICTIMS: usize = 512;

/// The containers that lost a process last, the newest first.
#[derive(Debug, Default)]
pub(super) struct Victims(VecDeque<Victim>);

#[derive(Debug)]
struct Victim {
    container_id: Box<str>,
    /// The start of the run that ended with the kill, once it is known. With Docker, an ended
    /// container may be started again.
    started_at: Option<i64>,
}

impl Victims {
    /// A process of the container was killed.
    pub(super) fn add(&mut self, container_id: &str) {
        self.0
            .retain(|victim| &*victim.container_id != container_id);
        self.0.truncate(VICTIMS - 1);
        self.0.push_front(Victim {
            container_id: container_id.into(),
            started_at: None,
        });
    }

    /// Whether a process of the container was killed in the run from `started_at` on, which has
    /// ended. The first run that this is asked about is the one with the kill.
    pub(super) fn has(&mut self, container_id: &str, started_at: i64) -> bool {
        let mut victims = self.0.iter_mut();
        let victim = victims.find(|victim| &*victim.container_id == container_id);
        victim.is_some_and(|victim| *victim.started_at.get_or_insert(started_at) == started_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_victims_are_remembered() {
        let mut victims = Victims::default();
        victims.add("first");
        for id in 2..VICTIMS {
            victims.add("noisy");
            victims.add(&id.to_string());
        }
        assert!(victims.has("first", 1));
        victims.add("last");
        let remembered = ["first", "noisy", "2", "last"].map(|id| victims.has(id, 1));
        assert_eq!(remembered, [false, true, true, true]);
    }

    #[test]
    fn a_kill_counts_for_one_run() {
        let mut victims = Victims::default();
        victims.add("a");
        let ended = [1, 1, 2, 1].map(|started_at| victims.has("a", started_at));
        assert_eq!(ended, [true, true, false, true]);
        victims.add("a");
        assert!(victims.has("a", 2));
        assert!(!victims.has("b", 2));
    }
}
