//! One run of the node agent: assembles and runs its parts.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::FutureExt as _;
use kubelet_api_client::{
    events::{EventRecorder, Subject, reason},
    objects::NoObjects,
};
use kubelet_cri_client::{CriClient, CriError, CriOptions};
use kubelet_host::{
    iptables::{self, UtilityChains},
    kernel_tunables::{self, ProtectedTunables},
    machine::Machine,
    selinux, version,
};
use kubelet_node::capacity::{self, OverReserved};
use kubelet_resource_managers::StartError;
use kubelet_server::{ClusterDependencies, ServerError, Servers};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{info, warn};

use crate::{
    cluster::{Cluster, ClusterError},
    config::settings::Settings,
    host,
    kubelet::{Kubelet, KubeletError, KubeletParts, pod_runner::PodRunner},
    lock_file::{LockFile, LockFileError},
    resource_managers::{self, Devices, device_dir},
    root_dir::{self, RootDirError, RootDirLock},
    run_once::RunOnceResult,
    sources::{
        file::FileSource,
        http::UrlSource,
        pod_config::PodConfig,
        update::{PodUpdate, Source},
    },
    watchdog::{Watchdog, WatchdogError},
};

/// Between attempts to pass the pod CIDR to the runtime.
const POD_CIDR_RETRY: Duration = Duration::from_secs(10);

