//! The shim as a whole: what every verb works with.

use std::{collections::HashSet, future::Future, sync::Arc, time::Duration};

use cri_streaming::bound::Bound;
use parking_lot::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Config, Error,
    config::NetworkPlugin,
    container::{CgroupSettings, checkpoint, exec_sync::OUTPUT_LIMIT},
    engine::{Engine, State},
    image::{AccountsByImage, ImageMounts, Images, LayersSize, Pulls, Removals},
    logs::Logs,
    metrics::{BoundMetrics, Metrics, ModelMetrics},
    model::{Looker, Model, Refresher, sync::Sync},
    network::{cni::Cni, hairpin::Hairpin},
    oom_kills::OomKills,
    process::Processes,
    security::OomScorePolicy,
    stats::Stats,
};

/// How long a mutation waits for the comparison that follows a reconnect.
const IN_STEP_PATIENCE: Duration = Duration::from_secs(30);

/// What every verb works with.
#[derive(Debug)]
pub struct Shim {
    /// The flags, checked.
    pub config: Config,
    /// The Docker engine.
    pub engine: Arc<Engine>,
    /// What the engine runs.
    pub model: Arc<Model>,
    /// What images the engine has.
    pub images: Arc<Images>,
    /// The logs of the containers.
    pub logs: Arc<Logs>,
    /// What looks at the engine's containers.
    pub looker: Arc<Looker>,
    /// Who gives pods their network, where it is not the engine.
    pub cni: Option<Arc<Cni>>,
    /// How pods on the engine's own bridge reach themselves.
    pub hairpin: Hairpin,
    /// What cgroups of containers are to hold.
    pub cgroup_settings: Arc<CgroupSettings>,
    /// The containers' processes.
    pub processes: Arc<Processes>,
    /// Where stale records are handed in.
    pub refresher: Refresher,
    /// The images that are mounted for containers.
    pub image_mounts: Arc<ImageMounts>,
    /// What the images have on the disk.
    pub layers_size: Arc<LayersSize>,
    /// Who lives in which image.
    pub accounts: AccountsByImage,
    /// What answers keep of commands' output.
    pub exec_output: Arc<Bound>,
    /// Pulls under way.
    pub pulls: Pulls,
    /// Removals of images under way.
    pub removals: Removals,
    /// What the engine may set as `oom_score_adj`.
    pub oom_score: OomScorePolicy,
    /// Cancelled when the shim ends.
    pub stop: CancellationToken,
    /// What sandboxes and containers use.
    pub stats: Arc<Stats>,
    /// What is counted, where somebody can ask for it.
    pub metrics: Option<Metrics>,
    /// Mutations under way; a shutdown waits for them.
    pub tasks: TaskTracker,
    /// Held while the built-in pause image is loaded.
    pub(crate) loading_pause: tokio::sync::Mutex<()>,
    pub(crate) names: Arc<Names>,
}

/// The names of Docker containers that are being made.
#[derive(Debug, Default)]
pub struct Names {
    taken: Mutex<HashSet<String>>,
    /// Ids of what failed while it was made, and could not be removed.
    failed: Mutex<HashSet<String>>,
}

impl Names {
    /// Whether a container of this name is being made.
    pub fn contains(&self, name: &str) -> bool {
        self.taken.lock().contains(name)
    }

    /// Notes down what is to be removed when the engine is there again.
    pub fn fail(&self, id: &str) {
        self.failed.lock().insert(id.to_owned());
    }

    /// What is to be removed; who takes it notes down again what cannot be.
    pub fn take_failed(&self) -> HashSet<String> {
        std::mem::take(&mut *self.failed.lock())
    }
}

/// A name of a Docker container that is being made; free again when dropped.
#[derive(Debug)]
pub struct Reservation<'a> {
    names: &'a Names,
    name: String,
}

