//! The order in which the containers of a pod are stopped: sidecars after the containers that they
//! serve, in reverse order of their start.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::core::v1::PodSpec;
use kubelet_pod_spec::restart_rules::is_sidecar;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The termination order of one pod.
#[derive(Debug)]
pub(super) struct TerminationOrder {
    /// The containers that are still running.
    running: Mutex<BTreeSet<String>>,
    ended: Notify,
    /// For each sidecar, the containers that must end first.
    before: BTreeMap<String, Vec<String>>,
}

impl TerminationOrder {
    /// The order of the containers in `running`; `None` if the pod has no sidecars.
    pub(super) fn new<'a>(spec: &PodSpec, running: impl Iterator<Item = &'a str>) -> Option<Self> {
        let init = spec.init_containers.iter().flatten();
        let sidecars: Vec<&str> = init
            .filter(|container| is_sidecar(container))
            .map(|container| container.name.as_str())
            .collect();
        if sidecars.is_empty() {
            return None;
        }
        let mut before = BTreeMap::new();
        let mut names: Vec<String> = spec.containers.iter().map(|c| c.name.clone()).collect();
        for sidecar in sidecars.into_iter().rev() {
            before.insert(sidecar.to_owned(), names.clone());
            names.push(sidecar.to_owned());
        }
        Some(Self {
            running: Mutex::new(running.map(str::to_owned).collect()),
            ended: Notify::new(),
            before,
        })
    }

    /// Waits until the container may be stopped, at most for `limit`.
    pub(super) async fn wait_for_turn(&self, name: &str, limit: Duration) {
        let Some(before) = self.before.get(name) else {
            return;
        };
        let all = async {
            loop {
                // Registered before the check, so that no later notification is missed.
                let ended = self.ended.notified();
                let running = self.running.lock().clone();
                if !before.iter().any(|name| running.contains(name)) {
                    return;
                }
                ended.await;
            }
        };
        // After a timeout, the container is stopped anyway.
        let _ = tokio::time::timeout(limit, all).await;
    }

    /// Records that the container has ended.
    pub(super) fn ended(&self, name: &str) {
        self.running.lock().remove(name);
        self.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Container;
    use tokio::time::Instant;

    use super::*;

    fn spec() -> PodSpec {
        let named = |name: &str, policy: Option<&str>| Container {
            name: name.to_owned(),
            restart_policy: policy.map(str::to_owned),
            ..Container::default()
        };
        PodSpec {
            init_containers: Some(vec![
                named("s1", Some("Always")),
                named("i", None),
                named("s2", Some("Always")),
            ]),
            containers: vec![named("a", None), named("b", None)],
            ..PodSpec::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sidecars_wait_for_containers_and_later_sidecars() {
        let second = Duration::from_secs(1);
        // `b` is not running, so no sidecar waits for it.
        let order = TerminationOrder::new(&spec(), ["a", "s1", "s2"].into_iter()).unwrap();
        let begun = Instant::now();
        let ends = async |name: &'static str, takes: Duration| {
            order.wait_for_turn(name, 30 * second).await;
            let waited = begun.elapsed();
            tokio::time::sleep(takes).await;
            order.ended(name);
            waited
        };
        let waited = tokio::join!(
            ends("s1", second),
            ends("s2", 2 * second),
            ends("a", 5 * second)
        );
        assert_eq!(waited, (7 * second, 5 * second, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_longer_than_the_limit() {
        let order = TerminationOrder::new(&spec(), ["a", "s1"].into_iter()).unwrap();
        let begun = Instant::now();
        let limit = Duration::from_secs(3);
        order.wait_for_turn("s1", limit).await;
        assert_eq!(begun.elapsed(), limit);
    }
}
