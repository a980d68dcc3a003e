//! Collects statistics, and shares them between requests.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cri_proto::runtime::v1::ImageFsInfoResponse;
use kubelet_cri_client::CriClient;
use kubelet_host::repeatable::blocking;
use kubelet_pod_spec::identity;
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};
use tracing::{debug, warn};

use crate::{
    collector::Collector,
    file_systems::{ImageFileSystems, WritableLayer, writable_layers},
    runtime,
    subjects::{Depth, PodSubject, Subjects, SystemContainer},
    usage::{CgroupStats, NodeStats, PodStats},
};

/// Requests share a collection until it is this old. Agents that scrape several pages, or that
/// scrape at the same time, cost one collection.
const MAX_AGE: Duration = Duration::from_secs(5);
/// The runtime measures writable layers and images at most this often for the kubelet.
const RUNTIME_AGE: Duration = Duration::from_secs(10);
/// The runtime is asked at most this often where its file systems are. They seldom move.
const MOUNT_POINT_AGE: Duration = Duration::from_secs(300);
/// After this time the files of the kernel are considered hung.
const LIMIT: Duration = Duration::from_secs(20);

const PROC: &str = "/proc";

/// Why there are no statistics.
#[derive(Debug, thiserror::Error)]
pub enum StatsError {
    /// A file of the kernel cannot be read.
    #[error("cannot read {what}: {source}")]
    Node {
        /// What the file tells.
        what: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// The kernel does not respond.
    #[error("the kernel's files of cgroups did not respond within {} s", LIMIT.as_secs())]
    Hung,
    /// A collection panicked.
    #[error("the collection of statistics panicked")]
    Panicked,
}

/// Collects statistics of the node, its pods and containers.
#[derive(Debug)]
pub struct StatsProvider {
    subjects: Arc<dyn Subjects>,
    cri: CriClient,
    root_dir: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Taken during a collection.
    collector: Option<Collector>,
    last: Option<Collected>,
    runtime: Option<FromRuntime>,
    mount_points: Option<MountPoints>,
}

/// Where the runtime's file systems are.
#[derive(Clone, Debug)]
struct MountPoints {
    at: Instant,
    reported: Arc<ImageFsInfoResponse>,
}

#[derive(Debug)]
struct Collected {
    at: Instant,
    depth: Depth,
    stats: Arc<NodeStats>,
}

/// What only the runtime knows.
#[derive(Clone, Debug)]
struct FromRuntime {
    at: Instant,
    layers: Arc<HashMap<String, WritableLayer>>,
    images: Option<ImageFileSystems>,
    error: Option<String>,
}

impl StatsProvider {
    /// `root_dir` is the kubelet's root directory.
    pub fn new(subjects: Arc<dyn Subjects>, cri: CriClient, root_dir: &Path) -> Self {
        Self {
            subjects,
            cri,
            root_dir: root_dir.to_owned(),
            state: Arc::default(),
        }
    }

    /// The statistics. They may be some seconds old.
    ///
    /// # Errors
    /// The node's own files cannot be read. Pods that cannot be measured have no values.
    pub async fn stats(&self, depth: Depth) -> Result<Arc<NodeStats>, StatsError> {
        self.younger_than(depth, MAX_AGE).await
    }

    /// The statistics, not older than `age`.
    ///
    /// # Errors
    /// As [`stats`](Self::stats).
    pub async fn younger_than(
        &self,
        depth: Depth,
        age: Duration,
    ) -> Result<Arc<NodeStats>, StatsError> {
        let state = timeout(LIMIT, Arc::clone(&self.state).lock_owned()).await;
        let mut state = state.map_err(|_| StatsError::Hung)?;
        if let Some(last) = &state.last
            && last.depth >= depth
            && last.at.elapsed() < age
        {
            return Ok(Arc::clone(&last.stats));
        }
        let at = Instant::now();
        if depth == Depth::Everything {
            self.ask_runtime(&mut state).await;
        }
        let subjects = Arc::clone(&self.subjects);
        let from_runtime = state.runtime.clone();
        let root_dir = self.root_dir.clone();
        // The lock is held for as long as the work takes, so that hung files cost one thread.
        let work = blocking(move || {
            let mut collector = state
                .collector
                .take()
                .unwrap_or_else(|| Collector::new(Path::new(PROC)));
            let measured = measure(&mut collector, depth, &root_dir, &*subjects);
            state.collector = Some(collector);
            (state, measured)
        });
        let done = timeout(LIMIT, work).await.map_err(|_| StatsError::Hung)?;
        let (mut state, measured) = done.map_err(|_| StatsError::Panicked)?;
        let Measured {
            mut stats,
            complete,
        } = measured?;
        if let Some(from_runtime) = from_runtime {
            for container in stats.pods.iter_mut().flat_map(|pod| &mut pod.containers) {
                let layer = from_runtime.layers.get(&container.id);
                container.writable_layer = layer.cloned();
            }
            stats.images = from_runtime.images;
            stats.runtime_error = from_runtime.error;
        }
        if !complete {
            self.complete(&mut stats).await;
        }
        let stats = Arc::new(stats);
        state.last = Some(Collected {
            at,
            depth,
            stats: Arc::clone(&stats),
        });
        Ok(stats)
    }

