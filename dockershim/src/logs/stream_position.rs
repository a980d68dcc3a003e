//! A position in the stream of entries from the engine's API.
//!
//! The API returns entries from a whole second on, and the timestamps of a container's two streams
//! may be slightly out of order. So a position is a second and the number of entries since then
//! that were taken; the second is always in the past.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The entries of one second.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Second {
    taken: u64,
    /// The timestamp of the first entry, in nanoseconds since 1970.
    first: Option<i64>,
}

/// The entries that were taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StreamPosition {
    /// The second from which to request entries, since 1970; 0 means from the beginning.
    second: i64,
    /// The entries of that second and of the next.
    of: [Second; 2],
}

/// The entries that the API repeats after an interruption.
#[derive(Debug)]
pub(super) struct Replay {
    left: u64,
    first: [Option<i64>; 2],
    /// The entries that were repeated so far.
    given: StreamPosition,
}

/// Whether an entry was taken before an interruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplayMatch {
    /// It was taken.
    Taken,
    /// It was not taken.
    New,
    /// Entries that were taken are not repeated: the engine has removed them, and possibly more.
    Lost,
}

/// Nanoseconds since 1970; sufficient until the year 2262.
fn nanoseconds(time: Timestamp) -> i64 {
    i64::try_from(time.as_nanosecond()).unwrap_or(i64::MAX)
}

impl StreamPosition {
    pub(super) fn second(&self) -> i64 {
        self.second
    }

    /// Records that an entry with this timestamp was taken.
    pub(super) fn take(&mut self, time: Timestamp) {
        let second = time.as_second();
        match second - self.second {
            // The clock was set back, or the two streams' timestamps differ by more than a second.
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
        of.first.get_or_insert(nanoseconds(time));
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

    /// The entries that the API will repeat.
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
    /// Whether the next entry, with this timestamp, was taken before.
    pub(super) fn classify(&mut self, time: Timestamp) -> ReplayMatch {
        if self.left == 0 {
            return ReplayMatch::New;
        }
        if time.as_second() < self.given.second {
            return ReplayMatch::Taken;
        }
        let is_first = self.given.taken() == 0;
        if is_first && !self.first.contains(&Some(nanoseconds(time))) {
            return ReplayMatch::Lost;
        }
        self.given.take(time);
        self.left -= 1;
        ReplayMatch::Taken
    }

    /// If the engine has fewer entries than were taken, the position after those that it has. Its
    /// log was truncated there, and new entries are counted from there.
    pub(super) fn give_up(&mut self) -> Option<StreamPosition> {
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

    /// The entries that the engine returns from a second on. Newer engines search for the first
    /// entry and return everything after it; older engines check each entry.
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
            let (mut since, mut taken) = (StreamPosition::default(), Vec::new());
            let mut there = 0;
            for (n, (.., breaks)) in steps.iter().enumerate() {
                if !breaks && n + 1 < steps.len() {
                    continue;
                }
                there = there.max(n + 1);
                let mut replay = since.replay();
                for time in given(&times[..there], since.second(), each) {
                    match replay.classify(time) {
                        ReplayMatch::Taken => {}
                        ReplayMatch::New => {
                            taken.push(time);
                            since.take(time);
                        }
                        ReplayMatch::Lost => prop_assert!(false, "nothing was lost"),
                    }
                }
                prop_assert_eq!(replay.give_up(), None);
            }
            prop_assert_eq!(taken, times);
        }
    }

    #[test]
    fn what_the_engine_removed_is_noticed() {
        let mut since = StreamPosition::default();
        for millis in [0, 10, 20] {
            since.take(at(millis));
        }
        let mut replay = since.replay();
        assert_eq!(replay.classify(at(10)), ReplayMatch::Lost);
        let mut since = replay.give_up().unwrap();
        assert_eq!(replay.classify(at(20)), ReplayMatch::New);
        since.take(at(10));
        since.take(at(20));
        let mut replay = since.replay();
        assert_eq!(replay.classify(at(10)), ReplayMatch::Taken);
        assert_eq!(replay.give_up().unwrap().taken(), 1);
    }
}