/// Why the node agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The root directory is unusable.
    #[error(transparent)]
    RootDir(#[from] RootDirError),
    /// The lock file is unusable.
    #[error(transparent)]
    LockFile(#[from] LockFileError),
    /// A server cannot start.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The socket of the pod resources API cannot be created.
    #[error("cannot serve the pod resources API on {}: {source}", path.display())]
    PodResources {
        /// Path of the socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The socket for the registration of device plugins cannot be created.
    #[error("cannot serve the registration of device plugins in {}: {source}", path.display())]
    DevicePlugins {
        /// The directory of the socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The container runtime is unreachable.
    #[error("cannot reach the container runtime at {endpoint}: {source}")]
    Runtime {
        /// Its endpoint (`containerRuntimeEndpoint`).
        endpoint: String,
        /// The cause.
        source: CriError,
    },
    /// Swap is on, and `failSwapOn` is true. Lists the swap areas.
    #[error(
        "swap is on ({}), but failSwapOn (--fail-swap-on) is true; turn swap off (swapoff -a), or \
         set the field to false and memorySwap.swapBehavior to how pods may use swap",
        .0.join(", ")
    )]
    SwapOn(Vec<String>),
    /// CPUs and memory cannot be managed as configured.
    #[error(transparent)]
    Managers(#[from] StartError),
    /// More is reserved than the node has.
    #[error(transparent)]
    OverReserved(#[from] OverReserved),
    /// Kernel tunables differ, and `protectKernelDefaults` is true.
    #[error(transparent)]
    Tunables(#[from] ProtectedTunables),
    /// The service manager's watchdog has too short a timeout.
    #[error(transparent)]
    Watchdog(#[from] WatchdogError),
    /// The cluster cannot be joined as configured.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The kubelet's core failed.
    #[error(transparent)]
    Kubelet(#[from] KubeletError),
    /// Signal handlers cannot be installed.
    #[error("cannot listen for signals: {0}")]
    Signals(#[source] io::Error),
    /// `--runonce` without a source of pods.
    #[error(
        "--runonce requires pods: set --pod-manifest-path (staticPodPath) or --manifest-url \
         (staticPodURL)"
    )]
    NothingToRun,
}

/// Runs the node agent until SIGTERM or SIGINT; the pods keep running. With `--runonce`, starts the
/// pods and returns the result of each.
///
/// # Errors
/// A part failed to start, or the core failed.
pub async fn run(settings: Settings) -> Result<Vec<RunOnceResult>, RunError> {
    for warning in &settings.warnings {
        warn!("{warning}");
    }
    let options = &settings.options;
    if settings.fail_swap_on {
        check_swap()?;
    }
    kernel_tunables::apply(Path::new(kernel_tunables::ROOT), settings.tunables)?;
    let watchdog = Watchdog::of_this_process()?;
    info!(
        version = version::VERSION,
        node = options.node.name,
        root_dir = %options.node.root_dir.display(),
        runtime = options.cri.runtime_endpoint,
        "starting"
    );
    let (tasks, cancel) = (TaskTracker::new(), CancellationToken::new());
    cancel_on_signals(&cancel)?;
    let lock_file = match &settings.lock_file {
        Some(options) => match LockFile::acquire(options, &cancel).await? {
            Some(lock_file) => Some(lock_file),
            None => return Ok(Vec::new()),
        },
        None => None,
    };
    if let Some(lock_file) = lock_file {
        tasks.spawn(give_way(lock_file, cancel.clone()));
    }
    let _lock = RootDirLock::acquire(&options.node.root_dir)?;
    if let Err(error) = root_dir::share(&options.node.root_dir) {
        warn!(
            %error,
            "cannot share the mounts below --root-dir: containers cannot have mountPropagation; \
             unmount it, or make the mounts shared (mount --make-rshared /), and restart"
        );
    }
    let machine = Machine::read();
    let capacity = capacity::read(&machine, &options.node.root_dir, &options.capacity);
    capacity::check(&capacity, &options.capacity)?;
    let devices = match settings.run_once {
        true => Devices::None,
        false => Devices::Managed,
    };
    let managers = resource_managers::start(options, &machine, devices);
    let managers = managers.boxed().await?;
    let managers = Arc::new(managers);
    if options.node.selinux.is_some() {
        selinux::label_plugin_dirs(&options.node.root_dir);
    }
    let cri = connect(&options.cri).boxed().await?;
    let cluster = join_cluster(&settings).boxed().await?;
    if settings.cluster.is_none() && !settings.pod_cidr.is_empty() {
        let report = report_pod_cidr(cri.clone(), settings.pod_cidr.clone());
        let cancel = cancel.clone();
        tasks.spawn(async move { cancel.run_until_cancelled(report).await });
    }
    let (pod_config, updates) = PodConfig::new();
    spawn_sources(&settings, cluster.as_ref(), &pod_config, &tasks, &cancel);
    let parts = KubeletParts {
        options: options.clone(),
        cri,
        objects: match &cluster {
            Some(cluster) => cluster.objects(options.sync_frequency, &tasks, &cancel),
            None => Arc::new(NoObjects),
        },
        membership: cluster.as_ref().map(Cluster::membership),
        managers,
        events: match &cluster {
            Some(cluster) => cluster.events().clone(),
            None => EventRecorder::default(),
        },
        sources_ready: Arc::new(move || pod_config.seen_all_sources()),
    };
    let events = parts.events.clone();
    let (kubelet, pods) = Kubelet::new(parts, &cancel);
    let dependencies = match cluster {
        Some(cluster) => cluster.spawn(&kubelet, &tasks, &cancel),
        None => ClusterDependencies::default(),
    };
    let result = if settings.run_once {
        run_once(pods, &settings, updates).boxed().await
    } else {
        if let Some(watchdog) = watchdog {
            let (health, cancel) = (kubelet.clone(), cancel.clone());
            tasks.spawn(watchdog.serve(move || health.healthy(), cancel));
        }
        serve(
            kubelet,
            pods,
            &settings,
            dependencies,
            updates,
            &tasks,
            &cancel,
        )
        .boxed()
        .await
        .inspect_err(|error| events.warning(Subject::Node, reason::KUBELET_SETUP_FAILED, error))
        .map(|()| Vec::new())
    };
    cancel.cancel();
    tasks.close();
    tasks.wait().await;
    info!("stopped; pods keep running");
    result
}

/// Holds the lock file, and stops the kubelet when another process wants it.
async fn give_way(mut lock_file: LockFile, cancel: CancellationToken) {
    let contention = lock_file.contention();
    if cancel.run_until_cancelled(contention).await.is_some() {
        info!("another process wants the lock file (--exit-on-lock-contention)");
        cancel.cancel();
    }
}

/// Refuses to start while swap is on.
fn check_swap() -> Result<(), RunError> {
    let swap = host::swap();
    if swap.is_empty() {
        Ok(())
    } else {
        Err(RunError::SwapOn(swap))
    }
}

async fn connect(options: &CriOptions) -> Result<CriClient, RunError> {
    CriClient::connect(options)
        .await
        .map_err(|source| RunError::Runtime {
            endpoint: options.runtime_endpoint.clone(),
            source,
        })
}

/// Joins the cluster of the settings. `--runonce` runs only the pods of files and URLs, in a
/// cluster or not.
async fn join_cluster(settings: &Settings) -> Result<Option<Cluster>, ClusterError> {
    match &settings.cluster {
        Some(cluster) if !settings.run_once => {
            let node_name = &settings.options.node.name;
            Ok(Some(Cluster::join(cluster.clone(), node_name).await?))
        }
        _ => Ok(None),
    }
}

/// Starts the sources of pods: files, a URL, and the API server.
fn spawn_sources(
    settings: &Settings,
    cluster: Option<&Cluster>,
    pod_config: &PodConfig,
    tasks: &TaskTracker,
    cancel: &CancellationToken,
) {
    let node_name = &settings.options.node.name;
    if let Some(manifests) = &settings.manifests {
        let source = FileSource {
            path: manifests.path.clone(),
            node_name: node_name.clone(),
            check_frequency: manifests.check_frequency,
        };
        tasks.spawn(source.run(pod_config.source(Source::File), cancel.clone()));
    }
    if let Some(url) = &settings.url {
        let source = UrlSource {
            url: url.url.clone(),
            headers: url.headers.clone(),
            node_name: node_name.clone(),
            check_frequency: url.check_frequency,
        };
        tasks.spawn(source.run(pod_config.source(Source::Http), cancel.clone()));
    }
    if let Some(cluster) = cluster {
        let source = cluster.source();
        tasks.spawn(source.run(pod_config.source(Source::Api), cancel.clone()));
    }
}

async fn run_once(
    pods: PodRunner,
    settings: &Settings,
    updates: mpsc::Receiver<PodUpdate>,
) -> Result<Vec<RunOnceResult>, RunError> {
    if settings.manifests.is_none() && settings.url.is_none() {
        return Err(RunError::NothingToRun);
    }
    Ok(pods.run_once(updates).await?)
}

/// Serves the HTTP API and runs the pods until cancelled.
async fn serve(
    kubelet: Kubelet,
    pods: PodRunner,
    settings: &Settings,
    dependencies: ClusterDependencies,
    updates: mpsc::Receiver<PodUpdate>,
    tasks: &TaskTracker,
    cancel: &CancellationToken,
) -> Result<(), RunError> {
    let root_dir = &settings.options.node.root_dir;
    let servers = Servers::bind(&settings.server, root_dir, dependencies).await?;
    let resources = kubelet_pod_resources::bind(root_dir).map_err(|source| {
        let path = kubelet_pod_resources::socket_path(root_dir);
        RunError::PodResources { path, source }
    })?;
    serve_devices(&kubelet, root_dir, tasks, cancel)?;
    tasks.spawn(servers.serve(kubelet.clone(), cancel.clone()).boxed());
    tasks.spawn({
        let (kubelet, cancel) = (kubelet.clone(), cancel.clone());
        async move { kubelet.serve_pod_resources(resources, cancel).await }.boxed()
    });
    if settings.utility_chains {
        for chains in UtilityChains::of_this_machine() {
            tasks.spawn(chains.keep(iptables::CHECK_PERIOD, cancel.clone()).boxed());
        }
    }
    let cancel = cancel.clone();
    tasks.spawn(async move { kubelet.run_plugin_manager(cancel).await }.boxed());
    // Fails only if a service manager exists and does not receive.
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        warn!(%error, "cannot notify the service manager that the kubelet is ready");
    }
    pods.run(updates).await;
    Ok(())
}

/// Serves the registration of device plugins.
fn serve_devices(
    kubelet: &Kubelet,
    root_dir: &Path,
    tasks: &TaskTracker,
    cancel: &CancellationToken,
) -> Result<(), RunError> {
    if let Some(devices) = kubelet.device_manager() {
        let listener = devices.bind().map_err(|source| {
            let path = device_dir(root_dir);
            RunError::DevicePlugins { path, source }
        })?;
        tasks.spawn(devices.clone().serve(listener, cancel.clone()));
    }
    Ok(())
}

/// Passes the pod CIDR of a standalone node to the runtime; in a cluster it is in the node object.
async fn report_pod_cidr(cri: CriClient, pod_cidr: String) {
    while let Err(error) = cri.update_runtime_config(&pod_cidr).await {
        warn!(%error, pod_cidr, "cannot send the pod CIDR to the runtime; retrying");
        tokio::time::sleep(POD_CIDR_RETRY).await;
    }
    info!(pod_cidr, "sent the pod CIDR to the runtime");
}

/// The first SIGTERM or SIGINT stops the kubelet gracefully, the second one immediately.
fn cancel_on_signals(cancel: &CancellationToken) -> Result<(), RunError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(RunError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(RunError::Signals)?;
    let cancel = cancel.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                biased;
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if cancel.is_cancelled() {
                std::process::exit(1);
            }
            info!("received a signal; stopping");
            cancel.cancel();
        }
    });
    Ok(())
}
