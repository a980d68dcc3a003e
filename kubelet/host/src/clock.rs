//! Wall-clock time for display, derived from tokio's clock.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::time::Instant;

use crate::repeatable;

/// The wall-clock time, shifted by the lead of tokio's clock over the system's monotonic
/// clock: zero in a running kubelet, and the skipped time in a test with paused time.
///
/// Do not schedule by it: a wall clock jumps.
#[expect(
    clippy::disallowed_methods,
    reason = "the place where the clocks of the system are read"
)]
pub fn now() -> Timestamp {
    let tokio = Instant::now();
    if let Some(time) = repeatable::time_of_day(tokio) {
        return time;
    }
    let tokio = tokio.into_std();
    let system = std::time::Instant::now();
    let wall = Timestamp::now();
    let shifted = if tokio >= system {
        wall.checked_add(tokio - system)
    } else {
        wall.checked_sub(system - tokio)
    };
    shifted.unwrap_or(wall)
}

/// The current time in whole seconds, as the API writes it.
pub fn now_time() -> Time {
    let now = now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// Converts CRI's nanoseconds since the epoch; `None` for zero, which CRI uses for "has not
/// happened".
pub fn from_nanos(nanos: i64) -> Option<Time> {
    if nanos <= 0 {
        return None;
    }
    let at = Timestamp::from_nanosecond(i128::from(nanos)).ok()?;
    Timestamp::from_second(at.as_second()).ok().map(Time)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn follows_skipped_time() {
        let before = now();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let seconds = now().duration_since(before).as_secs();
        assert!((3599..=3601).contains(&seconds), "{seconds} s");
    }

    #[test]
    fn zero_has_not_happened() {
        assert_eq!(from_nanos(0), None);
        let time = from_nanos(1_500_000_000).map(|time| time.0.as_second());
        assert_eq!(time, Some(1));
    }
}
