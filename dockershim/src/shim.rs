//! The shim's state, shared by all CRI verbs.

use std::{future::Future, sync::Arc, time::Duration};

use cri_streaming::bound::Bound;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Config, Error,
    cgroup_settings::CgroupSettings,
    config::{LogDriver, NetworkPlugin},
    engine::{ConnectionState, Engine},
    images::{AccountsByImage, ImageMounts, Images, LayersSize, Pulls, Removals},
    logs::Logs,
    metrics::{BoundMetrics, Metrics, ModelMetrics},
    model::{Model, Sandbox, Snapshot},
    name_reservations::NameReservations,
    network::{cni::Cni, hairpin::Hairpin, shaping::Shaping},
    oom_kills::OomKills,
    process::Processes,
    resync::{Inspector, ModelSync, Refresher},
    security::OomScorePolicy,
    stats::{Stats, StatsCollector},
    stop_signals::StopSignals,
};

/// How long a mutation waits for the model to be in step with the engine again after a reconnect.
const IN_STEP_PATIENCE: Duration = Duration::from_secs(30);
/// How long stats wait for measurements of writable layers.
const LAYER_PATIENCE: Duration = Duration::from_millis(300);

/// The limit on the output of `ExecSync` that is kept for responses. CRI allows 16 MiB per stream, but the kubelet and crictl accept no
/// message larger than 16 MiB, so both streams share that limit, minus the message overhead.
pub const EXEC_OUTPUT_LIMIT: usize = 16 * 1024 * 1024 - 64;

/// The shim's state, shared by all CRI verbs.
#[derive(Debug)]
pub struct Shim {
    /// The validated flags.
    pub config: Config,
    /// The Docker engine.
    pub engine: Arc<Engine>,
    /// The model of the engine's containers.
    pub model: Arc<Model>,
    /// The engine's images.
    pub images: Arc<Images>,
    /// The logs of the containers.
    pub logs: Arc<Logs>,
    /// Inspects the engine's containers.
    pub inspector: Arc<Inspector>,
    /// The CNI plugins; `None` if the engine provides the pod network.
    pub cni: Option<Arc<Cni>>,
    /// Hairpin mode for pods on the engine's own bridge.
    pub hairpin: Hairpin,
    /// The bandwidth limits of sandboxes on the engine's bridge.
    pub shaping: Arc<Shaping>,
    /// The settings of containers' cgroups that the engine does not manage.
    pub cgroup_settings: Arc<CgroupSettings>,
    /// The containers' processes.
    pub processes: Arc<Processes>,
    /// Takes the ids of containers whose records are stale.
    pub refresher: Refresher,
    /// The images that are mounted for containers.
    pub image_mounts: Arc<ImageMounts>,
    /// The disk usage of image layers.
    pub layers_size: Arc<LayersSize>,
    /// The user accounts of each image.
    pub accounts: AccountsByImage,
    /// The memory bound for command output that is kept for responses.
    pub exec_output: Arc<Bound>,
    /// The pulls in progress.
    pub pulls: Pulls,
    /// The image removals in progress.
    pub removals: Removals,
    /// The policy for `oom_score_adj` values that the engine may not set.
    pub oom_score: OomScorePolicy,
    /// Cancelled when the shim shuts down.
    pub stop: CancellationToken,
    /// The resource usage of sandboxes and containers.
    pub stats: Arc<Stats>,
    /// The metrics; `None` if they are not served.
    pub metrics: Option<Metrics>,
    /// The mutations in progress; shutdown waits for them.
    pub tasks: TaskTracker,
    /// Held while the built-in pause image is loaded.
    pub(crate) loading_pause: tokio::sync::Mutex<()>,
    pub(crate) names: Arc<NameReservations>,
    pub(crate) stop_signals: StopSignals,
}

impl Shim {
    /// Creates the shim and starts its background tasks, which run until `stop`.
    pub fn start(config: Config, stop: CancellationToken) -> Arc<Self> {
        let metrics = config.metrics_bind_addr.map(|_| Metrics::new());
        let engine = Engine::new(config.docker_endpoint.clone());
        let engine = Arc::new(match &metrics {
            Some(metrics) => engine.observed_by(Arc::new(metrics.engine.clone())),
            None => engine,
        });
        let model = Arc::new(Model::new());
        let images = Arc::new(Images::new(config.pause_reference.clone()));
        let logs = Arc::new(Logs::new(
            &config.root_directory,
            engine.clone(),
            config.log_driver,
        ));
        let image_mounts = Arc::new(ImageMounts::new(&config.root_directory));
        let inspector = Arc::new(Inspector::new(
            engine.clone(),
            model.clone(),
            logs.clone(),
            images.clone(),
            image_mounts.clone(),
            OomKills::new(&config.root_directory, engine.locality()),
        ));
        let refresher = Refresher::start(inspector.clone(), stop.clone());
        let cni = match &config.network_plugin {
            NetworkPlugin::Docker => None,
            NetworkPlugin::Cni(directories) => Some(Arc::new(Cni::new(
                directories.clone(),
                config.pod_cidrs.clone(),
                &config.root_directory,
            ))),
        };
        if let Some(cni) = &cni {
            tokio::spawn(cni.clone().run(model.clone(), stop.clone()));
        }
        let names = Arc::new(NameReservations::default());
        let processes = Arc::new(Processes::new(engine.locality()));
        let cgroup_settings = Arc::new(CgroupSettings::new(
            &config.root_directory,
            processes.clone(),
        ));
        let shaping = Arc::new(Shaping::new(processes.clone()));
        let sync = ModelSync {
            engine: engine.clone(),
            model: model.clone(),
            images: images.clone(),
            inspector: inspector.clone(),
            refresher: refresher.clone(),
            cni: cni.clone(),
            processes: processes.clone(),
            cgroup_settings: cgroup_settings.clone(),
            shaping: shaping.clone(),
            names: names.clone(),
        };
        tokio::spawn(sync.run(stop.clone()));
        tokio::spawn(images.clone().run(engine.clone(), stop.clone()));
        let layers_size = LayersSize::start(engine.clone(), images.clone(), stop.clone());
        let has_backlogs = config.log_driver == LogDriver::JsonFile;
        let stats = Stats::start(model.clone(), processes.clone(), has_backlogs, stop.clone());
        let shim = Arc::new(Self {
            exec_output: Arc::new(Bound::new("cri", "exec_output", EXEC_OUTPUT_LIMIT)),
            stats,
            hairpin: Hairpin::new(config.hairpin_mode, processes.clone()),
            shaping,
            oom_score: OomScorePolicy::new(config.clamp_oom_score_adj),
            accounts: AccountsByImage::new(&config.root_directory),
            config,
            engine,
            model,
            images,
            logs,
            image_mounts,
            layers_size,
            inspector,
            cni,
            cgroup_settings,
            processes,
            refresher,
            pulls: Pulls::default(),
            removals: Removals::default(),
            stop,
            metrics,
            tasks: TaskTracker::new(),
            loading_pause: tokio::sync::Mutex::default(),
            names,
            stop_signals: StopSignals::default(),
        });
        shim.register_metrics();
        shim
    }