impl Shim {
    /// Builds the shim and starts what keeps its model live, until `stop`.
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
        let looker = Arc::new(Looker::new(
            engine.clone(),
            model.clone(),
            logs.clone(),
            images.clone(),
            image_mounts.clone(),
            OomKills::new(&config.root_directory, engine.here()),
        ));
        let refresher = Refresher::start(looker.clone(), stop.clone());
        let cni = match &config.network_plugin {
            NetworkPlugin::Docker => None,
            NetworkPlugin::Cni(directories) => Some(Arc::new(Cni::new(
                directories.clone(),
                config.pod_cidrs.clone(),
                &config.root_directory,
            ))),
        };
        if let (Some(metrics), Some(cni)) = (&metrics, &cni) {
            let help = "CNI plugins that were killed because they took too long";
            metrics.register("cni_plugins_killed", help, cni.killed_plugins());
        }
        if let Some(cni) = &cni {
            tokio::spawn(cni.clone().run(model.clone(), stop.clone()));
        }
        let names = Arc::new(Names::default());
        let processes = Arc::new(Processes::new(engine.here()));
        let cgroup_settings = Arc::new(CgroupSettings::new(
            &config.root_directory,
            processes.clone(),
        ));
        if let Some(metrics) = &metrics {
            metrics.register_collector(ModelMetrics::new(
                engine.clone(),
                model.clone(),
                images.clone(),
                logs.clone(),
                cgroup_settings.clone(),
            ));
        }
        let sync = Sync {
            engine: engine.clone(),
            model: model.clone(),
            images: images.clone(),
            looker: looker.clone(),
            refresher: refresher.clone(),
            cni: cni.clone(),
            processes: processes.clone(),
            cgroup_settings: cgroup_settings.clone(),
            names: names.clone(),
        };
        tokio::spawn(sync.run(stop.clone()));
        tokio::spawn(images.clone().run(engine.clone(), stop.clone()));
        let layers_size = LayersSize::start(engine.clone(), images.clone(), stop.clone());
        checkpoint::tidy(&config.root_directory);
        let stats = Stats::start(model.clone(), processes.clone(), stop.clone());
        if let Some(metrics) = &metrics {
            metrics.register(
                "writable_layers_measured_in_part",
                "Measurements of what a container has written that leave out what is too much to \
                 be remembered",
                stats.layers.in_part.clone(),
            );
        }
        let exec_output = Arc::new(Bound::new("cri", "exec_output", OUTPUT_LIMIT));
        if let Some(metrics) = &metrics {
            metrics.register_collector(BoundMetrics::cri([exec_output.clone()]));
        }
        Arc::new(Self {
            exec_output,
            stats,
            hairpin: Hairpin::new(config.hairpin_mode, processes.clone()),
            oom_score: OomScorePolicy::new(config.clamp_oom_score_adj),
            accounts: AccountsByImage::new(&config.root_directory),
            config,
            engine,
            model,
            images,
            logs,
            image_mounts,
            layers_size,
            looker,
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
        })
    }

    /// Fails until the engine's containers were seen once: an empty list that is not
    /// true would make the kubelet start everything a second time.
    ///
    /// # Errors
    /// [`Error::NotSynced`] with the reason.
    pub fn require_sync(&self) -> Result<(), Error> {
        if self.model.synced() {
            return Ok(());
        }
        let reason = match &*self.engine.state() {
            State::Connected(_) => "its containers are being read".to_owned(),
            State::Away(reason) => format!("{}: {reason}", self.engine.endpoint()),
        };
        Err(Error::NotSynced(format!(
            "not in sync with the Docker engine yet: {reason}"
        )))
    }

    /// Where the engine keeps its data.
    ///
    /// # Errors
    /// `Unavailable` until the engine was reached once.
    pub fn root_dir(&self) -> Result<String, Error> {
        Ok(self.engine.info()?.root_dir.clone())
    }

    /// Runs a mutation to its end in a task of its own: when the client hangs up in the
    /// middle, nothing stays half-made.
    ///
    /// # Errors
    /// The mutation's own, or [`Error::Panicked`].
    pub fn complete<T: Send + 'static>(
        self: &Arc<Self>,
        verb: &'static str,
        mutation: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> impl Future<Output = Result<T, Error>> + Send {
        // Boxed, or the futures of its request would be as large, several times over.
        let mutation = Box::pin(mutation);
        async move {
            self.require_sync()?;
            self.engine.connection()?;
            let in_step = tokio::time::timeout(IN_STEP_PATIENCE, self.model.wait_in_step());
            if in_step.await.is_err() {
                let reason = "the engine came back, and its containers are being read";
                return Err(Error::NotSynced(reason.to_owned()));
            }
            let task = self.tasks.spawn(mutation);
            task.await.unwrap_or(Err(Error::Panicked(verb)))
        }
    }

    /// Reserves a Docker name while a container is made under it. Without this, a retry
    /// by an impatient client would take the first request's work for a left-over.
    ///
    /// # Errors
    /// [`Error::Busy`] while another request holds it.
    pub fn reserve(&self, name: &str) -> Result<Reservation<'_>, Error> {
        if !self.names.taken.lock().insert(name.to_owned()) {
            return Err(Error::Busy(format!(
                "another request is making {name:?}; try again later"
            )));
        }
        Ok(Reservation {
            names: &self.names,
            name: name.to_owned(),
        })
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.names.taken.lock().remove(&self.name);
    }
}