    /// Measures the node, the memory of all pods together, and the runtime's file systems as a
    /// whole. Pods are not measured; this costs a few system calls.
    ///
    /// # Errors
    /// As [`stats`](Self::stats).
    pub async fn node(&self) -> Result<NodeStats, StatsError> {
        let state = timeout(LIMIT, Arc::clone(&self.state).lock_owned()).await;
        let mut state = state.map_err(|_| StatsError::Hung)?;
        let known = state.mount_points.as_ref();
        if known.is_none_or(|known| known.at.elapsed() >= MOUNT_POINT_AGE) {
            match self.cri.image_fs_info().await {
                Ok(reported) => {
                    state.mount_points = Some(MountPoints {
                        at: Instant::now(),
                        reported: Arc::new(reported),
                    });
                }
                Err(error) => debug!(%error, "the runtime does not report its file systems"),
            }
        }
        let subjects = Arc::clone(&self.subjects);
        let root_dir = self.root_dir.clone();
        let mount_points = state.mount_points.clone();
        let work = blocking(move || {
            let mut collector = state
                .collector
                .take()
                .unwrap_or_else(|| Collector::new(Path::new(PROC)));
            let measured = measure_node(&mut collector, &root_dir, &*subjects);
            state.collector = Some(collector);
            let images = mount_points.and_then(|known| ImageFileSystems::whole(&known.reported));
            if images.is_none() {
                state.mount_points = None;
            }
            measured.map(|stats| NodeStats { images, ..stats })
        });
        let done = timeout(LIMIT, work).await.map_err(|_| StatsError::Hung)?;
        done.map_err(|_| StatsError::Panicked)?
    }

    /// Asks the runtime for what it alone knows, if that is too old.
    async fn ask_runtime(&self, state: &mut State) {
        let known = state.runtime.as_ref();
        if known.is_some_and(|known| known.error.is_none() && known.at.elapsed() < RUNTIME_AGE) {
            return;
        }
        let at = Instant::now();
        let (layers, images) = tokio::join!(self.cri.container_stats(), self.cri.image_fs_info());
        let mut error = None;
        let layers = layers.unwrap_or_else(|failed| {
            error = Some(failed.to_string());
            Vec::new()
        });
        let images = match images {
            Ok(reported) => {
                let read = blocking(move || ImageFileSystems::read(&reported));
                // A panic is logged already.
                timeout(LIMIT, read)
                    .await
                    .ok()
                    .and_then(Result::ok)
                    .flatten()
            }
            Err(failed) => {
                error.get_or_insert(failed.to_string());
                None
            }
        };
        if let Some(error) = &error {
            warn!(%error, "the runtime does not report writable layers or images");
        }
        state.runtime = Some(FromRuntime {
            at,
            layers: Arc::new(writable_layers(&layers)),
            images,
            error,
        });
    }

