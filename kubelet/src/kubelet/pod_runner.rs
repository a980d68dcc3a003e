//! Runs the pods of a kubelet: the sync loop, and what works beside it.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use kubelet_api_client::events::{Subject, reason};
use kubelet_container_manager::NodeLimits;
use kubelet_cri_client::CriError;
use kubelet_eviction::MemoryNotifier;
use kubelet_host::repeatable;
use kubelet_logs::LogRotation;
use kubelet_node::shutdown::{Logind, login_manager::LoginManager};
use kubelet_pod_spec::identity::PodUid;
use kubelet_stats::SystemContainer;
use kubelet_volume::tmpfs_may_be_swapped;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Kubelet, logs::running_logs};
use crate::{
    active_pods::active_pods,
    allocation::Allocator,
    cpu_set_keeper::CpuSetKeeper,
    graceful_shutdown::{inhibitor_lock::InhibitorLockHolder, pod_killer::PodKiller},
    host,
    housekeeping::{Directories, Housekeeping, LeftoverCgroups},
    node_pressure::{MachineMeasurements, MeasurementSource, NodeHost},
    pod::removals::Removals,
    pod_cgroups::{self, LimitKeeper},
    resource_holders::ResourceHolders,
    sources::update::PodUpdate,
    status::sync::StatusSync,
    sync_loop::{SyncLoop, SyncLoopInputs, WaitingPods},
};

/// Between attempts to reach the runtime at startup.
const CONNECT_PERIOD: Duration = Duration::from_secs(1);
/// Capacity of the channel of pod lifecycle events to the sync loop.
const EVENTS: usize = 1000;

/// Runs the pods of a kubelet, once.
#[derive(Debug)]
pub struct PodRunner {
    pub(crate) kubelet: Kubelet,
    probe_changes: mpsc::Receiver<PodUid>,
    removals: Removals,
    pub(crate) cancel: CancellationToken,
}

/// Whether pods without a source are killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Orphans {
    /// They are killed.
    End,
    /// They keep running.
    Leave,
}

impl PodRunner {
    pub(super) const fn new(
        kubelet: Kubelet,
        probe_changes: mpsc::Receiver<PodUid>,
        removals: Removals,
        cancel: CancellationToken,
    ) -> Self {
        Self {
            kubelet,
            probe_changes,
            removals,
            cancel,
        }
    }

    /// Runs the pods of `updates` until cancelled; they keep running then. Waits for the runtime
    /// first, without a time limit. Node shutdowns are detected through logind.
    pub async fn run(self, updates: mpsc::Receiver<PodUpdate>) {
        self.run_under(&Logind::default(), updates).await;
    }

    /// [`run`](Self::run) with another login manager.
    pub async fn run_under(
        self,
        login_manager: &impl LoginManager,
        updates: mpsc::Receiver<PodUpdate>,
    ) {
        let events = &self.kubelet.0.events;
        events.normal(Subject::Node, reason::STARTING, "Starting kubelet.");
        if !host::swap().is_empty() && tmpfs_may_be_swapped() {
            let reason = reason::POSSIBLE_MEMORY_BACKED_VOLUMES_ON_DISK;
            let message = "Swap is on, and the kernel cannot exempt a tmpfs (noswap, Linux 6.4): \
                           secrets and other volumes in memory may be written to disk.";
            events.warning(Subject::Node, reason, message);
        }
        self.run_pods(updates, Orphans::End, Some(login_manager))
            .await;
    }

