//! One run of the node agent: assembles and runs its parts.

use std::{io, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod};
use kubelet_api_client::{
    certificate::{client::JoinError, metrics::ServingCertificateMetrics},
    objects::{ApiObjects, ApiObjectsParts, NoObjects, Objects},
};
use kubelet_checkpoint::{Checkpoint, CheckpointError, objects::KeptObjects};
use kubelet_cri_client::{CriClient, CriError};
use kubelet_host::{local_node::LocalNode, selinux, version};
use kubelet_logs::{LogError, LogOptions, LogParts};
use kubelet_metrics::Exposition;
use kubelet_server::{
    FromCluster, NodeView, ServerError, Servers,
    reviews::ApiServerReviews,
    tls::certificate::{ServingCertificate, SignedCertificate},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{info, warn};

use crate::{
    cluster::{Cluster, ClusterOptions, ClusterParts},
    config::settings::Settings,
    host,
    kubelet::{Kubelet, KubeletError, Membership, options::KubeletOptions},
    logging,
    node::findings::{Findings, Pressure},
    root_dir::{RootDirError, RootDirLock},
    run_once::RunOnceResult,
    sources::{
        apiserver::ApiSource,
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
    /// A server cannot start.
    #[error(transparent)]
    Server(#[from] ServerError),
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
        "swap is on ({}), and failSwapOn (--fail-swap-on) is true; turn swap off (swapoff -a), or set the field to false and memorySwap.swapBehavior to what pods may do with it",
        .0.join(", ")
    )]
    SwapOn(Vec<String>),
    /// The service manager's watchdog has too short a timeout.
    #[error(transparent)]
    Watchdog(#[from] WatchdogError),
    /// The cluster cannot be joined as configured.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The checkpoint for starts without the API server is unusable.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The kubelet's core failed.
    #[error(transparent)]
    Kubelet(#[from] KubeletError),
    /// Signal handlers cannot be installed.
    #[error("cannot listen for signals: {0}")]
    Signals(#[source] io::Error),
    /// `--runonce` without a source of pods.
    #[error(
        "--runonce needs pods: set --pod-manifest-path (staticPodPath) or --manifest-url (staticPodURL)"
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
    let swap = settings.fail_swap_on.then(host::swap).unwrap_or_default();
    if !swap.is_empty() {
        return Err(RunError::SwapOn(swap));
    }
    let watchdog = Watchdog::of_this_process()?;
    info!(
        version = version::VERSION,
        node = options.node.name,
        root_dir = %options.node.root_dir.display(),
        runtime = options.cri.runtime_endpoint,
        "Starting"
    );
    let cancel = CancellationToken::new();
    cancel_on_signals(&cancel)?;
    let _lock = RootDirLock::acquire(&options.node.root_dir)?;
    if options.node.selinux.is_some() {
        selinux::label_plugin_dirs(&options.node.root_dir);
    }
    let cri = CriClient::connect(&options.cri)
        .await
        .map_err(|source| RunError::Runtime {
            endpoint: options.cri.runtime_endpoint.clone(),
            source,
        })?;

    let tasks = TaskTracker::new();
    let (pod_config, updates) = PodConfig::new();
    if let Some(manifests) = &settings.manifests {
        let source = FileSource {
            path: manifests.path.clone(),
            node_name: options.node.name.clone(),
            check_frequency: manifests.check_frequency,
        };
        tasks.spawn(source.run(pod_config.source(Source::File), cancel.clone()));
    }
    if let Some(url) = &settings.url {
        let source = UrlSource {
            url: url.url.clone(),
            headers: url.headers.clone(),
            node_name: options.node.name.clone(),
            check_frequency: url.check_frequency,
        };
        tasks.spawn(source.run(pod_config.source(Source::Http), cancel.clone()));
    }
    // `--runonce` runs only the pods of files and URLs, in a cluster or not.
    let cluster = match &settings.cluster {
        Some(cluster) if !settings.run_once => {
            Some(Cluster::join(cluster.clone(), &options.node.name).await?)
        }
        _ => None,
    };
    if settings.cluster.is_none() && !settings.pod_cidr.is_empty() {
        let telling = tell_pod_cidr(cri.clone(), settings.pod_cidr.clone());
        let cancel = cancel.clone();
        tasks.spawn(async move {
            cancel.run_until_cancelled(telling).await;
        });
    }
    let checkpoint = match (&cluster, &settings.cluster) {
        (Some(_), Some(cluster)) => open_checkpoint(cluster, options).await?,
        _ => None,
    };
    let membership = cluster.as_ref().map(|cluster| Membership {
        last_node: checkpoint.as_ref().and_then(|checkpoint| checkpoint.node()),
        last_statuses: checkpoint
            .as_ref()
            .map(|checkpoint| checkpoint.last_statuses())
            .unwrap_or_default(),
        ..cluster.membership()
    });
    if let (Some(cluster), Some(membership)) = (&cluster, &membership) {
        let mut listed = cluster.listed();
        let source = ApiSource {
            client: membership.client.clone(),
            node_name: options.node.name.clone(),
            // Fails only if the sender is gone; this source ends then as well.
            node_known: Box::pin(async move { drop(listed.wait_for(|listed| *listed).await) }),
            checkpoint: checkpoint.clone(),
        };
        tasks.spawn(source.run(pod_config.source(Source::Api), cancel.clone()));
    }
    let objects: Arc<dyn Objects> = match (&membership, &settings.cluster) {
        (Some(membership), Some(cluster)) => Arc::new(ApiObjects::new(ApiObjectsParts {
            client: membership.client.clone(),
            node: membership.node.clone(),
            change_detection: cluster.change_detection,
            sync_frequency: options.sync_frequency,
            tasks: tasks.clone(),
            cancel: cancel.clone(),
        })),
        _ => Arc::new(NoObjects),
    };
    let objects: Arc<dyn Objects> = match (&checkpoint, &cluster) {
        (Some(checkpoint), Some(cluster)) => Arc::new(KeptObjects::new(
            objects,
            Arc::clone(checkpoint),
            cluster.reach(),
        )),
        _ => objects,
    };
    let node = membership
        .as_ref()
        .map(|membership| membership.node.clone());
    let has_pods = settings.manifests.is_some() || settings.url.is_some();
    let kubelet = Kubelet::new(
        options.clone(),
        cri.clone(),
        objects,
        membership,
        cluster
            .as_ref()
            .map(|cluster| cluster.events().clone())
            .unwrap_or_default(),
        move || pod_config.seen_all_sources(),
    );
    if let (Some(checkpoint), Some(node)) = (checkpoint, node) {
        tasks.spawn(keep(checkpoint, kubelet.clone(), node, cancel.clone()));
    }
    let mut from_cluster = FromCluster::default();
    if let Some(cluster) = cluster {
        let reviews = ApiServerReviews::new(cluster.review_client()?);
        from_cluster.reviews = Some(Arc::new(reviews));
        from_cluster.metrics = cluster.metrics();
        let parts = ClusterParts {
            cri,
            readiness: Arc::clone(kubelet.readiness()),
            findings: Arc::new(kubelet.clone()),
            root_dir: options.node.root_dir.clone(),
        };
        let certificate = cluster.spawn(parts, &tasks, &cancel)?;
        if let Some(pairs) = &certificate {
            let metrics = ServingCertificateMetrics::new(pairs.clone());
            from_cluster.metrics.push(Arc::new(metrics));
        }
        from_cluster.certificate = certificate.map(|pairs| -> Arc<dyn ServingCertificate> {
            Arc::new(SignedCertificate::new(pairs))
        });
    }

    let result = if settings.run_once {
        match has_pods {
            true => kubelet
                .run_once(updates, cancel.clone())
                .await
                .map_err(RunError::from),
            false => Err(RunError::NothingToRun),
        }
    } else {
        if let Some(watchdog) = watchdog {
            let (health, cancel) = (kubelet.clone(), cancel.clone());
            tasks.spawn(watchdog.serve(move || health.healthy(), cancel));
        }
        serve(&kubelet, &settings, from_cluster, updates, &tasks, &cancel)
            .await
            .map(|()| Vec::new())
    };
    cancel.cancel();
    tasks.close();
    tasks.wait().await;
    info!("Stopped; the pods run on");
    result
}

async fn serve(
    kubelet: &Kubelet,
    settings: &Settings,
    from_cluster: FromCluster,
    updates: mpsc::Receiver<PodUpdate>,
    tasks: &TaskTracker,
    cancel: &CancellationToken,
) -> Result<(), RunError> {
    let servers = Servers::bind(
        &settings.server,
        &settings.options.node.root_dir,
        from_cluster,
    )
    .await?;
    tasks.spawn(servers.serve(kubelet.clone(), cancel.clone()));
    tasks.spawn({
        let (kubelet, cancel) = (kubelet.clone(), cancel.clone());
        async move { kubelet.run_plugin_manager(cancel).await }
    });
    // Fails only if a service manager exists and does not receive.
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        warn!(%error, "The service manager was not told that the kubelet is ready");
    }
    kubelet.run(updates, cancel.clone()).await?;
    Ok(())
}

/// Tells the runtime the pod CIDR of a standalone node; in a cluster the node object has it.
async fn tell_pod_cidr(cri: CriClient, pod_cidr: String) {
    while let Err(error) = cri.update_runtime_config(&pod_cidr).await {
        warn!(%error, pod_cidr, "The runtime does not take the pods' networks; trying on");
        tokio::time::sleep(POD_CIDR_RETRY).await;
    }
    info!(pod_cidr, "The runtime knows the pods' networks");
}

/// Opens the checkpoint for starts without the API server, if configured.
async fn open_checkpoint(
    cluster: &ClusterOptions,
    options: &KubeletOptions,
) -> Result<Option<Arc<Checkpoint>>, CheckpointError> {
    let Some(kept) = &cluster.checkpoint else {
        return Ok(None);
    };
    let checkpoint = Checkpoint::open(kept, &options.node.name).await?;
    Ok(Some(Arc::new(checkpoint)))
}

/// Writes the checkpoint until cancelled.
async fn keep(
    checkpoint: Arc<Checkpoint>,
    kubelet: Kubelet,
    node: watch::Receiver<Option<Arc<Node>>>,
    cancel: CancellationToken,
) {
    let statuses = checkpoint.follow_statuses(
        kubelet.status_changes(),
        |uid| kubelet.status(uid),
        cancel.clone(),
    );
    tokio::join!(
        statuses,
        checkpoint.follow_node(node, cancel.clone()),
        checkpoint.run(cancel)
    );
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
            info!("Stopping on a signal");
            cancel.cancel();
        }
    });
    Ok(())
}

