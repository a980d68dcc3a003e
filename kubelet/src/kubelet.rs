//! The kubelet: assembles and runs its parts.

mod logs;
mod metrics;
pub mod options;
mod state;

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, PodStatus};
use kube::Client;
use kubelet_api_client::{
    events::{EventRecorder, Subject, reason},
    objects::Objects,
};
use kubelet_cri_client::{CriClient, CriError, readiness::RuntimeReadiness};
use kubelet_host::{host_ips::HostIps, local_node::LocalNode};
use kubelet_logs::LogRotation;
use kubelet_plugin_manager::{Handlers, PluginHandler, PluginManager};
use kubelet_pod_spec::identity::PodUid;
use kubelet_prober::{ProbeManager, results::ProbeResults};
use kubelet_runtime::RuntimeManager;
use kubelet_volume::{
    VolumeHost, VolumeManager,
    csi::{self, CsiRegistration, DriverStore, csi_node::CsiNodeKeeper},
    plugins,
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::options::KubeletOptions;
use crate::{
    allocation::Allocator,
    graceful_shutdown::{ender::PodEnder, keeper::InhibitorKeeper},
    housekeeping::{Directories, Housekeeping},
    lifecycle::{Admission, NodeFacts, NodeSource},
    node::shutdown::{Logind, NodeShutdown, login_manager::LoginManager},
    pleg::{Pleg, PodCache},
    pod::{manager::PodManager, mirror::MirrorPods, removals::Removals},
    pod_syncer::{PodStarts, Syncer},
    pod_worker::PodWorkers,
    sources::update::PodUpdate,
    status::{StatusManager, sync::StatusSync},
    sync_loop::{Inbox, LoopMonitor, SyncLoop},
};

/// Between attempts to reach the runtime at startup.
const CONNECT_PERIOD: Duration = Duration::from_secs(1);
/// Capacity of the channels of pod and probe events to the sync loop.
const EVENTS: usize = 1000;

/// Why the kubelet stopped.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// A CRI call failed.
    #[error(transparent)]
    Cri(#[from] CriError),
    /// The kubelet was stopped before it was done.
    #[error("stopped before it was done")]
    Cancelled,
}

/// A kubelet. Cheap to clone; clones share their state.
#[derive(Clone)]
pub struct Kubelet(Arc<Parts>);

struct Parts {
    options: KubeletOptions,
    local_node: Arc<LocalNode>,
    cri: CriClient,
    readiness: Arc<RuntimeReadiness>,
    /// None on a standalone node.
    client: Option<Client>,
    mirrors: Option<Arc<MirrorPods>>,
    csi_node: Option<Arc<CsiNodeKeeper>>,
    sources_ready: Box<dyn Fn() -> bool + Send + Sync>,
    pods: Arc<PodManager>,
    statuses: Arc<StatusManager>,
    runtime: Arc<RuntimeManager>,
    volumes: Arc<VolumeManager>,
    plugin_manager: PluginManager,
    probe_results: Arc<ProbeResults>,
    cache: Arc<PodCache>,
    pleg: Arc<Pleg>,
    monitor: LoopMonitor,
    admission: Admission,
    node: Arc<NodeSource>,
    shutdown: Arc<NodeShutdown>,
    events: EventRecorder,
    starts: Arc<PodStarts>,
    /// Set once the runtime answers.
    running: OnceLock<Running>,
}

/// The parts that run pods, for metrics.
struct Running {
    workers: Arc<PodWorkers<Syncer>>,
    probes: Arc<ProbeManager>,
}

impl fmt::Debug for Kubelet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubelet")
            .field("node_name", &self.0.local_node.name)
            .finish_non_exhaustive()
    }
}

/// A node's membership in a cluster.
#[derive(Clone)]
pub struct Membership {
    /// Client of the API server.
    pub client: Client,
    /// The current node object; `None` until it is known.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// The node object of an earlier kubelet, if one was checkpointed.
    pub last_node: Option<Arc<Node>>,
    /// Checkpointed statuses of pods that ran or had ended under an earlier kubelet. The API server
    /// may never have received them.
    pub last_statuses: BTreeMap<PodUid, PodStatus>,
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").finish_non_exhaustive()
    }
}

/// Whether pods without a source are killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Orphans {
    /// They are killed.
    End,
    /// They keep running.
    Leave,
}

