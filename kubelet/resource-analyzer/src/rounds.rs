//! The loop that measures.

use std::{
    collections::{BTreeSet, HashMap},
    path::PathBuf,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use k8s_openapi::api::core::v1::Pod;
use kubelet_api_client::events::{EventRecorder, Subject, reason};
use kubelet_host::{mount_info, repeatable};
use kubelet_pod_spec::identity::{self, PodUid};
use kubelet_volume::usage::UsageSource;
use tokio::{
    sync::{Notify, watch},
    task::{Id, JoinError, JoinSet},
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use crate::{
    error::MeasureError,
    meter::{Measured, Meter},
    progress::Progress,
    source::{MeasuredPod, PodSource},
    usage::{PodFiles, PodUsage, Usages, VolumeUsage},
    walks::Walks,
};

/// How long the next measurement waits for the one before it. One that takes longer goes on beside
/// the others.
const PATIENCE: Duration = Duration::from_millis(100);

/// What one task measures.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Target {
    uid: PodUid,
    part: Part,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Part {
    /// A volume, by its name in the pod's spec.
    Volume(String),
    /// The pod's logs and files.
    Files,
}

enum Outcome {
    Volume(Result<Option<Measured>, MeasureError>),
    Files(Result<PodFiles, MeasureError>),
}

type Ended = Result<(Id, Outcome), JoinError>;

/// The state of the loop.
pub(crate) struct Rounds<'a> {
    pods: &'a dyn PodSource,
    meter: &'a Meter,
    events: &'a EventRecorder,
    latest: &'a ArcSwap<Usages>,
    walks: &'a Arc<Walks>,
    tasks: JoinSet<Outcome>,
    /// What is being measured, possibly since an earlier round.
    running: HashMap<Id, Target>,
    /// What the last round was to measure. Other results are obsolete.
    wanted: HashMap<Target, Arc<Pod>>,
    usages: Usages,
}

impl<'a> Rounds<'a> {
    /// A loop that stores its results in `latest`.
    pub(crate) fn new(
        pods: &'a dyn PodSource,
        meter: &'a Meter,
        events: &'a EventRecorder,
        latest: &'a ArcSwap<Usages>,
        walks: &'a Arc<Walks>,
    ) -> Self {
        Self {
            pods,
            meter,
            events,
            latest,
            walks,
            tasks: JoinSet::new(),
            running: HashMap::new(),
            wanted: HashMap::new(),
            usages: Usages::new(),
        }
    }

    /// Measures everything again and again, with a pause after each round until `wake`.
    pub(crate) async fn run(
        mut self,
        period: Duration,
        progress: &watch::Sender<Progress>,
        wake: &Notify,
    ) {
        loop {
            progress.send_modify(|progress| progress.begun += 1);
            self.round().await;
            self.rest(period, progress, wake).await;
        }
    }

    /// Starts to measure everything that is not being measured yet, and waits for what is fast.
    async fn round(&mut self) {
        let pods = self.pods.pods();
        self.forget_others(&pods);
        let devices = devices(&pods).await;
        for MeasuredPod {
            pod,
            volumes,
            log_dir,
            etc_hosts,
        } in pods
        {
            let uid = PodUid::of(&pod);
            for (name, source) in volumes {
                let meter = self.meter.clone();
                let server = server(&source, &devices);
                let (walks, pod, volume) = (Arc::clone(self.walks), Arc::clone(&pod), name.clone());
                let measure = async move {
                    let walk = walks.begin(&pod, &volume);
                    Outcome::Volume(meter.volume(source, &server, &walk).await)
                };
                self.start(&uid, Part::Volume(name), measure).await;
            }
            let meter = self.meter.clone();
            let server = devices.get(&log_dir).cloned().unwrap_or_default();
            let containers = containers(&pod);
            let measure = async move {
                let files = meter.files(log_dir, etc_hosts, containers, &server);
                Outcome::Files(files.await)
            };
            self.start(&uid, Part::Files, measure).await;
            self.publish();
        }
        self.publish();
    }

    /// Publishes what is late, for a while.
    async fn rest(&mut self, period: Duration, progress: &watch::Sender<Progress>, wake: &Notify) {
        let mut end = pin!(sleep(period));
        loop {
            if self.running.is_empty() {
                progress.send_modify(|progress| progress.ended = progress.begun);
            }
            tokio::select! {
                biased;
                () = &mut end => return,
                () = wake.notified() => return,
                Some(ended) = self.tasks.join_next_with_id() => {
                    self.take(ended);
                    self.publish();
                }
            }
        }
    }

    /// Drops results of pods and volumes that are gone.
    fn forget_others(&mut self, pods: &[MeasuredPod]) {
        self.wanted.clear();
        let mut usages = Usages::new();
        for MeasuredPod { pod, volumes, .. } in pods {
            let uid = PodUid::of(pod);
            let names = volumes.iter().map(|(name, _)| Part::Volume(name.clone()));
            let targets = names.chain([Part::Files]).map(|part| Target {
                uid: uid.clone(),
                part,
            });
            self.wanted
                .extend(targets.map(|target| (target, Arc::clone(pod))));
            let mut usage = self.usages.remove(&uid).unwrap_or_else(|| {
                Arc::new(PodUsage {
                    namespace: identity::namespace(pod).to_owned(),
                    name: identity::name(pod).to_owned(),
                    ..PodUsage::default()
                })
            });
            let names: BTreeSet<&String> = volumes.iter().map(|(name, _)| name).collect();
            if usage.volumes.keys().any(|name| !names.contains(name)) {
                let usage = Arc::make_mut(&mut usage);
                usage.volumes.retain(|name, _| names.contains(name));
            }
            usages.insert(uid, usage);
        }
        self.usages = usages;
    }

    /// Starts a measurement, unless the last one of the same target is still running.
    async fn start(
        &mut self,
        uid: &PodUid,
        part: Part,
        measure: impl Future<Output = Outcome> + Send + 'static,
    ) {
        let uid = uid.clone();
        let target = Target { uid, part };
        if self.running.values().any(|running| *running == target) {
            debug!(pod_uid = %target.uid, part = ?target.part, "still being measured");
            return;
        }
        let id = self.tasks.spawn(measure).id();
        self.running.insert(id, target);
        if let Ok(Some(ended)) = timeout(PATIENCE, self.tasks.join_next_with_id()).await {
            self.take(ended);
        }
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            self.take(ended);
        }
    }

    /// Takes a result, unless it is obsolete.
    fn take(&mut self, ended: Ended) {
        let (id, outcome) = match ended {
            Ok((id, outcome)) => (id, Some(outcome)),
            Err(error) => {
                warn!(%error, "a measurement failed");
                (error.id(), None)
            }
        };
        let Some(target) = self.running.remove(&id) else {
            return;
        };
        let Some(pod) = self.wanted.get(&target) else {
            return;
        };
        let Some(usage) = self.usages.get_mut(&target.uid) else {
            return;
        };
        let usage = Arc::make_mut(usage);
        match (target.part, outcome) {
            (Part::Volume(name), Some(Outcome::Volume(Ok(Some(measured))))) => {
                let volume = volume_usage(pod, &name, measured, self.events);
                usage.volumes.insert(name, volume);
            }
            (Part::Files, Some(Outcome::Files(Ok(files)))) => usage.files = Some(files),
            (Part::Volume(name), outcome) => {
                // Expected of volumes that are being unmounted, and of drivers that restart.
                if let Some(Outcome::Volume(Err(error))) = outcome {
                    let (pod, pod_uid) = (identity::full_name(pod), &target.uid);
                    debug!(pod, %pod_uid, volume = name, %error, "cannot measure volume");
                }
                usage.volumes.remove(&name);
            }
            (Part::Files, outcome) => {
                if let Some(Outcome::Files(Err(error))) = outcome {
                    let (pod, pod_uid) = (identity::full_name(pod), &target.uid);
                    debug!(pod, %pod_uid, %error, "cannot measure logs");
                }
                usage.files = None;
            }
        }
    }

    fn publish(&self) {
        self.latest.store(Arc::new(self.usages.clone()));
    }
}

