//! Sets `started` and `ready` of containers from their probe results.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodStatus};
use kubelet_pod_spec::restart_rules;
use kubelet_prober::results::{ProbeResult, ProbeResults, ProbeType};

use super::conditions;

/// A container that started at least this long before the kubelet was started by an earlier one.
const RESTART_GRACE: SignedDuration = SignedDuration::from_secs(10);

/// The inputs of readiness, apart from the container.
#[derive(Clone, Copy, Debug)]
pub(super) struct Readiness<'a> {
    pub(super) probes: &'a ProbeResults,
    /// Start time of this kubelet.
    pub(super) begun: Timestamp,
    /// The node controller had given the node up before this kubelet.
    pub(super) was_given_up: bool,
    /// The pod's status at its source, which an earlier kubelet may have reported.
    pub(super) of_source: Option<&'a PodStatus>,
}

/// The kind of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One of `spec.containers`.
    Regular,
    /// One of `spec.initContainers`.
    Init,
}

impl Readiness<'_> {
    /// Sets `started` and `ready`. `had_started` is the last reported value of `started`.
    pub(super) fn set(
        &self,
        status: &mut ContainerStatus,
        container: &Container,
        kind: Kind,
        had_started: bool,
    ) {
        let started = self.has_started(status, container, had_started);
        status.started = Some(started);
        status.ready = if kind == Kind::Init && !restart_rules::is_sidecar(container) {
            let terminated = status.state.as_ref().and_then(|s| s.terminated.as_ref());
            terminated.is_some_and(|terminated| terminated.exit_code == 0)
        } else {
            started && self.is_ready(status, container)
        };
    }

    fn has_started(
        &self,
        status: &ContainerStatus,
        container: &Container,
        had_started: bool,
    ) -> bool {
        let running = status.state.as_ref().is_some_and(|s| s.running.is_some());
        if !running || container.startup_probe.is_none() {
            return running;
        }
        match self.probes.get(runtime_id(status), ProbeType::Startup) {
            Some(result) => result == ProbeResult::Success,
            None => had_started,
        }
    }

    fn is_ready(&self, status: &ContainerStatus, container: &Container) -> bool {
        if container.readiness_probe.is_none() {
            return true;
        }
        match self.probes.get(runtime_id(status), ProbeType::Readiness) {
            Some(result) => result == ProbeResult::Success,
            // Probed by an earlier kubelet.
            None => self.was_ready(status) && self.is_older(status),
        }
    }

    /// Whether the pod was ready, or at least this container: other containers or a readiness gate
    /// may have kept the pod from it. The node controller makes the pods of a node that it gives up
    /// unready, where they are not yet; the containers of both must be probed first.
    fn was_ready(&self, status: &ContainerStatus) -> bool {
        let Some(earlier) = self.of_source else {
            return false;
        };
        let condition = |kind| {
            let mut all = earlier.conditions.iter().flatten();
            all.find(|one| one.type_ == kind)
        };
        let is_true = |kind| condition(kind).is_some_and(|one| one.status == "True");
        if is_true(conditions::READY) {
            return true;
        }
        if self.was_given_up {
            return false;
        }
        // An earlier kubelet may have been started and killed since.
        let reason = condition(conditions::READY).and_then(|one| one.reason.as_deref());
        if is_true(conditions::CONTAINERS_READY) && reason != Some(conditions::GATES_NOT_READY) {
            return false;
        }
        let statuses = [
            &earlier.container_statuses,
            &earlier.init_container_statuses,
        ];
        let mut containers = statuses.into_iter().flatten().flatten();
        containers.any(|one| {
            one.ready && one.container_id.is_some() && one.container_id == status.container_id
        })
    }

    fn is_older(&self, status: &ContainerStatus) -> bool {
        let running = status.state.as_ref().and_then(|s| s.running.as_ref());
        let started = running.and_then(|running| running.started_at.as_ref());
        let limit = self.begun.checked_sub(RESTART_GRACE).ok();
        started.zip(limit).is_some_and(|(at, limit)| at.0 < limit)
    }
}