impl Kubelet {
    /// A kubelet that runs pods on the runtime behind `cri`. It kills no orphaned pod until
    /// `sources_ready` returns true, which means that every source was read. Objects that pods
    /// reference are read from `objects`. Pod statuses are sent to the API server of `membership`;
    /// a node without one is standalone. `events` receives events of pods.
    pub fn new(
        options: KubeletOptions,
        cri: CriClient,
        objects: Arc<dyn Objects>,
        membership: Option<Membership>,
        events: EventRecorder,
        sources_ready: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        let local_node = Arc::new(options.node.clone());
        let cache = Arc::<PodCache>::default();
        let probe_results = Arc::<ProbeResults>::default();
        let pods = Arc::<PodManager>::default();
        let mirrors = membership.clone().map(|membership| {
            let node_name = local_node.name.clone();
            let (objects, pods) = (Arc::clone(&objects), Arc::clone(&pods));
            Arc::new(MirrorPods::new(membership.client, node_name, objects, pods))
        });
        let host_ips = HostIps::new(
            local_node.ips.clone(),
            membership
                .as_ref()
                .map(|membership| membership.node.clone()),
        );
        let runtime = Arc::new(RuntimeManager::new(
            cri.clone(),
            Arc::clone(&local_node),
            options.runtime.clone(),
            host_ips.clone(),
            Arc::clone(&objects),
            Arc::clone(&probe_results),
            events.clone(),
        ));
        let node = Arc::new(NodeSource::new(
            NodeFacts::standalone(
                &local_node,
                &options.node_labels,
                &options.capacity,
                runtime.machine(),
            ),
            membership
                .as_ref()
                .map(|membership| membership.node.clone()),
            membership
                .as_ref()
                .and_then(|membership| membership.last_node.clone()),
        ));
        let csi_node = membership.as_ref().map(|membership| {
            let (client, node) = (membership.client.clone(), membership.node.clone());
            Arc::new(CsiNodeKeeper::new(client, &local_node.name, node))
        });
        let statuses = StatusManager::new(host_ips, Arc::clone(&probe_results));
        let client = membership.map(|membership| {
            statuses.remember(membership.last_statuses);
            membership.client
        });
        let shutdown = Arc::new(NodeShutdown::new(&local_node.root_dir));
        let host = VolumeHost {
            root_dir: local_node.root_dir.clone(),
            node_name: local_node.name.clone(),
            selinux: local_node.selinux.clone(),
            objects,
            machine: Arc::new(runtime.machine().clone()),
            events: events.clone(),
        };
        let drivers = Arc::<DriverStore>::default();
        let plugins = plugins::all(&host, Arc::clone(&drivers));
        let csi: Arc<dyn PluginHandler> = Arc::new(CsiRegistration {
            drivers,
            node: csi_node.clone(),
        });
        let plugin_manager = PluginManager::new(
            local_node.root_dir.join("plugins_registry"),
            Handlers::from([(csi::PLUGIN_TYPE.to_owned(), csi)]),
        );
        Self(Arc::new(Parts {
            sources_ready: Box::new(sources_ready),
            pods,
            statuses: Arc::new(statuses),
            runtime,
            volumes: Arc::new(VolumeManager::new(host, plugins)),
            plugin_manager,
            probe_results,
            pleg: Arc::new(Pleg::new(cri.clone(), Arc::clone(&cache))),
            cache,
            monitor: LoopMonitor::default(),
            admission: Admission::new(&options.allowed_unsafe_sysctls, Arc::clone(&shutdown)),
            node,
            shutdown,
            events,
            starts: Arc::default(),
            running: OnceLock::new(),
            options,
            local_node,
            readiness: Arc::new(RuntimeReadiness::new(cri.clone())),
            cri,
            client,
            mirrors,
            csi_node,
        }))
    }

    /// Runs the pods of `updates` until cancelled; they keep running then. Waits for the runtime
    /// first, without a time limit. Node shutdowns are detected through logind.
    ///
    /// # Errors
    /// None at present: failures are retried.
    pub async fn run(
        &self,
        updates: mpsc::Receiver<PodUpdate>,
        cancel: CancellationToken,
    ) -> Result<(), KubeletError> {
        self.run_under(&Logind::default(), updates, cancel).await
    }

