//! Gives running containers what their pod was granted.

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use tracing::{info, warn};

use super::{
    ERROR, Granted, all_containers, begun, checkpoint::Writing, need::Need, running, since,
    told::News,
};
use crate::{
    pod::identity::{self, PodUid},
    runtime::{
        RuntimeManager,
        actions::{ContainerToKill, KillReason, PodActions},
        cri::CriError,
        pod_status::{ContainerState, PodStatus},
        resources,
        restart_rules::is_sidecar,
    },
};

/// Why containers go on with what they had.
#[derive(Debug, thiserror::Error)]
enum ResizeError {
    /// A container uses more than it is to have.
    #[error(
        "cannot decrease memory limits: attempting to set container {container:?} memory limit \
         ({limit}) below current usage ({usage})"
    )]
    InUse {
        container: String,
        limit: i64,
        usage: u64,
    },
    /// The pod uses more than it is to have.
    #[error(
        "cannot decrease memory limits: attempting to set pod memory limit ({limit}) below \
         current usage ({usage})"
    )]
    InUseByPod { limit: i64, usage: u64 },
    /// The runtime does not tell or do it.
    #[error(transparent)]
    Cri(#[from] CriError),
}

/// One of the resources that a resize changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    Memory,
    Cpu,
}

impl Resource {
    const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
        }
    }

    /// Whether it is another amount, and whether that is more: by the limit
    /// where that changes, else by the request.
    fn change(self, from: Need, to: Need) -> Option<Change> {
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
            std::cmp::Ordering::Less => Some(Change::More),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(Change::Less),
        }
    }

    /// `from` with this resource as in `to`.
    const fn taken(self, from: Need, to: Need) -> Need {
        match self {
            Self::Memory => Need {
                memory_request: to.memory_request,
                memory_limit: to.memory_limit,
                ..from
            },
            Self::Cpu => Need {
                cpu_request: to.cpu_request,
                cpu_limit: to.cpu_limit,
                ..from
            },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Less,
    More,
}

/// A running container that is to have other resources.
#[derive(Debug)]
struct Update<'a> {
    container: &'a Container,
    id: String,
    /// What it has.
    now: Need,
    /// What it is to have.
    wanted: Need,
}

impl Update<'_> {
    /// Whether the container must be restarted for what changes.
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

    /// The new memory limit, when there was none or a higher one.
    fn lower_memory_limit(&self) -> Option<i64> {
        lower_limit(self.now.memory_limit, self.wanted.memory_limit)
    }
}

/// The limit that is wanted, when there was none or a higher one.
fn lower_limit(now: i64, wanted: i64) -> Option<i64> {
    (wanted != 0 && (now == 0 || wanted < now)).then_some(wanted)
}

/// What of a pod is to be resized in place.
#[derive(Debug, Default)]
pub(in crate::runtime) struct ResizePlan<'a> {
    containers: Vec<Update<'a>>,
    /// What the pod as a whole has, if it is to have something else.
    whole: Option<Need>,
}

impl ResizePlan<'_> {
    /// Whether there is nothing to resize.
    pub(in crate::runtime) fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.whole.is_none()
    }
}