    pub(crate) async fn run_pods(
        self,
        updates: mpsc::Receiver<PodUpdate>,
        orphans: Orphans,
        login_manager: Option<&impl LoginManager>,
    ) {
        let (kubelet, cancel) = (self.kubelet, self.cancel);
        let parts = &*kubelet.0;
        let prepared = cancel.run_until_cancelled(async {
            // Before the first look at containers. Boxed: the space is needed only at the start.
            Box::pin(parts.oom_watcher.start()).await;
            kubelet.wait_for_runtime().await;
            let limits = Box::pin(kubelet.start_cgroups()).await;
            parts.runtime.images().restore().await;
            limits
        });
        let Some(limits) = prepared.await else {
            return;
        };
        parts.runtime.restore_grants().await;
        let sync_loop = SyncLoop {
            admission: &parts.admission,
            node: &parts.node,
            shutdown: &parts.shutdown,
            runtime: &parts.runtime,
            readiness: &parts.readiness,
            pleg: &parts.pleg,
            pods: &parts.pods,
            statuses: &parts.statuses,
            workers: &parts.workers,
            monitor: &parts.monitor,
            mirrors: parts.mirrors.as_deref(),
            events: &parts.events,
            housekeeping: (orphans == Orphans::End).then(|| kubelet.housekeeping(self.removals)),
            sources_ready: &*parts.sources_ready,
            holders: kubelet.resource_holders(),
            has_all_pods: false,
            rejected: HashSet::new(),
            undecided: HashSet::new(),
            waiting: WaitingPods::default(),
        };
        let allocator = Allocator {
            admission: &parts.admission,
            node: &parts.node,
            runtime: &parts.runtime,
            pods: &parts.pods,
            workers: &parts.workers,
            events: &parts.events,
            sources_ready: &*parts.sources_ready,
            waiting: BTreeMap::new(),
        };
        let (events_in, events) = mpsc::channel(EVENTS);
        let inputs = SyncLoopInputs::new(updates, self.probe_changes, events);
        // All in one task: no pod is admitted while the shutdown manager lists the pods, and no pod
        // grows before the loop has processed all updates of the sources. Boxed, each is polled only
        // when it is woken, and has its stack to itself.
        let works: [BoxFuture<'_, ()>; _] = [
            kubelet
                .delay_shutdowns(login_manager, cancel.clone())
                .boxed(),
            kubelet.rotate_logs(cancel.clone()).boxed(),
            kubelet.sync_with_api_server(cancel.clone()).boxed(),
            parts.readiness.run(cancel.clone()).boxed(),
            parts.oom_watcher.run(cancel.clone()).boxed(),
            parts.runtime.watch_resolv_conf(cancel.clone()).boxed(),
            parts.pleg.run(events_in, cancel.clone()).boxed(),
            parts.volumes.run(cancel.clone()).boxed(),
            parts.analyzer.run(cancel.clone()).boxed(),
            kubelet.protect_node(orphans, cancel.clone()).boxed(),
            kubelet.keep_limits(&limits, cancel.clone()).boxed(),
            kubelet.keep_cpu_sets(orphans, cancel.clone()).boxed(),
            kubelet.show_device_health(cancel.clone()).boxed(),
            kubelet.release_claims(orphans, cancel.clone()).boxed(),
            kubelet.keep_system_cgroups(cancel.clone()).boxed(),
            sync_loop.run(inputs, cancel.clone()).boxed(),
            allocator.run(cancel.clone()).boxed(),
        ];
        FuturesUnordered::from_iter(works).collect::<()>().await;
        parts.workers.ended().await;
        parts.probes.ended().await;
        info!("pod workers and probes have stopped");
    }
}

impl Kubelet {
    /// Returns once the runtime answers.
    async fn wait_for_runtime(&self) {
        let mut failing = false;
        loop {
            let cri = &self.0.cri;
            let asked = async { Ok::<_, CriError>((cri.version().await?, cri.status().await?)) };
            match asked.await {
                Ok((version, status)) => {
                    info!(
                        runtime = version.runtime_name,
                        version = version.runtime_version,
                        api = version.runtime_api_version,
                        "connected to the container runtime"
                    );
                    self.0.runtime.set_name(version.runtime_name);
                    let features = status.features.unwrap_or_default();
                    self.0.readiness.take(status);
                    self.0.node.set_runtime_features(features);
                    return;
                }
                Err(error) => {
                    if !failing {
                        warn!(
                            endpoint = self.0.options.cri.runtime_endpoint, %error,
                            "the container runtime does not respond; retrying"
                        );
                    }
                    failing = true;
                    tokio::time::sleep(CONNECT_PERIOD).await;
                }
            }
        }
    }

