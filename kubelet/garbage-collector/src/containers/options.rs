//! How many dead containers are kept.

use std::time::Duration;

/// How many dead containers are kept, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerGcOptions {
    /// How long a container stays after its creation (`--minimum-container-ttl-duration`).
    pub min_age: Duration,
    /// Dead containers kept for each container of a pod; any number if negative
    /// (`--maximum-dead-containers-per-container`).
    pub max_per_pod_container: i32,
    /// Dead containers kept on the node; any number if negative (`--maximum-dead-containers`).
    pub max_containers: i32,
}

impl Default for ContainerGcOptions {
    /// Upstream's defaults.
    fn default() -> Self {
        Self {
            min_age: Duration::ZERO,
            max_per_pod_container: 1,
            max_containers: -1,
        }
    }
}

impl ContainerGcOptions {
    /// The number kept of each container.
    pub(super) fn per_container(&self) -> Option<usize> {
        usize::try_from(self.max_per_pod_container).ok()
    }

    /// The number kept in total.
    pub(super) fn total(&self) -> Option<usize> {
        usize::try_from(self.max_containers).ok()
    }
}