    /// [`run`](Self::run) with another login manager.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_under(
        &self,
        login_manager: &impl LoginManager,
        updates: mpsc::Receiver<PodUpdate>,
        cancel: CancellationToken,
    ) -> Result<(), KubeletError> {
        self.0
            .events
            .normal(Subject::Node, reason::STARTING, "Starting kubelet.");
        self.run_pods(updates, Orphans::End, Some(login_manager), cancel)
            .await;
        Ok(())
    }

    /// Runs the registration of plugins in the root directory until cancelled. Without it, CSI
    /// volumes wait for their drivers.
    pub async fn run_plugin_manager(&self, cancel: CancellationToken) {
        self.0.plugin_manager.run(cancel).await;
    }

    pub(crate) async fn run_pods(
        &self,
        updates: mpsc::Receiver<PodUpdate>,
        orphans: Orphans,
        login_manager: Option<&impl LoginManager>,
        cancel: CancellationToken,
    ) {
        let wait = self.wait_for_runtime();
        if cancel.run_until_cancelled(wait).await.is_none() {
            return;
        }
        let parts = &*self.0;
        let restore = parts.runtime.images().restore();
        if cancel.run_until_cancelled(restore).await.is_none() {
            return;
        }
        parts.runtime.restore_grants().await;
        let (probe_changes_in, probe_changes) = mpsc::channel(EVENTS);
        let probes = {
            let statuses = Arc::clone(&parts.statuses);
            Arc::new(ProbeManager::new(
                parts.cri.clone(),
                parts.events.clone(),
                move |uid| statuses.get(uid),
                Arc::clone(&parts.probe_results),
                probe_changes_in,
                cancel.clone(),
            ))
        };
        let removals = Removals::default();
        let syncer = Arc::new(Syncer {
            local_node: Arc::clone(&parts.local_node),
            max_container_restart_period: parts.options.max_container_restart_period,
            admission: parts.admission.clone(),
            node: Arc::clone(&parts.node),
            pods: Arc::clone(&parts.pods),
            runtime: Arc::clone(&parts.runtime),
            volumes: Arc::clone(&parts.volumes),
            cache: Arc::clone(&parts.cache),
            pleg: Arc::clone(&parts.pleg),
            statuses: Arc::clone(&parts.statuses),
            probes: Arc::clone(&probes),
            mirrors: parts.mirrors.clone(),
            events: parts.events.clone(),
            starts: Arc::clone(&parts.starts),
            readiness: Arc::clone(&parts.readiness),
            removals: removals.clone(),
        });
        let workers = Arc::new(PodWorkers::new(
            syncer,
            parts.options.sync_frequency,
            parts.options.max_container_restart_period,
            cancel.clone(),
        ));
        // `run_pods` is called once.
        let _ = parts.running.set(Running {
            workers: Arc::clone(&workers),
            probes: Arc::clone(&probes),
        });
        let (events_in, events) = mpsc::channel(EVENTS);
        let housekeeping = (orphans == Orphans::End).then(|| Housekeeping {
            node: Arc::clone(&parts.local_node),
            pods: Arc::clone(&parts.pods),
            workers: Arc::clone(&workers),
            probes: Arc::clone(&probes),
            pleg: Arc::clone(&parts.pleg),
            volumes: Arc::clone(&parts.volumes),
            mirrors: parts.mirrors.clone(),
            directories: Directories::default(),
            removals,
        });
        let sync_loop = SyncLoop {
            admission: &parts.admission,
            node: &parts.node,
            shutdown: &parts.shutdown,
            runtime: &parts.runtime,
            readiness: &parts.readiness,
            pleg: &parts.pleg,
            pods: &parts.pods,
            statuses: &parts.statuses,
            workers: &workers,
            monitor: &parts.monitor,
            mirrors: parts.mirrors.as_deref(),
            events: &parts.events,
            housekeeping,
            sources_ready: &*parts.sources_ready,
            rejected: HashSet::new(),
            undecided: HashSet::new(),
            waiting: BTreeMap::new(),
        };
        let allocator = Allocator {
            admission: &parts.admission,
            node: &parts.node,
            runtime: &parts.runtime,
            pods: &parts.pods,
            workers: &workers,
            events: &parts.events,
            sources_ready: &*parts.sources_ready,
            waiting: BTreeMap::new(),
        };
        let rotation = parts.options.log_rotation.map(|policy| LogRotation {
            policy,
            cri: parts.cri.clone(),
            running: self::logs::running_logs(parts),
        });
        let rotate = async {
            if let Some(rotation) = rotation {
                rotation.run(cancel.clone()).await;
            }
        };
        let keeper = login_manager.map(|login_manager| InhibitorKeeper {
            login_manager,
            periods: &parts.options.shutdown_grace_periods,
            shutdown: &parts.shutdown,
            ender: PodEnder {
                pods: &parts.pods,
                statuses: &parts.statuses,
                workers: &workers,
            },
            events: &parts.events,
        });
        let hold_up_shutdowns = async {
            if let Some(keeper) = keeper {
                keeper.run(cancel.clone()).await;
            }
        };
        // All in one task: no pod is admitted while the shutdown manager lists the pods, and no pod
        // grows before the loop has processed all updates of the sources.
        tokio::join!(
            hold_up_shutdowns,
            rotate,
            self.speak_to_api_server(cancel.clone()),
            parts.readiness.run(cancel.clone()),
            parts.pleg.run(events_in, cancel.clone()),
            parts.volumes.run(cancel.clone()),
            sync_loop.run(Inbox::new(updates, probe_changes, events), cancel.clone()),
            allocator.run(cancel.clone()),
        );
        workers.ended().await;
        probes.ended().await;
        info!("stopped; the pods run on");
    }

    /// Synchronises mirror pods, pod statuses, the `CSINode` object and attached volumes with the
    /// API server, if there is one.
    async fn speak_to_api_server(&self, cancel: CancellationToken) {
        let parts = &*self.0;
        let (Some(client), Some(mirrors)) = (&parts.client, &parts.mirrors) else {
            return;
        };
        let (Some(csi_node), Some(node)) = (&parts.csi_node, &parts.node.object) else {
            return;
        };
        let (statuses, pods) = (Arc::clone(&parts.statuses), Arc::clone(&parts.pods));
        let statuses = StatusSync::new(client.clone(), statuses, pods);
        tokio::join!(
            mirrors.run(cancel.clone()),
            csi_node.run(cancel.clone()),
            parts.volumes.follow_node(node.clone(), cancel.clone()),
            statuses.run(cancel),
        );
    }

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
                        "the runtime answers"
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
                            "the runtime does not answer; trying on"
                        );
                    }
                    failing = true;
                    tokio::time::sleep(CONNECT_PERIOD).await;
                }
            }
        }
    }
}
