//! The cgroups of pods: when they are created and removed, and when limits are brought up to date.

pub mod limits;
pub mod options;

use std::{fmt, sync::Arc, time::Duration};

use cri_proto::runtime::v1::CgroupDriver;
use k8s_openapi::api::core::v1::Pod;
use kubelet_api_client::events::{EventRecorder, Subject, reason};
use kubelet_container_manager::{
    ContainerManager, EnforcedReservation, NodeLimits, PodCgroups,
    cgroup::{CgroupError, Driver},
};
use kubelet_cri_client::{CriClient, CriError};
use kubelet_host::{machine::Machine, repeatable};
use kubelet_pacing::backoff::jittered;
use kubelet_resource_managers::ResourceManagers;
use retry_delay::RetryDelay;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use self::options::{CgroupOptions, CgroupSource};

/// Between two updates of the QoS classes' limits, and two attempts to enforce what is allocatable,
/// as upstream.
const UPDATE_PERIOD: Duration = Duration::from_secs(60);
/// Between two attempts to start the container manager: doubled each time.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(30);

/// Starts the container manager, and repeats until it succeeds: without the cgroups that limit them,
/// no pods are run.
pub(crate) async fn start(
    cgroups: &PodCgroups,
    options: &CgroupOptions,
    cri: &CriClient,
    machine: &Machine,
    node: &NodeLimits,
    managers: &Arc<ResourceManagers>,
) {
    let mut retry = RetryDelay::new(FIRST_RETRY, MAX_RETRY);
    let mut told = None;
    loop {
        match try_start(options, cri, machine, node, managers).await {
            Ok(manager) => {
                info!(cgroup = %manager.pods_cgroup(), "created the cgroups of pods");
                cgroups.set(manager);
                return;
            }
            Err(error) => {
                let error = error.to_string();
                if told.as_ref() != Some(&error) {
                    error!(
                        error,
                        "cannot create the cgroups of pods; no pods are run until then"
                    );
                }
                told = Some(error);
            }
        }
        sleep(jittered(retry.after_failure())).await;
    }
}

/// Why the container manager cannot start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("cannot determine the runtime's cgroup driver: {0}")]
    Driver(#[source] CriError),
    #[error(
        "{0}; cgroupRoot (--cgroup-root) must exist, or cgroupsPerQOS (--cgroups-per-qos) be false"
    )]
    Root(#[source] CgroupError),
    #[error("{0}")]
    Cgroup(#[from] CgroupError),
    #[error("the search for cgroups panicked")]
    Panicked,
}

async fn try_start(
    options: &CgroupOptions,
    cri: &CriClient,
    machine: &Machine,
    node: &NodeLimits,
    managers: &Arc<ResourceManagers>,
) -> Result<ContainerManager, StartError> {
    let driver = match cri.cgroup_driver().await.map_err(StartError::Driver)? {
        Some(CgroupDriver::Systemd) => Driver::Systemd,
        Some(CgroupDriver::Cgroupfs) => Driver::Cgroupfs,
        None => options.driver,
    };
    let page_sizes = machine.huge_page_sizes.clone();
    let cgroups = match &options.source {
        CgroupSource::Given(cgroups) => Arc::clone(cgroups),
        CgroupSource::Machine => {
            let sizes = page_sizes.clone();
            let found = repeatable::blocking(move || CgroupSource::find(driver, sizes)).await;
            found.map_err(|_| StartError::Panicked)??
        }
    };
    let manager = ContainerManager::new(
        cgroups,
        options.manager.clone(),
        page_sizes,
        Arc::clone(managers),
    )?;
    match manager.start(node).await {
        Err(error @ (CgroupError::Absent(_) | CgroupError::Incomplete { .. })) => {
            return Err(StartError::Root(error));
        }
        started => started?,
    }
    Ok(manager)
}

/// Keeps limits up to date.
pub(crate) struct LimitKeeper<'a, A> {
    pub(crate) cgroups: &'a PodCgroups,
    pub(crate) node: &'a NodeLimits,
    /// Returns the active pods.
    pub(crate) pods: A,
    pub(crate) events: &'a EventRecorder,
}

impl<A: Fn() -> Vec<Arc<Pod>>> LimitKeeper<'_, A> {
    /// Enforces what is allocatable and reserved, and keeps the QoS classes up to date until
    /// cancelled. Does nothing if pods have no cgroups.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        let Some(manager) = self.cgroups.manager() else {
            return;
        };
        let work = async { tokio::join!(self.enforce(manager), self.update_classes(manager)) };
        cancel.run_until_cancelled(work).await;
    }

    /// Pods of an earlier kubelet may use more than what is allocatable now.
    async fn enforce(&self, manager: &ContainerManager) {
        for reservation in manager.enforce_reserved(self.node).await {
            self.report(&reservation);
        }
        loop {
            let Err(error) = manager.enforce_allocatable(self.node).await else {
                let message = "Updated Node Allocatable limit across pods";
                self.enforced(message);
                return;
            };
            let cgroup = manager.pods_cgroup();
            warn!(%cgroup, %error, "cannot limit the pods to what is allocatable; retrying");
            self.failed(format_args!(
                "Failed to update Node Allocatable Limits \"{cgroup}\": {error}"
            ));
            sleep(UPDATE_PERIOD).await;
        }
    }

    fn report(&self, reservation: &EnforcedReservation) {
        let EnforcedReservation {
            enforcement,
            cgroup,
            result,
        } = reservation;
        let what = enforcement.as_str();
        match result {
            Ok(()) => self.enforced(format_args!("Updated limits on {what} cgroup {cgroup}")),
            Err(error) => {
                error!(
                    cgroup, %error,
                    "cannot enforce {what} of enforceNodeAllocatable (--enforce-node-allocatable)"
                );
                self.failed(format_args!(
                    "Failed to enforce {what} Cgroup Limits on {cgroup:?}: {error}"
                ));
            }
        }
    }

    fn enforced(&self, message: impl fmt::Display) {
        let reason = reason::NODE_ALLOCATABLE_ENFORCED;
        self.events.normal(Subject::Node, reason, message);
    }

    fn failed(&self, message: fmt::Arguments<'_>) {
        let reason = reason::FAILED_NODE_ALLOCATABLE_ENFORCEMENT;
        self.events.warning(Subject::Node, reason, message);
    }

    async fn update_classes(&self, manager: &ContainerManager) {
        let mut period = interval(UPDATE_PERIOD);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = period.tick() => {}
                () = self.cgroups.changed() => {}
            }
            if let Err(error) = manager.update_qos(self.node, &(self.pods)()).await {
                warn!(%error, "cannot update the limits of the QoS classes");
            }
        }
    }
}
