//! The last result of every probe, by container id: written by the probes' workers,
//! read by those who decide on restarts and readiness.

use std::{collections::HashMap, fmt};

use parking_lot::Mutex;

/// What a probe is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeType {
    /// A container that fails it is restarted.
    Liveness,
    /// A container that fails it gets no traffic.
    Readiness,
    /// Until it succeeds, the other probes wait; a container that fails it is restarted.
    Startup,
}

impl fmt::Display for ProbeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
            Self::Startup => "Startup",
        })
    }
}

/// What a probe found, thresholds applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// The container is as it should be.
    Success,
    /// It is not.
    Failure,
    /// It was not probed yet.
    Unknown,
}

impl fmt::Display for ProbeResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Unknown => "unknown",
        })
    }
}

/// The last results.
#[derive(Debug, Default)]
pub struct ProbeResults(Mutex<HashMap<(String, ProbeType), ProbeResult>>);

impl ProbeResults {
    /// The last result for a container; `None` when no worker probes it.
    pub fn get(&self, container_id: &str, probe: ProbeType) -> Option<ProbeResult> {
        // A lookup by a borrowed pair is not worth a type of its own.
        let key = (container_id.to_owned(), probe);
        self.0.lock().get(&key).copied()
    }

    /// Notes a result; whether it is another one than the last.
    pub fn set(&self, container_id: &str, probe: ProbeType, result: ProbeResult) -> bool {
        let key = (container_id.to_owned(), probe);
        self.0.lock().insert(key, result) != Some(result)
    }

    /// Forgets the result of one probe.
    pub fn remove(&self, container_id: &str, probe: ProbeType) {
        self.0.lock().remove(&(container_id.to_owned(), probe));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_result_is_a_change() {
        let results = ProbeResults::default();
        assert_eq!(results.get("c", ProbeType::Liveness), None);
        assert!(results.set("c", ProbeType::Liveness, ProbeResult::Success));
        assert!(!results.set("c", ProbeType::Liveness, ProbeResult::Success));
        assert!(results.set("c", ProbeType::Liveness, ProbeResult::Failure));
        assert_eq!(results.get("c", ProbeType::Readiness), None);
        results.remove("c", ProbeType::Liveness);
        assert_eq!(results.get("c", ProbeType::Liveness), None);
    }
}