impl RuntimeManager {
    /// Finds the containers that have other resources than they were granted.
    /// Those that must be restarted for it are added to `actions`.
    pub(in crate::runtime) fn plan_resize<'a>(
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
        let whole = |granted: &mut Granted| Need::of(granted.whole.as_ref());
        let whole = self.resizes.update(&uid, whole);
        plan.whole = whole.filter(|whole| *whole != Need::of(spec.resources.as_ref()));
        for container in all_containers(spec) {
            let Some(run) = running(status, container) else {
                continue;
            };
            if actions.kill.iter().any(|kill| kill.id == run.id) {
                continue;
            }
            let given = self
                .resizes
                .update(&uid, |granted| {
                    granted.actuated(run).map(|given| Need::of(Some(given)))
                })
                .flatten();
            let wanted = Need::of_container(container, spec);
            // What another kubelet gave it is what it was asked for.
            let Some(now) = given.filter(|now| *now != wanted) else {
                continue;
            };
            let update = Update {
                container,
                id: run.id.clone(),
                now,
                wanted,
            };
            if runs_once(spec, container) || !update.restarts() {
                plan.containers.push(update);
                continue;
            }
            actions.kill.push(ContainerToKill {
                id: run.id.clone(),
                name: run.name.clone(),
                message: format!("Container {} resize requires restart", run.name),
                reason: KillReason::Other,
            });
            // A sidecar is started again by the next sync, as whenever it ends.
            let index = spec
                .containers
                .iter()
                .position(|c| c.name == container.name);
            actions.start.extend(index);
            actions.start.sort_unstable();
        }
        plan
    }

    /// Resizes the running containers of a plan, memory before CPU, and those
    /// that get less before those that get more. Whether it worked; what did not
    /// is in the status and is tried again.
    pub(in crate::runtime) async fn resize(
        &self,
        pod: &Pod,
        spec: &PodSpec,
        sandbox_id: &str,
        status: &PodStatus,
        plan: ResizePlan<'_>,
    ) -> bool {
        let uid = PodUid::of(pod);
        let resized = self.try_resize(pod, spec, sandbox_id, status, plan).await;
        self.save_granted(&uid, Writing::Durable).await;
        let Err(error) = resized else {
            return true;
        };
        warn!(pod = identity::full_name(pod), pod_uid = %uid, %error, "cannot resize pod");
        let told = self.resizes.update(&uid, |granted| {
            let old = granted.in_progress.take();
            let generation = pod.metadata.generation;
            let mut new = begun(
                old.as_ref()
                    .map_or(generation, |old| old.observed_generation),
            );
            new.reason = Some(ERROR.to_owned());
            new.message = Some(error.to_string());
            let is_news = old
                .as_ref()
                .is_none_or(|old| old.reason != new.reason || old.message != new.message);
            let generation = new.observed_generation;
            granted.in_progress = Some(since(old, new));
            is_news.then_some(generation)
        });
        if let Some(Some(generation)) = told {
            self.tell(pod, generation, &News::Failed(error.to_string()));
        }
        false
    }

    async fn try_resize(
        &self,
        pod: &Pod,
        spec: &PodSpec,
        sandbox_id: &str,
        status: &PodStatus,
        plan: ResizePlan<'_>,
    ) -> Result<(), ResizeError> {
        let ResizePlan {
            containers: mut updates,
            whole,
        } = plan;
        let wanted = Need::of(spec.resources.as_ref());
        if let Some(now) = whole {
            self.check_pod_memory(now, wanted, status).await?;
        }
        for update in &updates {
            self.check_memory(update).await?;
        }
        // What a pod has is never less than what its containers have of it.
        let shrinks = whole.is_some_and(|now| {
            [Resource::Memory, Resource::Cpu]
                .iter()
                .any(|resource| resource.change(now, wanted) == Some(Change::Less))
        });
        if !shrinks {
            self.update_sandbox(spec, sandbox_id).await?;
        }
        for resource in [Resource::Memory, Resource::Cpu] {
            let order = |update: &Update<'_>| resource.change(update.now, update.wanted);
            updates.sort_by_key(|update| match order(update) {
                Some(Change::Less) => 0,
                None => 1,
                Some(Change::More) => 2,
            });
            for update in &mut updates {
                if order(update).is_some() {
                    self.give(pod, update, resource).await?;
                }
            }
        }
        if shrinks {
            self.update_sandbox(spec, sandbox_id).await?;
        }
        if whole.is_some() {
            self.made_sandbox(pod, spec);
        }
        Ok(())
    }

    async fn update_sandbox(&self, spec: &PodSpec, sandbox_id: &str) -> Result<(), CriError> {
        let total = resources::sandbox_resources(spec, self.rules());
        let told = self
            .cri
            .update_pod_sandbox_resources(sandbox_id, total)
            .await;
        // A runtime need not care for pods as a whole.
        told.or_else(|error| {
            if error.is_unimplemented() {
                Ok(())
            } else {
                Err(error)
            }
        })
    }

    /// # Errors
    /// The pod's containers together use more memory than it is to have at most.
    async fn check_pod_memory(
        &self,
        now: Need,
        wanted: Need,
        status: &PodStatus,
    ) -> Result<(), ResizeError> {
        let Some(limit) = lower_limit(now.memory_limit, wanted.memory_limit) else {
            return Ok(());
        };
        let mut usage = 0_u64;
        for run in &status.containers {
            if run.state == ContainerState::Running {
                let more = self.cri.container_memory_usage(&run.id).await?;
                usage = usage.saturating_add(more);
            }
        }
        if usage < u64::try_from(limit).unwrap_or_default() {
            return Ok(());
        }
        Err(ResizeError::InUseByPod { limit, usage })
    }

    /// # Errors
    /// The container uses more memory than it is to have at most.
    async fn check_memory(&self, update: &Update<'_>) -> Result<(), ResizeError> {
        let Some(limit) = update.lower_memory_limit() else {
            return Ok(());
        };
        let usage = self.cri.container_memory_usage(&update.id).await?;
        if usage < u64::try_from(limit).unwrap_or_default() {
            return Ok(());
        }
        Err(ResizeError::InUse {
            container: update.container.name.clone(),
            limit,
            usage,
        })
    }

    async fn give(
        &self,
        pod: &Pod,
        update: &mut Update<'_>,
        resource: Resource,
    ) -> Result<(), ResizeError> {
        let now = resource.taken(update.now, update.wanted);
        let given = requirements(now);
        let container = Container {
            resources: Some(with(update.container.resources.as_ref(), &given)),
            ..update.container.clone()
        };
        let linux = resources::container_resources(pod, &container, self.rules());
        self.cri
            .update_container_resources(&update.id, linux)
            .await?;
        info!(
            pod = identity::full_name(pod), container = %container.name,
            container_id = %update.id, resource = resource.name(), "resized container"
        );
        update.now = now;
        self.resizes.update(&PodUid::of(pod), |granted| {
            granted.actuated.insert(update.id.clone(), given);
        });
        Ok(())
    }
}

