//! The active deadline of pods (`activeDeadlineSeconds`).

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::PodSpec, apimachinery::pkg::apis::meta::v1::Time};

/// Reason in the status of a pod that exceeded its deadline.
pub const REASON: &str = "DeadlineExceeded";
/// The message with that reason.
pub const MESSAGE: &str = "Pod was active on the node longer than the specified deadline";

/// The time left at `now` for a pod that started at `start`: zero when the deadline has passed,
/// `None` without a deadline or start.
pub fn remaining(spec: &PodSpec, start: Option<&Time>, now: Timestamp) -> Option<Duration> {
    let allowed = u64::try_from(spec.active_deadline_seconds?).unwrap_or_default();
    let active = Duration::try_from(now.duration_since(start?.0)).unwrap_or_default();
    Some(Duration::from_secs(allowed).saturating_sub(active))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_runs_from_the_start_of_the_pod() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let start = Time(at(100));
        let spec = |seconds| PodSpec {
            active_deadline_seconds: seconds,
            ..PodSpec::default()
        };
        let left = |spec: &PodSpec, now| remaining(spec, Some(&start), at(now));
        let second = Duration::from_secs(1);
        assert_eq!(left(&spec(Some(10)), 103), Some(7 * second));
        assert_eq!(left(&spec(Some(10)), 110), Some(Duration::ZERO));
        assert_eq!(left(&spec(Some(10)), 500), Some(Duration::ZERO));
        // The clock was set back.
        assert_eq!(left(&spec(Some(10)), 50), Some(10 * second));
        assert_eq!(left(&spec(None), 500), None);
        assert_eq!(remaining(&spec(Some(10)), None, at(500)), None);
    }
}
