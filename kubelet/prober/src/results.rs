//! The latest result of every probe by container ID. Workers write them; restarts and readiness
//! depend on them.

use std::{collections::HashMap, fmt};

use parking_lot::Mutex;

/// The purpose of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeType {
    /// A container that fails is restarted.
    Liveness,
    /// A container that fails receives no traffic.
    Readiness,
    /// Other probes wait until it succeeds; a container that fails is restarted.
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

/// The result of a probe after applying thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// The container passed.
    Success,
    /// The container failed.
    Failure,
    /// The container has not been probed yet.
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

/// The latest results.
#[derive(Debug, Default)]
pub struct ProbeResults(Mutex<HashMap<(String, ProbeType), ProbeResult>>);

impl ProbeResults {
    /// The latest result for a container; `None` if no worker probes it.
    pub fn get(&self, container_id: &str, probe: ProbeType) -> Option<ProbeResult> {
        // A lookup by a borrowed pair would need a type of its own.
        let key = (container_id.to_owned(), probe);
        self.0.lock().get(&key).copied()
    }

    /// Stores a result; returns whether it differs from the previous one.
    pub fn set(&self, container_id: &str, probe: ProbeType, result: ProbeResult) -> bool {
        let key = (container_id.to_owned(), probe);
        self.0.lock().insert(key, result) != Some(result)
    }

    /// Removes the result of one probe.
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