    /// Registers the metrics of its parts, if metrics are served.
    fn register_metrics(&self) {
        let Some(metrics) = &self.metrics else {
            return;
        };
        if let Some(cni) = &self.cni {
            let help = "CNI plugins killed because they timed out";
            metrics.register("cni_plugins_killed", help, cni.killed_plugins());
        }
        metrics.register_collector(ModelMetrics::new(
            self.engine.clone(),
            self.model.clone(),
            self.images.clone(),
            self.logs.clone(),
            self.cgroup_settings.clone(),
        ));
        metrics.register(
            "writable_layers_measured_in_part",
            "Incomplete measurements of writable layers, whose content exceeded what can be \
             remembered",
            self.stats.layers.in_part.clone(),
        );
        metrics.register_collector(BoundMetrics::cri([self.exec_output.clone()]));
    }

    /// Fails until the engine's containers have been read once: an incorrect empty list would make
    /// the kubelet start every pod a second time.
    ///
    /// # Errors
    /// [`Error::NotSynced`] with the reason.
    pub fn require_sync(&self) -> Result<(), Error> {
        if self.model.synced() {
            return Ok(());
        }
        let reason = match &*self.engine.state() {
            ConnectionState::Connected(_) => "its containers are being read".to_owned(),
            ConnectionState::Disconnected(reason) => {
                format!("{}: {reason}", self.engine.endpoint())
            }
        };
        Err(Error::NotSynced(format!(
            "not in sync with the Docker engine yet: {reason}"
        )))
    }

    /// The engine's data directory.
    ///
    /// # Errors
    /// `Unavailable` until the engine has been reached once.
    pub fn root_dir(&self) -> Result<String, Error> {
        Ok(self.engine.info()?.root_dir.clone())
    }

    /// Runs a mutation to completion in its own task, so that a client that disconnects midway
    /// leaves nothing half-done.
    ///
    /// # Errors
    /// The mutation's own, or [`Error::Panicked`].
    pub fn complete<T: Send + 'static>(
        self: &Arc<Self>,
        verb: &'static str,
        mutation: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> impl Future<Output = Result<T, Error>> + Send {
        // Boxed, because the request's future would otherwise contain this one several times over.
        let mutation = Box::pin(mutation);
        async move {
            self.require_sync()?;
            self.engine.connection()?;
            let in_step = tokio::time::timeout(IN_STEP_PATIENCE, self.model.wait_in_step());
            if in_step.await.is_err() {
                let reason = "reconnected to the engine; its containers are being read";
                return Err(Error::NotSynced(reason.to_owned()));
            }
            let task = self.tasks.spawn(mutation);
            task.await.unwrap_or(Err(Error::Panicked(verb)))
        }
    }

    /// Collects stats for `verb` on a blocking thread, with recent measurements of writable layers if
    /// they take little time.
    ///
    /// # Errors
    /// `DeadlineExceeded` if the kernel does not answer; `Unavailable` until the engine has been
    /// reached once.
    pub async fn collect_stats<T: Send + 'static>(
        &self,
        verb: &'static str,
        work: impl FnOnce(&mut StatsCollector, &Snapshot) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (stats, root_dir) = (Arc::clone(&self.stats), self.root_dir()?);
        stats.layers.recent(&self.model, LAYER_PATIENCE).await;
        let snapshot = self.model.snapshot();
        stats.collect(snapshot, root_dir, verb, work).await
    }

    /// Finds the sandbox with this id or unique prefix; inspects it if its record is provisional.
    ///
    /// # Errors
    /// `NotFound` if there is no such sandbox, `Unavailable` before the first sync.
    pub async fn find_sandbox(&self, id: &str) -> Result<Arc<Sandbox>, Error> {
        self.require_sync()?;
        let look = || {
            let found = self.model.snapshot().sandbox(id);
            found.map_err(|error| error.of("sandbox", id))
        };
        let sandbox = look()?;
        if !sandbox.provisional {
            return Ok(sandbox);
        }
        self.inspector.refresh(sandbox.id()).await?;
        look()
    }
}
