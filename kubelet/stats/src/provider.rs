//! Collects statistics, and shares them between requests.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kubelet_cri_client::CriClient;
use kubelet_host::repeatable::blocking;
use kubelet_pod_spec::identity;
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::{Instant, timeout},
};

use crate::{
    collector::Collector,
    file_systems::ImageFileSystems,
    runtime_reports::{LIMIT, RuntimeReports},
    subjects::{Depth, PodSubject, Subjects, SystemContainer},
    usage::{CgroupStats, NodeStats, PodStats},
};

/// Requests share a collection until it is this old. Agents that scrape several pages, or that
/// scrape at the same time, cost one collection.
const MAX_AGE: Duration = Duration::from_secs(5);

/// How long a scrape waits for the runtime.
const SCRAPE: Duration = Duration::from_secs(2);

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
    runtime: Arc<RuntimeReports>,
    root_dir: PathBuf,
    state: Arc<Mutex<State>>,
}

/// Not locked while the runtime is asked: that may take minutes, and eviction must go on.
#[derive(Debug, Default)]
struct State {
    /// Taken during a collection.
    collector: Option<Collector>,
    last: Option<Collected>,
}

#[derive(Debug)]
struct Collected {
    at: Instant,
    depth: Depth,
    stats: Arc<NodeStats>,
}

impl StatsProvider {
    /// `root_dir` is the kubelet's root directory.
    pub fn new(subjects: Arc<dyn Subjects>, cri: CriClient, root_dir: &Path) -> Self {
        Self {
            subjects,
            runtime: Arc::new(RuntimeReports::new(cri)),
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
        if let Some(last) = self.locked().await?.last(depth, age) {
            return Ok(last);
        }
        let from_runtime = match depth {
            Depth::CpuAndMemory | Depth::Kernel => None,
            Depth::Prompt => Some(self.runtime.layers_and_images(Some(SCRAPE)).await),
            Depth::Everything => Some(self.runtime.layers_and_images(None).await),
        };
        let mut state = self.locked().await?;
        // Another request may have waited for the runtime too.
        if let Some(last) = state.last(depth, age) {
            return Ok(last);
        }
        let at = Instant::now();
        let subjects = Arc::clone(&self.subjects);
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
        // Kept, so that requests that wait for the lock find these statistics.
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
            drop(state);
            let patience = match depth {
                Depth::Prompt => SCRAPE,
                Depth::CpuAndMemory | Depth::Kernel | Depth::Everything => LIMIT,
            };
            self.runtime.complete(&mut stats, patience).await;
            state = self.locked().await?;
        }
        let stats = Arc::new(stats);
        state.last = Some(Collected {
            at,
            depth,
            stats: Arc::clone(&stats),
        });
        Ok(stats)
    }

    async fn locked(&self) -> Result<OwnedMutexGuard<State>, StatsError> {
        let state = timeout(LIMIT, Arc::clone(&self.state).lock_owned()).await;
        state.map_err(|_| StatsError::Hung)
    }

    /// Measures the node, the memory of all pods together, and the runtime's file systems as a
    /// whole. Pods are not measured; this costs a few system calls.
    ///
    /// # Errors
    /// As [`stats`](Self::stats).
    pub async fn node(&self) -> Result<NodeStats, StatsError> {
        let mount_points = self.runtime.mount_points().await;
        let mut state = self.locked().await?;
        let subjects = Arc::clone(&self.subjects);
        let root_dir = self.root_dir.clone();
        let work = blocking(move || {
            let mut collector = state
                .collector
                .take()
                .unwrap_or_else(|| Collector::new(Path::new(PROC)));
            let measured = measure_node(&mut collector, &root_dir, &*subjects);
            state.collector = Some(collector);
            let images = mount_points.and_then(|known| ImageFileSystems::whole(&known));
            measured.map(|stats| NodeStats { images, ..stats })
        });
        let done = timeout(LIMIT, work).await.map_err(|_| StatsError::Hung)?;
        let stats = done.map_err(|_| StatsError::Panicked)??;
        if stats.images.is_none() {
            self.runtime.forget_mount_points();
        }
        Ok(stats)
    }
}

