//! The kubelet: assembles its parts.

mod logs;
mod metrics;
pub mod options;
pub mod pod_runner;
mod reports;
mod state;
mod stats;
mod view;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock},
};

use k8s_openapi::api::core::v1::{Node, PodStatus};
use kube::Client;
use kubelet_api_client::{events::EventRecorder, objects::Objects};
use kubelet_container_manager::{PodCgroups, SystemCgroups};
use kubelet_cri_client::{CriClient, CriError, readiness::RuntimeReadiness};
use kubelet_device_manager::DeviceManager;
use kubelet_dra_manager::{ClusterNode, DraManager, DraParts};
use kubelet_eviction::EvictionManager;
use kubelet_garbage_collector::{ContainerCollector, ImageCollector};
use kubelet_host::{clock, host_ips::HostIps, local_node::LocalNode, machine::Machine};
use kubelet_node::{capacity, shutdown::NodeShutdown};
use kubelet_plugin_manager::{Handlers, PluginHandler, PluginManager};
use kubelet_pod_resources::PodResources;
use kubelet_pod_spec::identity::PodUid;
use kubelet_prober::{ProbeManager, results::ProbeResults};
use kubelet_resource_analyzer::ResourceAnalyzer;
use kubelet_resource_managers::ResourceManagers;
use kubelet_runtime::{RuntimeManager, RuntimeParts};
use kubelet_stats::StatsProvider;
use kubelet_volume::{
    VolumeHost, VolumeManager,
    csi::{self, AllocatableKeeper, CsiRegistration, DriverStore, csi_node::CsiNodeKeeper},
    plugins,
};
use tokio::{
    net::UnixListener,
    sync::{mpsc, watch},
};
use tokio_util::sync::CancellationToken;

use self::{options::KubeletOptions, pod_runner::PodRunner, stats::NodeSubjects};
use crate::{
    garbage_collection::{NodeImages, WorkerStates},
    housekeeping::OrphanMetrics,
    lifecycle::{Admission, NodeFacts, NodeSource},
    measured_pods::MeasuredPods,
    oom_watcher::OomWatcher,
    pleg::{Pleg, PodCache},
    pod::{manager::PodManager, mirror::MirrorPods, removals::Removals},
    pod_syncer::{PodStarts, Syncer},
    pod_worker::PodWorkers,
    resource_pods::ResourcePods,
    status::StatusManager,
    sync_loop::LoopMonitor,
};

/// Capacity of the channel of changed probe results to the sync loop.
const PROBE_CHANGES: usize = 1000;

/// Why the kubelet stopped.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// A CRI call failed.
    #[error(transparent)]
    Cri(#[from] CriError),
    /// The kubelet was stopped before it finished.
    #[error("the kubelet was stopped before it finished")]
    Cancelled,
}

/// A kubelet, whose pods a [`PodRunner`] runs. Cheap to clone; clones share their state.
#[derive(Clone)]
pub struct Kubelet(Arc<Shared>);

struct Shared {
    options: KubeletOptions,
    local_node: Arc<LocalNode>,
    cri: CriClient,
    readiness: Arc<RuntimeReadiness>,
    /// None on a standalone node.
    client: Option<Client>,
    mirrors: Option<Arc<MirrorPods>>,
    csi_node: Option<Arc<CsiNodeKeeper>>,
    csi_allocatable: Option<AllocatableKeeper>,
    sources_ready: SourcesReady,
    pods: Arc<PodManager>,
    statuses: Arc<StatusManager>,
    runtime: Arc<RuntimeManager>,
    managers: Arc<ResourceManagers>,
    dra: DraManager,
    cgroups: Arc<PodCgroups>,
    stats: Arc<StatsProvider>,
    system_cgroups: Arc<SystemCgroups>,
    volumes: Arc<VolumeManager>,
    plugin_manager: PluginManager,
    probes: Arc<ProbeManager>,
    cache: Arc<PodCache>,
    pleg: Arc<Pleg>,
    oom_watcher: Arc<OomWatcher>,
    workers: Arc<PodWorkers<Syncer>>,
    monitor: LoopMonitor,
    admission: Admission,
    node: Arc<NodeSource>,
    shutdown: Arc<NodeShutdown>,
    eviction: Arc<EvictionManager>,
    images: ImageCollector,
    containers: ContainerCollector,
    events: EventRecorder,
    starts: Arc<PodStarts>,
    csi_drivers: Arc<DriverStore>,
    analyzer: ResourceAnalyzer,
    pod_resources: PodResources,
    orphans: Arc<OrphanMetrics>,
}