    /// Takes the runtime's numbers of pods whose cgroups were not found.
    async fn complete(&self, stats: &mut NodeStats) {
        match self.cri.pod_stats().await {
            Ok(reported) => runtime::complete(&mut stats.pods, &reported),
            Err(error) => {
                debug!(%error, "the runtime does not report the usage of pods");
                stats.runtime_error.get_or_insert(error.to_string());
            }
        }
    }
}

struct Measured {
    stats: NodeStats,
    /// Whether the cgroups of all pods and containers were found.
    complete: bool,
}

fn measure(
    collector: &mut Collector,
    depth: Depth,
    root_dir: &Path,
    subjects: &dyn Subjects,
) -> Result<Measured, StatsError> {
    let (mut subjects, cgroups) = (subjects.pods(), subjects.cgroups());
    collector.retain(&subjects, &cgroups);
    let failed = |what| move |source| StatsError::Node { what, source };
    let node = collector.node(depth);
    let node = node.map_err(failed("the usage of the node"))?;
    let file_system = collector.file_system(root_dir);
    let file_system = file_system.map_err(failed("the file system of the root directory"))?;
    let cgroups: Vec<CgroupStats> = cgroups
        .into_iter()
        .filter_map(|cgroup| collector.cgroup(cgroup, depth))
        .collect();
    subjects.sort_unstable_by(|a, b| {
        let key = |it: &PodSubject| {
            (
                identity::namespace(&it.pod).to_owned(),
                identity::name(&it.pod).to_owned(),
            )
        };
        key(a).cmp(&key(b))
    });
    let mut complete = true;
    let mut pods = Vec::<PodStats>::with_capacity(subjects.len());
    for subject in &subjects {
        if let Some((pod, found)) = collector.pod(subject, depth) {
            complete &= found;
            pods.push(pod);
        }
    }
    Ok(Measured {
        stats: NodeStats {
            node,
            file_system,
            images: None,
            cgroups,
            pods,
            runtime_error: None,
        },
        complete,
    })
}

fn measure_node(
    collector: &mut Collector,
    root_dir: &Path,
    subjects: &dyn Subjects,
) -> Result<NodeStats, StatsError> {
    let failed = |what| move |source| StatsError::Node { what, source };
    let node = collector.node(Depth::Everything);
    let file_system = collector.file_system(root_dir);
    let pods = subjects.cgroups().into_iter().filter(|cgroup| {
        let kind = cgroup.system_container;
        kind == Some(SystemContainer::Pods)
    });
    Ok(NodeStats {
        node: node.map_err(failed("the usage of the node"))?,
        file_system: file_system.map_err(failed("the file system of the root directory"))?,
        cgroups: pods
            .filter_map(|cgroup| collector.cgroup(cgroup, Depth::CpuAndMemory))
            .collect(),
        ..NodeStats::default()
    })
}

#[cfg(test)]
mod tests {
    use fake_runtime::{FakeRuntime, Fault, Times, Verb};

    use super::*;
    use crate::subjects::CgroupSubject;

    #[derive(Debug)]
    struct Nothing;

    impl Subjects for Nothing {
        fn pods(&self) -> Vec<PodSubject> {
            Vec::new()
        }

        fn cgroups(&self) -> Vec<CgroupSubject> {
            Vec::new()
        }
    }

    fn provider() -> (FakeRuntime, StatsProvider) {
        let runtime = FakeRuntime::new();
        let channel = runtime.channel();
        let cri = CriClient::from_channels(channel.clone(), channel, Duration::from_secs(5));
        let provider = StatsProvider::new(Arc::new(Nothing), cri, Path::new("/"));
        (runtime, provider)
    }

    #[tokio::test(start_paused = true)]
    async fn requests_share_a_collection_for_some_seconds() {
        let (_runtime, provider) = provider();
        let brief = provider.stats(Depth::CpuAndMemory).await.unwrap();
        let all = provider.stats(Depth::Everything).await.unwrap();
        assert!(!Arc::ptr_eq(&brief, &all), "it has more");
        let again = provider.stats(Depth::CpuAndMemory).await.unwrap();
        assert!(Arc::ptr_eq(&all, &again));
        tokio::time::advance(MAX_AGE).await;
        let later = provider.stats(Depth::CpuAndMemory).await.unwrap();
        assert!(!Arc::ptr_eq(&all, &later));
        let now = provider.younger_than(Depth::CpuAndMemory, Duration::ZERO);
        assert!(!Arc::ptr_eq(&later, &now.await.unwrap()));
    }

    #[tokio::test(start_paused = true)]
    async fn the_runtime_is_asked_for_layers_and_images_only() {
        let (runtime, provider) = provider();
        let away = Fault::Error(tonic::Status::unavailable("it is away"));
        runtime.fault_all(&away, Times::Always);
        let brief = provider.stats(Depth::CpuAndMemory).await.unwrap();
        assert_eq!(brief.runtime_error, None);
        let all = provider.stats(Depth::Everything).await.unwrap();
        let error = all.runtime_error.clone().unwrap();
        assert!(error.contains("it is away"), "{error}");
        assert!(all.node.usage.cpu.is_some());
    }
    #[tokio::test(start_paused = true)]
    async fn the_node_alone_is_measured_without_asking_for_pods() {
        let (runtime, provider) = provider();
        let node = provider.node().await.unwrap();
        assert!(node.node.usage.memory.unwrap().available > Some(0));
        assert!(node.node.most_processes > 0 && node.file_system.capacity > Some(0));
        let asked = |verb| runtime.calls(verb);
        assert_eq!(asked(Verb::ListContainerStats), 0);
        provider.node().await.unwrap();
        assert_eq!(asked(Verb::ImageFsInfo), 1);
    }
}