impl State {
    fn last(&self, depth: Depth, age: Duration) -> Option<Arc<NodeStats>> {
        let last = self.last.as_ref();
        // An error of the runtime concerns only those that need what it tells.
        let last = last.filter(|last| {
            last.at.elapsed() < age
                && (last.depth == depth || last.depth > depth && last.stats.runtime_error.is_none())
        })?;
        Some(Arc::clone(&last.stats))
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
    use crate::{runtime_reports::MOUNT_POINT_AGE, subjects::CgroupSubject};

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

    /// How long a request to the runtime may take.
    const REQUEST: Duration = Duration::from_secs(30);

    fn provider() -> (FakeRuntime, StatsProvider) {
        let runtime = FakeRuntime::new();
        let channel = runtime.channel();
        let cri = CriClient::from_channels(channel.clone(), channel, REQUEST);
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
        tokio::time::advance(MAX_AGE).await;
        let (one, other) = tokio::join!(
            provider.stats(Depth::Everything),
            provider.stats(Depth::Everything)
        );
        assert!(Arc::ptr_eq(&one.unwrap(), &other.unwrap()), "at one time");
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
    async fn a_runtime_that_hangs_holds_up_only_what_needs_it() {
        let (runtime, provider) = provider();
        let provider = Arc::new(provider);
        provider.node().await.unwrap();
        runtime.fault_all(&Fault::Hang, Times::Always);
        let asking = Arc::clone(&provider);
        let asking = tokio::spawn(async move { asking.stats(Depth::Everything).await });
        tokio::task::yield_now().await;
        let begun = Instant::now();
        let zero = Duration::ZERO;
        let kernel = provider.younger_than(Depth::Kernel, zero).await.unwrap();
        assert!(kernel.node.most_processes > 0);
        let node = provider.node().await.unwrap();
        assert!(node.images.is_some() && begun.elapsed() < Duration::from_secs(1));
        assert!(!asking.is_finished());
        // Where the file systems are is known well enough.
        tokio::time::advance(MOUNT_POINT_AGE).await;
        assert!(provider.node().await.unwrap().images.is_some());
        let begun = Instant::now();
        assert!(provider.node().await.unwrap().images.is_some());
        assert!(begun.elapsed() < Duration::from_secs(1));
        assert!(asking.await.unwrap().unwrap().runtime_error.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_scrape_does_not_wait_for_a_runtime_that_hangs() {
        let (runtime, provider) = provider();
        let first = provider.stats(Depth::Prompt).await.unwrap();
        assert!(first.images.is_some() && first.runtime_error.is_none());
        runtime.fault_all(&Fault::Hang, Times::Always);
        tokio::time::advance(Duration::from_secs(60)).await;
        let begun = Instant::now();
        let late = provider.stats(Depth::Prompt).await.unwrap();
        assert_eq!(begun.elapsed(), SCRAPE);
        let error = late.runtime_error.clone().unwrap_or_default();
        assert!(error.contains("within 2 s"), "{error}");
        assert!(late.images.is_some(), "as of the last report");
        // It is no error of what the kernel tells.
        let kernel = provider.stats(Depth::CpuAndMemory).await.unwrap();
        assert_eq!(kernel.runtime_error, None);
        assert_eq!(runtime.calls(Verb::ListContainerStats), 2);
        // Those that need the report wait for the one in progress.
        let (one, other) = tokio::join!(
            provider.younger_than(Depth::Everything, Duration::ZERO),
            provider.younger_than(Depth::Everything, Duration::ZERO)
        );
        assert_eq!(begun.elapsed(), REQUEST);
        assert!(one.unwrap().runtime_error.is_some() && other.unwrap().runtime_error.is_some());
        assert_eq!(runtime.calls(Verb::ListContainerStats), 2);
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