impl fmt::Debug for Kubelet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubelet")
            .field("node_name", &self.0.local_node.name)
            .finish_non_exhaustive()
    }
}

/// Returns true once every source of pods was read.
pub type SourcesReady = Arc<dyn Fn() -> bool + Send + Sync>;

/// What a kubelet is built from.
pub struct KubeletParts {
    /// Its options.
    pub options: KubeletOptions,
    /// The runtime that runs the pods.
    pub cri: CriClient,
    /// The objects that pods reference.
    pub objects: Arc<dyn Objects>,
    /// The API server that receives the statuses of pods; none on a standalone node.
    pub membership: Option<Membership>,
    /// What containers have for themselves.
    pub managers: Arc<ResourceManagers>,
    /// Receives the events of the node and its pods.
    pub events: EventRecorder,
    /// Whether every source of pods was read. Until then, no orphaned pod is killed.
    pub sources_ready: SourcesReady,
}

impl fmt::Debug for KubeletParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeletParts").finish_non_exhaustive()
    }
}

/// A node's membership in a cluster.
#[derive(Clone)]
pub struct Membership {
    /// Client of the API server.
    pub client: Client,
    /// The current node object; `None` until it is known.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// Whether the node controller had given the node up before this kubelet; see
    /// [`kubelet_node::watch::NodeWatch::was_given_up`].
    pub was_given_up: Arc<OnceLock<bool>>,
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

impl Kubelet {
    /// A kubelet, and what runs its pods until `cancel` is cancelled.
    pub fn new(parts: KubeletParts, cancel: &CancellationToken) -> (Self, PodRunner) {
        let KubeletParts {
            options,
            cri,
            objects,
            membership,
            managers,
            events,
            sources_ready,
        } = parts;
        let cancel = cancel.child_token();
        let local_node = Arc::new(options.node.clone());
        let (client, node_object, was_given_up, last_node, last_statuses) = match membership {
            Some(Membership {
                client,
                node,
                was_given_up,
                last_node,
                last_statuses,
            }) => (
                Some(client),
                Some(node),
                was_given_up,
                last_node,
                last_statuses,
            ),
            None => (None, None, Arc::default(), None, BTreeMap::new()),
        };
        let pods = Arc::<PodManager>::default();
        let cache = Arc::<PodCache>::default();
        let probe_results = Arc::<ProbeResults>::default();
        let removals = Removals::default();
        let starts = Arc::<PodStarts>::default();
        let readiness = Arc::new(RuntimeReadiness::new(cri.clone()));
        let oom_watcher = Arc::new(OomWatcher::new(options.kernel_log.clone(), events.clone()));
        let pleg = Arc::new(Pleg::new(
            cri.clone(),
            Arc::clone(&cache),
            Arc::clone(&oom_watcher),
        ));
        let shutdown = Arc::new(NodeShutdown::new(&local_node.root_dir));
        let eviction = EvictionManager::new(options.eviction.clone(), events.clone());
        let eviction = Arc::new(eviction);
        let admission = Admission::new(
            &options.allowed_unsafe_sysctls,
            options.pod_features,
            Arc::clone(&shutdown),
            Arc::clone(&eviction),
            Arc::clone(&managers),
        );
        let cluster = client.clone().zip(node_object.clone());
        let dra = DraManager::start(DraParts {
            root_dir: local_node.root_dir.clone(),
            objects: Arc::clone(&objects),
            cluster: cluster.map(|(client, object)| ClusterNode {
                client,
                name: local_node.name.clone(),
                object,
            }),
        });
        let host_ips = HostIps::new(local_node.ips.clone(), node_object.clone());
        let statuses = StatusManager::new(
            host_ips.clone(),
            Arc::clone(&probe_results),
            Arc::clone(&managers),
            dra.clone(),
            options.pod_features,
            was_given_up,
        );
        statuses.remember(last_statuses);
        let statuses = Arc::new(statuses);
        let mirrors = client.clone().map(|client| {
            let name = local_node.name.clone();
            let (objects, pods) = (Arc::clone(&objects), Arc::clone(&pods));
            Arc::new(MirrorPods::new(client, name, objects, pods))
        });
        let cgroups = Arc::<PodCgroups>::default();
        let machine = Machine::read();
        let monitor = LoopMonitor::new(options.sync_frequency);
        let capacity = capacity::read(&machine, &local_node.root_dir, &options.capacity);
        let allocatable = Arc::new(capacity::allocatable(&capacity, &options.capacity));
        let runtime = Arc::new(RuntimeManager::new(RuntimeParts {
            cri: cri.clone(),
            node: Arc::clone(&local_node),
            machine,
            allocatable: Arc::clone(&allocatable),
            options: options.runtime.clone(),
            host_ips,
            objects: Arc::clone(&objects),
            probes: Arc::clone(&probe_results),
            cgroups: Arc::clone(&cgroups),
            managers: Arc::clone(&managers),
            dra: dra.clone(),
            events: events.clone(),
        }));
        let facts = NodeFacts::standalone(&local_node, &options.node_labels, &allocatable);
        let node = NodeSource::new(facts, node_object.clone(), last_node, Arc::clone(&managers));
        let node = Arc::new(node.with_client(client.clone()));
        let csi_node = client
            .clone()
            .zip(node_object)
            .map(|(client, object)| Arc::new(CsiNodeKeeper::new(client, &local_node.name, object)));
        let csi_drivers = Arc::<DriverStore>::default();
        let csi_allocatable = csi_node.clone().map(|node| AllocatableKeeper {
            drivers: Arc::clone(&csi_drivers),
            node,
            objects: Arc::clone(&objects),
        });
        let volume_host = VolumeHost {
            root_dir: local_node.root_dir.clone(),
            node_name: local_node.name.clone(),
            selinux: local_node.selinux.clone(),
            objects,
            allocatable,
            events: events.clone(),
        };
        let handlers = plugin_handlers(&csi_drivers, csi_node.clone(), managers.devices(), &dra);
        let plugin_manager =
            PluginManager::new(local_node.root_dir.join("plugins_registry"), handlers);
        let plugins = plugins::all(
            &volume_host,
            Arc::clone(&csi_drivers),
            &options.volume_plugin_dir,
        );
        let volumes = VolumeManager::new(volume_host, plugins);
        let volumes = Arc::new(volumes);
        let (changes, probe_changes) = mpsc::channel(PROBE_CHANGES);
        let probes = Arc::new(ProbeManager::new(
            cri.clone(),
            events.clone(),
            {
                let statuses = Arc::clone(&statuses);
                move |uid| statuses.get(uid)
            },
            probe_results,
            changes,
            cancel.clone(),
        ));
        let syncer = Arc::new(Syncer {
            local_node: Arc::clone(&local_node),
            restart_delays: options.restart_delays,
            admission: admission.clone(),
            node: Arc::clone(&node),
            pods: Arc::clone(&pods),
            runtime: Arc::clone(&runtime),
            cgroups: Arc::clone(&cgroups),
            dra: dra.clone(),
            volumes: Arc::clone(&volumes),
            cache: Arc::clone(&cache),
            pleg: Arc::clone(&pleg),
            statuses: Arc::clone(&statuses),
            probes: Arc::clone(&probes),
            mirrors: mirrors.clone(),
            events: events.clone(),
            starts: Arc::clone(&starts),
            readiness: Arc::clone(&readiness),
            removals: removals.clone(),
        });
        let workers = Arc::new(PodWorkers::new(
            syncer,
            options.sync_frequency,
            options.restart_delays,
            cancel.clone(),
        ));
        let system_cgroups = SystemCgroups::new(options.system_cgroups.clone());
        let system_cgroups = Arc::new(system_cgroups);
        let subjects = Arc::new(NodeSubjects {
            pods: Arc::clone(&pods),
            cache: Arc::clone(&cache),
            cgroups: Arc::clone(&cgroups),
            system_cgroups: Arc::clone(&system_cgroups),
            started_at: i64::try_from(clock::now().as_nanosecond()).unwrap_or_default(),
        });
        let stats = StatsProvider::new(subjects, cri.clone(), &local_node.root_dir);
        let stats = Arc::new(stats);
        let images = ImageCollector::new(
            cri.clone(),
            options.image_gc,
            &local_node.root_dir,
            events.clone(),
            Arc::new(NodeImages {
                stats: Arc::clone(&stats),
                pods: Arc::clone(&pods),
                statuses: Arc::clone(&statuses),
                workers: Arc::clone(&workers),
                runtime: Arc::clone(&runtime),
            }),
        );
        let containers = ContainerCollector::new(
            cri.clone(),
            options.container_gc,
            &local_node.pod_logs_dir,
            events.clone(),
            Arc::new(WorkerStates {
                workers: Arc::clone(&workers),
                pleg: Arc::clone(&pleg),
                sources_ready: Arc::clone(&sources_ready),
            }),
        );
        let measured = MeasuredPods {
            pods: Arc::clone(&pods),
            statuses: Arc::clone(&statuses),
            workers: Arc::clone(&workers),
            volumes: Arc::clone(&volumes),
            node: Arc::clone(&local_node),
        };
        let period = options.volume_stats_period;
        let analyzer = ResourceAnalyzer::new(Box::new(measured), period, events.clone());
        let source = ResourcePods {
            pods: Arc::clone(&pods),
            statuses: Arc::clone(&statuses),
            workers: Arc::clone(&workers),
            lists_active: options.lists_active_pods,
        };
        let pod_resources = PodResources::new(Box::new(source), Arc::clone(&managers), dra.clone());
        let kubelet = Self(Arc::new(Shared {
            system_cgroups,
            options,
            local_node,
            cri,
            readiness,
            client,
            mirrors,
            csi_node,
            csi_allocatable,
            sources_ready,
            pods,
            statuses,
            runtime,
            managers,
            dra,
            cgroups,
            stats,
            volumes,
            plugin_manager,
            probes,
            cache,
            pleg,
            oom_watcher,
            workers,
            monitor,
            admission,
            node,
            shutdown,
            eviction,
            images,
            containers,
            events,
            starts,
            csi_drivers,
            analyzer,
            pod_resources,
            orphans: Arc::default(),
        }));
        let runner = PodRunner::new(kubelet.clone(), probe_changes, removals, cancel);
        (kubelet, runner)
    }