/// The usage of a volume of a pod, from a measurement. Reports an abnormal condition.
fn volume_usage(pod: &Pod, name: &str, measured: Measured, events: &EventRecorder) -> VolumeUsage {
    let condition = measured.condition.as_ref();
    if let Some(condition) = condition.filter(|condition| condition.is_abnormal) {
        let message = format_args!("Volume {name}: {}", condition.message);
        let reason = reason::VOLUME_CONDITION_ABNORMAL;
        events.warning(Subject::Pod(pod), reason, message);
    }
    VolumeUsage {
        at: measured.at,
        bytes: measured.bytes,
        inodes: measured.inodes,
        is_abnormal: condition.map(|condition| condition.is_abnormal),
        ..VolumeUsage::of(pod, name)
    }
}

/// What the volume hangs together with: its file system, or its device. A driver needs no thread.
fn server(source: &UsageSource, devices: &HashMap<PathBuf, String>) -> String {
    match source {
        UsageSource::FileSystem(path) | UsageSource::Directory(path) => {
            devices.get(path).cloned().unwrap_or_default()
        }
        UsageSource::Device(path) => path.display().to_string(),
        UsageSource::Driver(_) | UsageSource::None => String::new(),
    }
}

/// Device numbers of the file systems to measure, by path.
async fn devices(pods: &[MeasuredPod]) -> HashMap<PathBuf, String> {
    let volumes = pods.iter().flat_map(|pod| &pod.volumes);
    let mut paths: Vec<PathBuf> = volumes
        .filter_map(|(_, source)| match source {
            UsageSource::FileSystem(path) | UsageSource::Directory(path) => Some(path.clone()),
            UsageSource::Device(_) | UsageSource::Driver(_) | UsageSource::None => None,
        })
        .collect();
    paths.extend(pods.iter().map(|pod| pod.log_dir.clone()));
    let read = repeatable::blocking(move || {
        let devices = mount_info::devices_of(&paths);
        devices.map(|devices| paths.into_iter().zip(devices).collect())
    });
    match read.await {
        Ok(Ok(devices)) => devices,
        Ok(Err(error)) => {
            warn!(%error, "cannot read the mount table");
            HashMap::new()
        }
        Err(error) => {
            warn!(%error, "cannot read the mount table");
            HashMap::new()
        }
    }
}

/// Names of all containers of a pod.
fn containers(pod: &Pod) -> Vec<String> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let init = spec.init_containers.iter().flatten();
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let names = init.chain(&spec.containers).map(|c| c.name.clone());
    names.chain(ephemeral.map(|c| c.name.clone())).collect()
}
