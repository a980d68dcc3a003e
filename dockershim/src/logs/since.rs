//! A place in the stream of entries that the engine's API gives.
//!
//! The API gives entries from a whole second on, and the clocks of a container's two
//! streams may run past each other by a little. So a place is a second and how many of the
//! entries since then were taken; the second is always one that is over.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Entries of one second.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Second {
    taken: u64,
    /// The time of the first that came, in nanoseconds since 1970.
    first: Option<i128>,
}

/// Which entries were taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Since {
    /// The API is to be asked from here on, in seconds since 1970; 0: from the beginning.
    second: i64,
    /// The entries of that second, and those of the next.
    of: [Second; 2],
}

/// What is given again after a break, and is known.
#[derive(Debug)]
pub(super) struct Replay {
    left: u64,
    first: [Option<i128>; 2],
    /// What was given again until now.
    given: Since,
}

/// What an entry is after a break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// It was taken before.
    Yes,
    /// It was not.
    No,
    /// What was taken before is not given again: the engine has removed it, and maybe more.
    Lost,
}

impl Since {
    pub(super) fn second(&self) -> i64 {
        self.second
    }

    /// An entry of this time was taken.
    pub(super) fn take(&mut self, time: Timestamp) {
        let second = time.as_second();
        match second - self.second {
            // The clock was set back, or ran past the other stream's by more than that.
            ..0 => return,
            0 | 1 => {}
            2 => {
                self.of = [std::mem::take(&mut self.of[1]), Second::default()];
                self.second += 1;
            }
            _ => *self = Self::new(second - 1),
        }
        let of = &mut self.of[usize::from(second > self.second)];
        of.taken += 1;
        of.first.get_or_insert(time.as_nanosecond());
    }

    fn new(second: i64) -> Self {
        Self {
            second,
            of: Default::default(),
        }
    }

    fn taken(&self) -> u64 {
        self.of.iter().map(|second| second.taken).sum()
    }

    /// What the API will give that was taken before.
    pub(super) fn replay(&self) -> Replay {
        let [this, next] = &self.of;
        Replay {
            left: self.taken(),
            first: [this.first, next.first],
            given: Self::new(self.second),
        }
    }
}

impl Replay {
    /// Whether the next entry, of this time, was taken before.
    pub(super) fn knows(&mut self, time: Timestamp) -> Known {
        if self.left == 0 {
            return Known::No;
        }
        if time.as_second() < self.given.second {
            return Known::Yes;
        }
        let is_first = self.given.taken() == 0;
        if is_first && !self.first.contains(&Some(time.as_nanosecond())) {
            return Known::Lost;
        }
        self.given.take(time);
        self.left -= 1;
        Known::Yes
    }

    /// Where the engine has less than was taken: what it has. That is where its own log
    /// was cut, and what comes is counted from there.
    pub(super) fn give_up(&mut self) -> Option<Since> {
        (std::mem::take(&mut self.left) > 0).then(|| self.given.clone())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + millis).unwrap()
    }

    /// What the engine gives from a second on: newer ones look for the first entry of it
    /// and give all after that, older ones look at each.
    fn given(entries: &[Timestamp], second: i64, each: bool) -> Vec<Timestamp> {
        let is_old = |time: &&Timestamp| time.as_second() < second;
        if each {
            return entries.iter().filter(|t| !is_old(t)).copied().collect();
        }
        entries.iter().skip_while(is_old).copied().collect()
    }

    proptest! {
        #[test]
        fn every_entry_is_taken_once_whatever_breaks(
            steps in prop::collection::vec((0_i64..3000, 0_i64..900, any::<bool>()), 1..60),
            each: bool,
        ) {
            let mut clock = 0;
            let mut times = Vec::new();
            for (step, back, _) in &steps {
                clock += step / 2;
                times.push(at(clock - back));
            }
            let (mut since, mut taken) = (Since::default(), Vec::new());
            let mut there = 0;
            for (n, (.., breaks)) in steps.iter().enumerate() {
                if !breaks && n + 1 < steps.len() {
                    continue;
                }
                there = there.max(n + 1);
                let mut replay = since.replay();
                for time in given(&times[..there], since.second(), each) {
                    match replay.knows(time) {
                        Known::Yes => {}
                        Known::No => {
                            taken.push(time);
                            since.take(time);
                        }
                        Known::Lost => prop_assert!(false, "nothing was lost"),
                    }
                }
                prop_assert_eq!(replay.give_up(), None);
            }
            prop_assert_eq!(taken, times);
        }
    }

    #[test]
    fn what_the_engine_removed_is_noticed() {
        let mut since = Since::default();
        for millis in [0, 10, 20] {
            since.take(at(millis));
        }
        let mut replay = since.replay();
        assert_eq!(replay.knows(at(10)), Known::Lost);
        let mut since = replay.give_up().unwrap();
        assert_eq!(replay.knows(at(20)), Known::No);
        since.take(at(10));
        since.take(at(20));
        let mut replay = since.replay();
        assert_eq!(replay.knows(at(10)), Known::Yes);
        assert_eq!(replay.give_up().unwrap().taken(), 1);
    }
}