    /// Serves the pod resources API until cancelled.
    pub async fn serve_pod_resources(&self, listener: UnixListener, cancel: CancellationToken) {
        self.0.pod_resources.clone().serve(listener, cancel).await;
    }

    /// The manager of devices, if this kubelet has one.
    pub fn device_manager(&self) -> Option<&DeviceManager> {
        self.0.managers.devices()
    }

    /// Runs the registration of plugins in the root directory until cancelled. Without it, CSI
    /// volumes and resource claims wait for their drivers.
    pub async fn run_plugin_manager(&self, cancel: CancellationToken) {
        self.0.plugin_manager.run(cancel).await;
    }
}

/// The handlers of plugins by their type.
fn plugin_handlers(
    drivers: &Arc<DriverStore>,
    csi_node: Option<Arc<CsiNodeKeeper>>,
    devices: Option<&DeviceManager>,
    dra: &DraManager,
) -> Handlers {
    let csi: Arc<dyn PluginHandler> = Arc::new(CsiRegistration {
        drivers: Arc::clone(drivers),
        node: csi_node,
    });
    let dra: Arc<dyn PluginHandler> = Arc::new(dra.clone());
    let mut handlers = Handlers::from([
        (csi::PLUGIN_TYPE.to_owned(), csi),
        (kubelet_dra_manager::PLUGIN_TYPE.to_owned(), dra),
    ]);
    if let Some(devices) = devices {
        let devices: Arc<dyn PluginHandler> = Arc::new(devices.clone());
        handlers.insert(kubelet_device_manager::PLUGIN_TYPE.to_owned(), devices);
    }
    handlers
}
