//! The resize plan of a pod: containers to resize in place, and containers to restart.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kubelet_cri_client::pod_status::{ContainerState, PodStatus};
use kubelet_pod_spec::{identity::PodUid, restart_rules::is_sidecar};

use super::{PodGrant, all_containers, cpu_memory::CpuMemory, running};
use crate::{
    RuntimeManager,
    actions::{ContainerToKill, KillReason, PodActions},
};

/// A resource that can be resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    Memory,
    Cpu,
}

impl Resource {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
        }
    }

    /// Whether the amount increases or decreases; `None` if it stays the same. The limits are
    /// compared, or the requests if the limits are equal.
    pub(super) fn change(self, from: CpuMemory, to: CpuMemory) -> Option<Direction> {
        let (limits, requests) = match self {
            Self::Memory => (
                (from.memory_limit, to.memory_limit),
                (from.memory_request, to.memory_request),
            ),
            Self::Cpu => (
                (from.cpu_limit, to.cpu_limit),
                (from.cpu_request, to.cpu_request),
            ),
        };
        let (from, to) = if limits.0 == limits.1 {
            requests
        } else {
            limits
        };
        match from.cmp(&to) {
            std::cmp::Ordering::Less => Some(Direction::Increase),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(Direction::Decrease),
        }
    }

    /// `from` with this resource as in `to`.
    pub(super) const fn taken(self, from: CpuMemory, to: CpuMemory) -> CpuMemory {
        match self {
            Self::Memory => CpuMemory {
                memory_request: to.memory_request,
                memory_limit: to.memory_limit,
                ..from
            },
            Self::Cpu => CpuMemory {
                cpu_request: to.cpu_request,
                cpu_limit: to.cpu_limit,
                ..from
            },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Decrease,
    Increase,
}

/// A running container to resize in place.
#[derive(Debug)]
pub(super) struct ContainerResize<'a> {
    pub(super) container: &'a Container,
    pub(super) id: String,
    /// The resources in force.
    pub(super) now: CpuMemory,
    /// The new resources.
    pub(super) wanted: CpuMemory,
}

impl ContainerResize<'_> {
    /// Whether the resize policy requires a restart of the container.
    fn restarts(&self) -> bool {
        let changes = |resource: Resource| resource.change(self.now, self.wanted).is_some();
        let policies = self.container.resize_policy.iter().flatten();
        policies
            .filter(|policy| policy.restart_policy == "RestartContainer")
            .any(|policy| {
                [Resource::Memory, Resource::Cpu]
                    .into_iter()
                    .any(|resource| resource.name() == policy.resource_name && changes(resource))
            })
    }

    /// The new memory limit, if it is lower than the present one.
    pub(super) fn lower_memory_limit(&self) -> Option<i64> {
        lower_limit(self.now.memory_limit, self.wanted.memory_limit)
    }
}

/// The wanted limit, if it is lower than the present one. Zero means unlimited.
pub(super) fn lower_limit(now: i64, wanted: i64) -> Option<i64> {
    (wanted != 0 && (now == 0 || wanted < now)).then_some(wanted)
}

/// Everything to resize in a pod.
#[derive(Debug, Default)]
pub(crate) struct ResizePlan<'a> {
    pub(super) containers: Vec<ContainerResize<'a>>,
    /// The pod-level resources in force, if they change.
    pub(super) whole: Option<CpuMemory>,
    /// Containers restart for the resize: they were stopped and have not started again, and the
    /// limits of the pod have to fit their new ones.
    pub(super) restarts: bool,
}

impl ResizePlan<'_> {
    /// Whether there is nothing to resize.
    pub(crate) fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.whole.is_none() && !self.restarts
    }
}

impl RuntimeManager {
    /// Finds the running containers whose resources differ from the granted ones. Those that have
    /// to restart for the resize are added to `actions`.
    pub(crate) fn plan_resize<'a>(
        &self,
        pod: &Pod,
        spec: &'a PodSpec,
        status: &PodStatus,
        actions: &mut PodActions,
    ) -> ResizePlan<'a> {
        let mut plan = ResizePlan::default();
        let anew = actions.create_sandbox.is_some() || !actions.reset.is_empty();
        if actions.kill_pod || anew {
            return plan;
        }
        let uid = PodUid::of(pod);
        self.grants
            .update(&uid, |granted| granted.see_adopted(status));
        let whole = |granted: &mut PodGrant| CpuMemory::of(granted.whole.as_ref());
        let whole = self.grants.update(&uid, whole);
        plan.whole = whole.filter(|whole| *whole != CpuMemory::of(spec.resources.as_ref()));
        for container in all_containers(spec) {
            let Some(run) = running(status, container) else {
                continue;
            };
            if actions.kill.iter().any(|kill| kill.id == run.id) {
                continue;
            }
            let given = self
                .grants
                .update(&uid, |granted| {
                    granted
                        .actuated(run)
                        .map(|given| CpuMemory::of(Some(given)))
                })
                .flatten();
            let wanted = CpuMemory::of_container(container, spec);
            let Some(now) = given.filter(|now| *now != wanted) else {
                continue;
            };
            let update = ContainerResize {
                container,
                id: run.id.clone(),
                now,
                wanted,
            };
            if runs_once(spec, container) || !update.restarts() {
                plan.containers.push(update);
                continue;
            }
            plan.restarts = true;
            actions.kill.push(ContainerToKill {
                id: run.id.clone(),
                name: run.name.clone(),
                message: format!("Container {} resize requires restart", run.name),
                reason: KillReason::Other,
            });
            // Only regular containers: a killed sidecar is restarted by the next sync, as after any
            // exit.
            let index = spec
                .containers
                .iter()
                .position(|c| c.name == container.name);
            actions.start.extend(index);
            actions.start.sort_unstable();
        }
        plan
    }
}

impl RuntimeManager {
    /// Whether a container that has ended had other resources than it will start with.
    pub(crate) fn is_resized_while_ended(
        &self,
        pod: &Pod,
        spec: &PodSpec,
        status: &PodStatus,
    ) -> bool {
        let is_resized = |granted: &mut PodGrant| {
            all_containers(spec).any(|container| {
                let run = status.container(&container.name);
                let run = run.filter(|run| run.state != ContainerState::Running);
                let had = run.and_then(|run| granted.actuated(run));
                let wanted = CpuMemory::of_container(container, spec);
                had.is_some_and(|had| CpuMemory::of(Some(had)) != wanted)
            })
        };
        let resized = self.grants.update(&PodUid::of(pod), is_resized);
        resized.unwrap_or_default()
    }
}

/// Whether the container is an init container that runs to completion. Restarting it would make it
/// fail.
fn runs_once(spec: &PodSpec, container: &Container) -> bool {
    let mut init = spec.init_containers.iter().flatten();
    !is_sidecar(container) && init.any(|init| init.name == container.name)
}
