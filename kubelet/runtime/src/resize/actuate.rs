//! Applies granted resources to running containers.

use atomic_file::Durability;
use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use kubelet_container_manager::cgroup::CgroupError;
use kubelet_cri_client::{
    CriError,
    pod_status::{ContainerState, PodStatus},
};
use kubelet_pod_spec::identity::PodUid;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    ERROR,
    cpu_memory::CpuMemory,
    events::ResizeEvent,
    in_progress_condition,
    plan::{ContainerResize, Direction, ResizePlan, Resource, lower_limit},
    since,
};
use crate::{RuntimeManager, resources};

/// Why a resize failed.
#[derive(Debug, thiserror::Error)]
enum ResizeError {
    /// The memory usage of a container is not below its new limit.
    #[error(
        "cannot decrease memory limits: attempting to set container {container:?} memory limit \
         ({limit}) below current usage ({usage})"
    )]
    InUse {
        container: String,
        limit: i64,
        usage: u64,
    },
    /// The memory usage of the pod is not below its new limit.
    #[error(
        "cannot decrease memory limits: attempting to set pod memory limit ({limit}) below \
         current usage ({usage})"
    )]
    InUseByPod { limit: i64, usage: u64 },
    /// The pod's cgroup could not be changed.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The runtime did not report the usage or apply the resources.
    #[error(transparent)]
    Cri(#[from] CriError),
}

impl RuntimeManager {
    /// Resizes the running containers of a plan, memory before CPU and decreases before increases.
    /// Returns whether it succeeded. An error is reported in the pod's status, and the resize is
    /// retried.
    pub(crate) async fn resize(
        &self,
        pod: &Pod,
        spec: &PodSpec,
        sandbox_id: &str,
        status: &PodStatus,
        plan: ResizePlan<'_>,
    ) -> bool {
        let uid = PodUid::of(pod);
        let begun = Instant::now();
        let resized = self.try_resize(pod, spec, sandbox_id, status, plan).await;
        let success = if resized.is_ok() { "true" } else { "false" };
        let durations = self.grants.metrics.durations.of([success]);
        durations.observe(begun.elapsed().as_secs_f64() * 1000.0);
        self.save_granted(&uid, Durability::Synced).await;
        let Err(error) = resized else {
            return true;
        };
        warn!(%error, "cannot resize pod");
        let told = self.grants.update(&uid, |granted| {
            let old = granted.in_progress.take();
            let generation = pod.metadata.generation;
            let mut new = in_progress_condition(
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
            self.record_resize_event(pod, generation, &ResizeEvent::Failed(error.to_string()));
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
            restarts: _,
        } = plan;
        let wanted = CpuMemory::of(spec.resources.as_ref());
        if let Some(now) = whole {
            self.check_pod_memory(now, wanted, status).await?;
        }
        for update in &updates {
            self.check_memory(update).await?;
        }
        // The pod's resources must never be less than those of its containers.
        if let Some(manager) = self.cgroups.manager() {
            manager.raise_limits(pod).await?;
        }
        let shrinks = whole.is_some_and(|now| {
            [Resource::Memory, Resource::Cpu]
                .iter()
                .any(|resource| resource.change(now, wanted) == Some(Direction::Decrease))
        });
        if !shrinks {
            self.update_sandbox(spec, sandbox_id).await?;
        }
        for resource in [Resource::Memory, Resource::Cpu] {
            let order = |update: &ContainerResize<'_>| resource.change(update.now, update.wanted);
            updates.sort_by_key(|update| match order(update) {
                Some(Direction::Decrease) => 0,
                None => 1,
                Some(Direction::Increase) => 2,
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
        if let Some(manager) = self.cgroups.manager() {
            manager.settle_limits(pod).await?;
            self.cgroups.announce_change();
        }
        if whole.is_some() {
            self.made_sandbox(pod, spec);
        }
        Ok(())
    }

    /// Makes the limits of a pod fit containers that start with other resources than they had.
    ///
    /// # Errors
    /// The containers could not start: the pod's limits could not be raised.
    pub(crate) async fn fit_limits(
        &self,
        pod: &Pod,
        spec: &PodSpec,
        sandbox_id: &str,
    ) -> Result<(), CgroupError> {
        if let Err(error) = self.update_sandbox(spec, sandbox_id).await {
            warn!(%error, "cannot resize the pod's sandbox");
        }
        let Some(manager) = self.cgroups.manager() else {
            return Ok(());
        };
        manager.raise_limits(pod).await?;
        if let Err(error) = manager.settle_limits(pod).await {
            warn!(%error, "cannot lower the limits of the pod");
        }
        self.cgroups.announce_change();
        Ok(())
    }

    async fn update_sandbox(&self, spec: &PodSpec, sandbox_id: &str) -> Result<(), CriError> {
        let total = resources::sandbox_resources(spec, self.rules());
        let told = self
            .cri
            .update_pod_sandbox_resources(sandbox_id, total)
            .await;
        // Runtimes need not support pod-level resources.
        told.or_else(|error| {
            if error.is_unimplemented() {
                Ok(())
            } else {
                Err(error)
            }
        })
    }

    /// Checks the memory usage of the pod's containers against a lower limit.
    ///
    /// # Errors
    /// The usage of all containers is not below the new limit, or could not be read.
    async fn check_pod_memory(
        &self,
        now: CpuMemory,
        wanted: CpuMemory,
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

    /// Checks the memory usage of a container against a lower limit.
    ///
    /// # Errors
    /// The usage is not below the new limit, or could not be read.
    async fn check_memory(&self, update: &ContainerResize<'_>) -> Result<(), ResizeError> {
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
        update: &mut ContainerResize<'_>,
        resource: Resource,
    ) -> Result<(), ResizeError> {
        let now = resource.taken(update.now, update.wanted);
        let given = requirements(now);
        let container = Container {
            resources: Some(with(update.container.resources.as_ref(), &given)),
            ..update.container.clone()
        };
        let rules = self.rules_of(pod, &container.name);
        let linux = resources::container_resources(pod, &container, rules);
        self.cri
            .update_container_resources(&update.id, linux)
            .await?;
        info!(
            container = %container.name, container_id = %update.id, resource = resource.name(), "resized container"
        );
        update.now = now;
        self.grants.update(&PodUid::of(pod), |granted| {
            granted.actuated.insert(update.id.clone(), given);
        });
        Ok(())
    }
}

/// The resources `own` with the CPU and memory of `given`.
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

fn requirements(amounts: CpuMemory) -> ResourceRequirements {
    let list = |cpu: i64, memory: i64| {
        let cpu = (cpu != 0).then(|| ("cpu".to_owned(), Quantity(format!("{cpu}m"))));
        let memory = (memory != 0).then(|| ("memory".to_owned(), Quantity(memory.to_string())));
        Some(cpu.into_iter().chain(memory).collect())
    };
    ResourceRequirements {
        claims: None,
        limits: list(amounts.cpu_limit, amounts.memory_limit),
        requests: list(amounts.cpu_request, amounts.memory_request),
    }
}
