//! `usageNanoCores`: the CPU usage in billionths of a core, averaged between two reads of a
//! counter. Reads happen only on request, never by a timer.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// The minimum interval; rates over shorter intervals are mostly noise.
const LEAST: Duration = Duration::from_secs(1);

/// The last reads of the CPU counters of cgroups, by a name of the caller.
#[derive(Debug, Default)]
pub struct CpuRates {
    known: Mutex<HashMap<Arc<str>, Rate>>,
}

#[derive(Debug, Clone, Copy)]
struct Rate {
    at: Instant,
    /// The CPU time used so far, in nanoseconds.
    used: u64,
    nano_cores: Option<u64>,
}

impl CpuRates {
    /// Records that `id` had used `used` nanoseconds of CPU time at `at`, and returns its rate;
    /// `None` before the second read.
    pub fn observe(&self, id: &str, at: Instant, used: u64) -> Option<u64> {
        let mut known = self.known.lock();
        let Some(rate) = known.get_mut(id) else {
            let nano_cores = None;
            known.insert(
                id.into(),
                Rate {
                    at,
                    used,
                    nano_cores,
                },
            );
            return None;
        };
        // A smaller value means that the counter is from a new run.
        let Some(more) = used.checked_sub(rate.used) else {
            let nano_cores = None;
            *rate = Rate {
                at,
                used,
                nano_cores,
            };
            return None;
        };
        let elapsed = at.saturating_duration_since(rate.at);
        if elapsed >= LEAST {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "not negative, and far below the limit of an u64"
            )]
            let nano_cores = (more as f64 / elapsed.as_secs_f64()) as u64;
            *rate = Rate {
                at,
                used,
                nano_cores: Some(nano_cores),
            };
        }
        rate.nano_cores
    }

    /// Removes all entries that are not to `keep`.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.known.lock().retain(|id, _| keep(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_over_a_second_at_least() {
        let rates = CpuRates::default();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let second = 1_000_000_000;
        assert_eq!(rates.observe("a", at(0), 5 * second), None);
        assert_eq!(rates.observe("a", at(500), 6 * second), None);
        // 3 s of CPU time in 2 s, counted from the first read, not the intermediate one.
        assert_eq!(
            rates.observe("a", at(2000), 8 * second),
            Some(1_500_000_000)
        );
        assert_eq!(
            rates.observe("a", at(2100), 9 * second),
            Some(1_500_000_000)
        );
        assert_eq!(rates.observe("a", at(4000), 8 * second), Some(0));
        assert_eq!(rates.observe("b", at(4000), 8 * second), None);
    }

    #[test]
    fn another_run_begins_anew() {
        let rates = CpuRates::default();
        let start = Instant::now();
        rates.observe("a", start, 100);
        let later = start + Duration::from_secs(2);
        assert_eq!(rates.observe("a", later, 50), None);
        let later = later + Duration::from_secs(1);
        assert_eq!(rates.observe("a", later, 60), Some(10));
        rates.retain(|id| id != "a");
        assert_eq!(rates.observe("a", later, 60), None);
    }
}