    /// Creates the cgroups of pods. Returns the node's limits.
    async fn start_cgroups(&self) -> NodeLimits {
        let parts = &*self.0;
        let Some(options) = parts.options.cgroups.clone() else {
            return NodeLimits::default();
        };
        let (machine, reservation) = (
            parts.runtime.machine().clone(),
            parts.options.capacity.reservation.clone(),
        );
        let read = move || pod_cgroups::limits::of_node(&machine, &reservation, &options);
        let node = repeatable::blocking(read).await.unwrap_or_default();
        if let Some(options) = &parts.options.cgroups {
            let machine = parts.runtime.machine();
            let managers = &parts.managers;
            pod_cgroups::start(
                &parts.cgroups,
                options,
                &parts.cri,
                machine,
                &node,
                managers,
            )
            .await;
        }
        node
    }

    async fn keep_system_cgroups(&self, cancel: CancellationToken) {
        cancel
            .run_until_cancelled(self.0.system_cgroups.run())
            .await;
    }

    async fn keep_limits(&self, node: &NodeLimits, cancel: CancellationToken) {
        let parts = &*self.0;
        let keeper = LimitKeeper {
            cgroups: &parts.cgroups,
            node,
            pods: || active_pods(&parts.pods, &parts.statuses, &parts.workers),
            events: &parts.events,
        };
        keeper.run(cancel).await;
    }

    async fn keep_cpu_sets(&self, orphans: Orphans, cancel: CancellationToken) {
        let parts = &*self.0;
        let keeper = CpuSetKeeper {
            runtime: &parts.runtime,
            holders: self.resource_holders(),
            cache: &parts.cache,
            releases: &|| orphans == Orphans::End && (parts.sources_ready)(),
            period: parts.options.cpu_reconcile_period,
        };
        keeper.run(cancel).await;
    }

    /// Syncs pods with a device whose health has changed, so that their status shows it.
    async fn show_device_health(&self, cancel: CancellationToken) {
        let sync = |pods: BTreeSet<PodUid>| pods.iter().for_each(|uid| self.0.workers.sync(uid));
        let of_plugins = async {
            if let Some(devices) = self.device_manager() {
                loop {
                    sync(devices.changed_pods().await);
                }
            }
        };
        let of_claims = async {
            loop {
                sync(self.0.dra.changed_pods().await);
            }
        };
        let both = async { tokio::join!(of_plugins, of_claims) };
        cancel.run_until_cancelled(both).await;
    }

    /// Releases the resource claims of pods that are gone, for as long as the kubelet runs.
    async fn release_claims(&self, orphans: Orphans, cancel: CancellationToken) {
        let holders = self.resource_holders();
        let gone = |pods| match orphans == Orphans::End && (self.0.sources_ready)() {
            true => holders.gone(pods),
            false => BTreeSet::new(),
        };
        self.0.dra.run(gone, cancel).await;
    }