/// Whether the container is an init container that ends before others begin: to restart it
/// would be to fail it.
fn runs_once(spec: &PodSpec, container: &Container) -> bool {
    let mut init = spec.init_containers.iter().flatten();
    !is_sidecar(container) && init.any(|init| init.name == container.name)
}

/// What a container has, with the CPU and memory that it is given.
fn with(own: Option<&ResourceRequirements>, given: &ResourceRequirements) -> ResourceRequirements {
    let mut all = own.cloned().unwrap_or_default();
    for (list, given) in [
        (&mut all.limits, &given.limits),
        (&mut all.requests, &given.requests),
    ] {
        let list = list.get_or_insert_default();
        list.retain(|name, _| !matches!(name.as_str(), "cpu" | "memory"));
        list.extend(given.clone().into_iter().flatten());
    }
    all
}

fn requirements(need: Need) -> ResourceRequirements {
    let list = |cpu: i64, memory: i64| {
        let cpu = (cpu != 0).then(|| ("cpu".to_owned(), Quantity(format!("{cpu}m"))));
        let memory = (memory != 0).then(|| ("memory".to_owned(), Quantity(memory.to_string())));
        Some(cpu.into_iter().chain(memory).collect())
    };
    ResourceRequirements {
        claims: None,
        limits: list(need.cpu_limit, need.memory_limit),
        requests: list(need.cpu_request, need.memory_request),
    }
}