/// The container ID in the runtime, without the `<runtime>://` prefix.
fn runtime_id(status: &ContainerStatus) -> &str {
    let id = status.container_id.as_deref().unwrap_or_default();
    id.split_once("://").map_or(id, |(_, id)| id)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::core::v1::{
            ContainerState, ContainerStateRunning, ContainerStateTerminated, PodCondition, Probe,
        },
        apimachinery::pkg::apis::meta::v1::Time,
    };

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn running(started_at: i64) -> ContainerStatus {
        ContainerStatus {
            container_id: Some("fake://id".to_owned()),
            state: Some(ContainerState {
                running: Some(ContainerStateRunning {
                    started_at: Some(Time(at(started_at))),
                }),
                ..ContainerState::default()
            }),
            ..ContainerStatus::default()
        }
    }

    fn probed(startup: bool, readiness: bool) -> Container {
        Container {
            startup_probe: startup.then(Probe::default),
            readiness_probe: readiness.then(Probe::default),
            ..Container::default()
        }
    }

    /// A status with one container that is ready, and with the values of `Ready` and
    /// `ContainersReady`.
    fn earlier(container_id: &str, ready: (&str, Option<&str>), containers: &str) -> PodStatus {
        let condition = |kind: &str, status: &str, reason: Option<&str>| PodCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.map(str::to_owned),
            ..PodCondition::default()
        };
        PodStatus {
            conditions: Some(vec![
                condition("Ready", ready.0, ready.1),
                condition("ContainersReady", containers, None),
            ]),
            container_statuses: Some(vec![ContainerStatus {
                container_id: Some(container_id.to_owned()),
                ready: true,
                ..ContainerStatus::default()
            }]),
            ..PodStatus::default()
        }
    }

    #[test]
    fn probes_decide_where_there_are_any() {
        use ProbeResult::{Failure, Success, Unknown};
        for (startup, readiness, had_started, expected) in [
            (None, None, false, (true, true)),
            (Some(None), None, false, (false, false)),
            (Some(None), None, true, (true, true)),
            (Some(Some(Unknown)), None, true, (false, false)),
            (Some(Some(Success)), None, false, (true, true)),
            (None, Some(None), false, (true, false)),
            (None, Some(Some(Failure)), false, (true, false)),
            (None, Some(Some(Success)), false, (true, true)),
            (
                Some(Some(Failure)),
                Some(Some(Success)),
                false,
                (false, false),
            ),
        ] {
            let probes = ProbeResults::default();
            let set = |kind, result: Option<Option<ProbeResult>>| {
                if let Some(Some(result)) = result {
                    probes.set("id", kind, result);
                }
            };
            set(ProbeType::Startup, startup);
            set(ProbeType::Readiness, readiness);
            let container = probed(startup.is_some(), readiness.is_some());
            let mut status = running(100);
            let readiness = Readiness {
                probes: &probes,
                begun: at(100),
                was_given_up: false,
                of_source: Some(&earlier("fake://id", ("True", None), "True")),
            };
            readiness.set(&mut status, &container, Kind::Regular, had_started);
            assert_eq!(
                (status.started, status.ready),
                (Some(expected.0), expected.1)
            );
        }
    }

    #[test]
    fn a_restarted_kubelet_takes_ready_containers_over() {
        let probes = ProbeResults::default();
        let (id, other, gate) = ("fake://id", "fake://other", Some("ReadinessGatesNotReady"));
        for (started_at, was_given_up, earlier, expected) in [
            (
                50,
                false,
                Some(earlier(other, ("True", None), "True")),
                true,
            ),
            (50, false, Some(earlier(id, ("False", gate), "True")), true),
            (50, false, Some(earlier(id, ("False", None), "False")), true),
            (
                50,
                false,
                Some(earlier(other, ("False", None), "False")),
                false,
            ),
            // The node controller gave the node up: it made the pod unready, or the pod was.
            (50, false, Some(earlier(id, ("False", None), "True")), false),
            (50, true, Some(earlier(id, ("False", None), "True")), false),
            (50, true, Some(earlier(id, ("False", gate), "True")), false),
            (50, true, Some(earlier(id, ("False", None), "False")), false),
            // It found no time to.
            (50, true, Some(earlier(id, ("True", None), "True")), true),
            (50, false, None, false),
            (95, false, Some(earlier(id, ("True", None), "True")), false),
        ] {
            let mut status = running(started_at);
            let readiness = Readiness {
                probes: &probes,
                begun: at(100),
                was_given_up,
                of_source: earlier.as_ref(),
            };
            readiness.set(&mut status, &probed(false, true), Kind::Regular, true);
            assert_eq!(
                status.ready, expected,
                "{started_at} {was_given_up} {earlier:?}"
            );
        }
    }

    #[test]
    fn an_init_container_is_ready_when_done_and_a_sidecar_when_it_runs() {
        let probes = ProbeResults::default();
        let readiness = Readiness {
            probes: &probes,
            begun: at(0),
            was_given_up: false,
            of_source: None,
        };
        let mut container = probed(false, false);
        let mut status = running(1);
        readiness.set(&mut status, &container, Kind::Init, false);
        assert!(!status.ready && status.started == Some(true));
        container.restart_policy = Some("Always".to_owned());
        readiness.set(&mut status, &container, Kind::Init, false);
        assert!(status.ready);
        container.restart_policy = None;
        status.state = Some(ContainerState {
            terminated: Some(ContainerStateTerminated::default()),
            ..ContainerState::default()
        });
        readiness.set(&mut status, &container, Kind::Init, false);
        assert!(status.ready && status.started == Some(false));
    }
}