    fn resource_holders(&self) -> ResourceHolders<'_> {
        let parts = &*self.0;
        ResourceHolders {
            managers: &parts.managers,
            pods: &parts.pods,
            statuses: &parts.statuses,
            workers: &parts.workers,
            pleg: &parts.pleg,
        }
    }

    /// Removes what no pod needs, and evicts pods when the node runs out of resources.
    async fn protect_node(&self, orphans: Orphans, cancel: CancellationToken) {
        if orphans == Orphans::Leave {
            return;
        }
        let parts = &*self.0;
        tokio::join!(
            parts.images.run(cancel.clone()),
            parts.containers.run(cancel.clone()),
            self.evict_pods(cancel),
        );
    }

    async fn evict_pods(&self, cancel: CancellationToken) {
        let parts = &*self.0;
        let cgroups = parts.system_cgroups.paths(parts.cgroups.manager());
        let of_pods = cgroups.get(SystemContainer::Pods.as_str()).cloned();
        let find = move || MemoryNotifier::find(Path::new("/proc"), of_pods.as_deref());
        let notifier = repeatable::blocking(find).await.unwrap_or_default();
        let of_machine = MachineMeasurements {
            stats: &parts.stats,
            analyzer: &parts.analyzer,
        };
        let host = NodeHost {
            measurements: match &parts.options.measurements {
                MeasurementSource::Machine => &of_machine,
                MeasurementSource::Given(given) => &**given,
            },
            pods: &parts.pods,
            statuses: &parts.statuses,
            workers: &parts.workers,
            runtime: &parts.runtime,
            containers: &parts.containers,
            images: &parts.images,
            events: &parts.events,
            notifier,
        };
        parts.eviction.run(&host, cancel).await;
    }

    fn housekeeping(&self, removals: Removals) -> Housekeeping {
        let parts = &*self.0;
        Housekeeping {
            node: Arc::clone(&parts.local_node),
            pods: Arc::clone(&parts.pods),
            workers: Arc::clone(&parts.workers),
            probes: Arc::clone(&parts.probes),
            pleg: Arc::clone(&parts.pleg),
            volumes: Arc::clone(&parts.volumes),
            mirrors: parts.mirrors.clone(),
            directories: Directories::default(),
            cgroups: LeftoverCgroups::new(
                Arc::clone(&parts.cgroups),
                Arc::clone(&parts.volumes),
                removals.clone(),
            ),
            removals,
            orphans: Arc::clone(&parts.orphans),
        }
    }

    /// Delays shutdowns of the node until its pods have ended.
    async fn delay_shutdowns(
        &self,
        login_manager: Option<&impl LoginManager>,
        cancel: CancellationToken,
    ) {
        let Some(login_manager) = login_manager else {
            return;
        };
        let parts = &*self.0;
        let lock_holder = InhibitorLockHolder {
            login_manager,
            periods: &parts.options.shutdown_grace_periods,
            shutdown: &parts.shutdown,
            pod_killer: PodKiller {
                pods: &parts.pods,
                statuses: &parts.statuses,
                workers: &parts.workers,
            },
            events: &parts.events,
        };
        lock_holder.run(cancel).await;
    }

    async fn rotate_logs(&self, cancel: CancellationToken) {
        let parts = &*self.0;
        if let Some(policy) = parts.options.log_rotation {
            let rotation = LogRotation {
                policy,
                cri: parts.cri.clone(),
                running: running_logs(parts),
            };
            rotation.run(cancel).await;
        }
    }

    /// Synchronises mirror pods, pod statuses, the `CSINode` object and attached volumes with the
    /// API server, if there is one.
    async fn sync_with_api_server(&self, cancel: CancellationToken) {
        let parts = &*self.0;
        let (Some(client), Some(mirrors)) = (&parts.client, &parts.mirrors) else {
            return;
        };
        let (Some(csi_node), Some(csi_allocatable), Some(node)) =
            (&parts.csi_node, &parts.csi_allocatable, &parts.node.object)
        else {
            return;
        };
        let (statuses, pods) = (Arc::clone(&parts.statuses), Arc::clone(&parts.pods));
        let statuses = StatusSync::new(client.clone(), statuses, pods);
        tokio::join!(
            mirrors.run(cancel.clone()),
            csi_node.run(cancel.clone()),
            csi_allocatable.run(cancel.clone()),
            parts.volumes.follow_node(node.clone(), cancel.clone()),
            statuses.run(cancel),
        );
    }
}