impl Findings for Kubelet {
    fn problems(&self) -> Vec<String> {
        let pleg = self.pleg_healthy().err();
        pleg.map(|error| format!("PLEG is not healthy: {error}"))
            .into_iter()
            .chain(self.csi_node_problem())
            .chain(self.shutdown().problem())
            .collect()
    }

    fn shutting_down(&self) -> watch::Receiver<bool> {
        self.shutdown().subscribe()
    }

    /// None: eviction is not implemented yet.
    fn pressure(&self) -> Pressure {
        Pressure::default()
    }

    fn volumes_in_use(&self) -> Option<Vec<String>> {
        Self::volumes_in_use(self)
    }
}

impl NodeView for Kubelet {
    fn local_node(&self) -> Arc<LocalNode> {
        Arc::clone(Self::local_node(self))
    }

    fn pods(&self) -> Vec<Pod> {
        Self::pods(self)
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.pod_manager()
            .get_by_full_name(&format!("{name}_{namespace}"))
    }

    async fn running_pods(&self) -> Result<Vec<Pod>, String> {
        Self::running_pods(self)
            .await
            .map_err(|error| error.to_string())
    }

    fn healthy(&self) -> Result<(), String> {
        Self::healthy(self)
    }

    async fn container_log(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        options: LogOptions,
    ) -> Result<LogParts, LogError> {
        Self::container_log(self, namespace, pod, container, options).await
    }

    fn collect(&self, page: &mut Exposition) {
        Self::collect(self, page);
    }

    fn collect_probes(&self, page: &mut Exposition) {
        Self::collect_probes(self, page);
    }

    fn set_verbosity(&self, verbosity: u32) -> Result<(), String> {
        logging::set_verbosity(verbosity).map_err(|error| error.to_string())
    }

    fn cri(&self) -> CriClient {
        Self::cri(self).clone()
    }
}
