//! `oom_score_adj` with an engine that may not lower it.
//!
//! Without CAP_SYS_RESOURCE, a process cannot set a score below its own. The engine then fails the
//! start of every container with a lower score, which includes every sandbox (-998). Such a score
//! is raised to the engine's own, with one warning.

use std::{fs, str::FromStr};

use parking_lot::Mutex;
use rustix::process::Pid;

use super::capabilities;
use crate::engine::{Connection, EngineError};

/// The bit of CAP_SYS_RESOURCE in a capability set (`capabilities(7)`).
pub(crate) const CAP_SYS_RESOURCE: u64 = 1 << 24;
/// The assumed score of the engine if it is unknown: the default of a process.
const UNADJUSTED: i64 = 0;

/// When scores are raised: the flag `--clamp-oom-score-adj`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Clamp {
    /// If the engine lacks the capability.
    #[default]
    Auto,
    /// Always, to the score that the engine may set without the capability.
    Always,
    /// Never.
    Never,
}

/// Decides which scores the engine may set.
#[derive(Debug)]
pub struct OomScorePolicy {
    clamp: Clamp,
    /// The lowest score that can be set, once a limit is known.
    floor: Mutex<Option<i64>>,
}

impl FromStr for Clamp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            other => Err(format!("{other:?}; allowed: auto, always, never")),
        }
    }
}

impl OomScorePolicy {
    /// Creates a policy that knows nothing about the engine yet.
    pub fn new(clamp: Clamp) -> Self {
        Self {
            clamp,
            floor: Mutex::new(None),
        }
    }

    /// The score to request from the engine instead of `wanted`.
    pub fn fit(&self, wanted: i64, engine: &Connection) -> i64 {
        if wanted >= 0 || self.clamp == Clamp::Never {
            return wanted;
        }
        let mut floor = self.floor.lock();
        if floor.is_none() {
            *floor = match (self.clamp, engine.pid) {
                (Clamp::Always, pid) => Some(pid.and_then(score).unwrap_or(UNADJUSTED)),
                (_, Some(pid)) if lacks_capability(pid) => Some(score(pid).unwrap_or(UNADJUSTED)),
                _ => None,
            };
            floor.inspect(|floor| warn(*floor));
        }
        floor.map_or(wanted, |floor| wanted.max(floor))
    }

    /// Learns from a failed start. Returns whether the score caused the failure, so that a retry
    /// with another score may succeed.
    pub fn learn(&self, error: &EngineError) -> bool {
        let about_score = error.cause.to_string().contains("oom_score_adj");
        let mut floor = self.floor.lock();
        if !about_score || self.clamp != Clamp::Auto || floor.is_some_and(|f| f >= UNADJUSTED) {
            return false;
        }
        *floor = Some(UNADJUSTED);
        warn(UNADJUSTED);
        true
    }
}

fn warn(floor: i64) {
    tracing::warn!(
        floor,
        "the engine cannot lower oom_score_adj (it lacks CAP_SYS_RESOURCE): lower scores are raised"
    );
}

fn lacks_capability(engine: Pid) -> bool {
    capabilities::effective(engine).is_some_and(|set| set & CAP_SYS_RESOURCE == 0)
}

fn score(pid: Pid) -> Option<i64> {
    let path = format!("/proc/{}/oom_score_adj", pid.as_raw_nonzero());
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Cause;

    fn refused(message: &str) -> EngineError {
        EngineError {
            action: "start container",
            object: "c".into(),
            cause: Cause::Refused {
                status: 500,
                message: message.into(),
            },
        }
    }

    #[test]
    fn a_failed_start_teaches_once_and_only_in_auto() {
        let about = refused("write /proc/self/oom_score_adj: permission denied: unknown");
        let policy = OomScorePolicy::new(Clamp::Auto);
        assert!(!policy.learn(&refused("exec format error")));
        assert!(policy.learn(&about));
        assert!(!policy.learn(&about));
        assert!(!OomScorePolicy::new(Clamp::Never).learn(&about));
    }
}
