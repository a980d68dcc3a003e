//! Cgroups by name, with either version and either driver.
//!
//! cgroups-rs is not used: its managers bring a second D-Bus client, serve one container's process
//! each, and its types lack the files of cgroup v2 that pods need.

mod config;
mod files;
mod hierarchy;
mod limits;
mod name;
pub(crate) mod processes;
mod systemd;
mod usage;

use std::{
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
};

use kubelet_host::repeatable;
use kubelet_metrics::{Collector, DEFAULT_BUCKETS, Exposition, Family, Histogram};
use tokio::time::Instant;
use tracing::warn;

pub(crate) use self::hierarchy::Hierarchy;
pub use self::{
    config::CgroupConfig,
    name::{CgroupName, Driver},
    usage::MemoryUsage,
};

/// A failed operation on a cgroup.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// An invalid component of a cgroup's name.
    #[error("{component:?} cannot be part of a cgroup's name: it {rule}")]
    Name {
        /// The invalid component.
        component: String,
        /// The rule that it breaks.
        rule: &'static str,
    },
    /// The kernel lacks a controller, or its hierarchy is not mounted.
    #[error("the kernel has no cgroup controller {controller}")]
    NoController {
        /// The controller.
        controller: &'static str,
    },
    /// A cgroup that must exist does not.
    #[error("cgroup {0} does not exist")]
    Absent(CgroupName),
    /// A cgroup that must exist lacks controllers.
    #[error("cgroup {name} lacks the controllers {}", missing.join(", "))]
    Incomplete {
        /// Its name.
        name: CgroupName,
        /// The controllers.
        missing: Vec<String>,
    },
    /// A process without one cgroup, with cgroup v1.
    #[error("the process is in the cgroup {cpu} for CPU and in {memory} for memory")]
    Different {
        /// Its cgroup of CPU.
        cpu: String,
        /// Its cgroup of memory.
        memory: String,
    },
    /// A failed operation on a file or directory.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The kernel refuses a value.
    #[error("cannot write {value} to {}: {source}", path.display())]
    Set {
        /// The value.
        value: String,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// systemd cannot be reached or refuses.
    #[error("cannot {action} {unit}: {source}")]
    Systemd {
        /// The operation.
        action: &'static str,
        /// The slice.
        unit: String,
        /// The cause.
        source: Box<zbus::Error>,
    },
    /// A job of systemd failed.
    #[error("cannot {action} {unit}: the job's result is {result}")]
    Job {
        /// The operation.
        action: &'static str,
        /// The slice.
        unit: String,
        /// The job's result.
        result: String,
    },
    /// The work on files panicked.
    #[error("the work on cgroup files panicked")]
    Panicked,
}

/// Whether a cgroup exists, and how much of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CgroupState {
    /// Nothing.
    Absent,
    /// It exists without these controllers. systemd disables those that it does not need itself.
    Incomplete(Vec<String>),
    /// It exists with all controllers that pods need.
    Complete,
}

/// A future of an operation on cgroups.
pub type CgroupFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, CgroupError>> + Send + 'a>>;

/// The cgroups of a machine.
pub trait Cgroups: Collector {
    /// The cgroup driver.
    fn driver(&self) -> Driver;

    /// Whether the unified hierarchy is used.
    fn is_v2(&self) -> bool;

    /// Looks at a cgroup.
    fn state<'a>(&'a self, name: &'a CgroupName) -> CgroupFuture<'a, CgroupState>;

    /// Creates a cgroup and those above it, or completes it, and sets its limits. If that fails, a
    /// new cgroup is removed again.
    fn create<'a>(&'a self, name: &'a CgroupName, config: &'a CgroupConfig)
    -> CgroupFuture<'a, ()>;

    /// Sets the limits of an existing cgroup.
    fn update<'a>(&'a self, name: &'a CgroupName, config: &'a CgroupConfig)
    -> CgroupFuture<'a, ()>;

    /// The CPU and memory limits of a cgroup that are in force.
    fn limits<'a>(&'a self, name: &'a CgroupName) -> CgroupFuture<'a, CgroupConfig>;

    /// The memory that a cgroup uses.
    fn memory_usage<'a>(&'a self, name: &'a CgroupName) -> CgroupFuture<'a, MemoryUsage>;

    /// Kills the processes of a cgroup and of those below it, and removes them. Does nothing if it
    /// does not exist.
    fn remove<'a>(&'a self, name: &'a CgroupName) -> CgroupFuture<'a, ()>;

    /// The components of the cgroups in a cgroup; empty if it does not exist.
    fn children<'a>(&'a self, name: &'a CgroupName) -> CgroupFuture<'a, Vec<String>>;
}

/// The cgroups of this machine.
#[derive(Debug)]
pub struct NodeCgroups {
    hierarchy: Arc<Hierarchy>,
    driver: Driver,
    /// Sizes of huge pages in bytes.
    page_sizes: Vec<u64>,
    durations: Family<Histogram, 1>,
}

impl NodeCgroups {
    /// Finds the mounted hierarchies; blocking.
    ///
    /// # Errors
    /// No hierarchy with the controllers that pods need is mounted.
    pub fn find(driver: Driver, page_sizes: Vec<u64>) -> Result<Self, CgroupError> {
        Ok(Self {
            hierarchy: Arc::new(Hierarchy::read()?),
            driver,
            page_sizes,
            durations: Family::histogram(
                "kubelet_cgroup_manager_duration_seconds",
                "[ALPHA] Duration in seconds for cgroup manager operations. Broken down by method.",
                ["operation_type"],
                DEFAULT_BUCKETS,
            ),
        })
    }
}

impl NodeCgroups {
    /// Works on the files of a cgroup, given by its path below the root of each hierarchy.
    async fn on_files<T: Send + 'static>(
        &self,
        name: &CgroupName,
        work: impl FnOnce(&Hierarchy, &Path) -> Result<T, CgroupError> + Send + 'static,
    ) -> Result<T, CgroupError> {
        let hierarchy = Arc::clone(&self.hierarchy);
        let relative = name.relative_path(self.driver)?;
        let done = repeatable::blocking(move || work(&hierarchy, &relative)).await;
        done.map_err(|_| CgroupError::Panicked)?
    }

    async fn make(&self, name: &CgroupName, config: &CgroupConfig) -> Result<(), CgroupError> {
        let look = |hierarchy: &Hierarchy, relative: &Path| Ok(hierarchy.state(relative));
        let is_new = self.on_files(name, look).await? == CgroupState::Absent;
        if self.driver == Driver::Systemd {
            systemd::start(name).await?;
        }
        let made = async {
            self.on_files(name, files::create).await?;
            self.set(name, config).await
        };
        let Err(error) = made.await else {
            return Ok(());
        };
        // A new cgroup without its limits would look as if it had them. An older one has processes.
        if is_new && let Err(error) = self.delete(name).await {
            warn!(cgroup = %name, %error, "cannot remove a cgroup that could not be limited");
        }
        Err(error)
    }

    async fn set(&self, name: &CgroupName, config: &CgroupConfig) -> Result<(), CgroupError> {
        let is_v2 = self.is_v2();
        if self.driver == Driver::Systemd {
            systemd::set(name, config, is_v2).await?;
        }
        let settings = if is_v2 {
            config.v2(&self.page_sizes)
        } else {
            config.v1(&self.page_sizes)
        };
        self.on_files(name, move |hierarchy, relative| {
            files::set(hierarchy, relative, &settings)
        })
        .await
    }

    async fn delete(&self, name: &CgroupName) -> Result<(), CgroupError> {
        if name.is_root() {
            return Ok(());
        }
        self.on_files(name, |hierarchy, relative| {
            files::kill(hierarchy, relative);
            Ok(())
        })
        .await?;
        if self.driver == Driver::Systemd {
            systemd::stop(name).await?;
        }
        self.on_files(name, files::remove).await
    }

    async fn list(&self, name: &CgroupName) -> Result<Vec<String>, CgroupError> {
        let directories = self.on_files(name, files::children).await?;
        let components = directories
            .iter()
            .filter_map(|directory| name.component(directory, self.driver));
        Ok(components.collect())
    }

    async fn timed<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, CgroupError>>,
    ) -> Result<T, CgroupError> {
        let begun = Instant::now();
        let done = work.await;
        let duration = self.durations.of([operation]);
        duration.observe_duration(begun.elapsed());
        done
    }
}

impl Cgroups for NodeCgroups {
    fn driver(&self) -> Driver {
        self.driver
    }

    fn is_v2(&self) -> bool {
        self.hierarchy.is_v2()
    }

    fn state<'a>(&'a self, name: &'a CgroupName) -> CgroupFuture<'a, CgroupState> {
        Box::pin(self.on_files(name, |hierarchy, relative| Ok(hierarchy.state(relative))))
    }

    fn create<'a>(
        &'a self,
        name: &'a CgroupName,
        config: &'a CgroupConfig,
    ) -> CgroupFuture<'a, ()> {
        Box::pin(self.timed("create", self.make(name, config)))
    }

    fn update<'a>(
        &'a self,
        name: &'a CgroupName,
        config: &'a CgroupConfig,
    ) -> CgroupFuture<'a, ()> {
        Box::pin(self.timed("update", self.set(name, config)))
    }

    fn limits<'a>(&'a self, name: &'a CgroupName) -> CgroupFuture<'a, CgroupConfig> {
        Box::pin(self.on_files(name, limits::read))
    }

    fn memory_usage<'a>(&'a self, name: &'a CgroupName) -> CgroupFuture<'a, MemoryUsage> {
        Box::pin(self.on_files(name, usage::read))
    }

    fn remove<'a>(&'a self, name: &'a CgroupName) -> CgroupFuture<'a, ()> {
        Box::pin(self.timed("destroy", self.delete(name)))
    }

    fn children<'a>(&'a self, name: &'a CgroupName) -> CgroupFuture<'a, Vec<String>> {
        Box::pin(self.list(name))
    }
}

impl Collector for NodeCgroups {
    fn collect(&self, page: &mut Exposition) {
        self.durations.collect(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_new_cgroup_is_removed_if_it_cannot_be_limited() {
        let root = tempfile::tempdir().unwrap();
        let cgroups = NodeCgroups {
            hierarchy: Arc::new(Hierarchy::V2 {
                root: root.path().to_owned(),
                controllers: ["cpu", "memory", "pids"].map(str::to_owned).into(),
            }),
            driver: Driver::Cgroupfs,
            page_sizes: Vec::new(),
            durations: Family::histogram("", "", ["operation_type"], DEFAULT_BUCKETS),
        };
        let old = root.path().join("old");
        std::fs::create_dir(&old).unwrap();
        std::fs::write(old.join("cgroup.controllers"), "cpu memory\n").unwrap();
        // The directories have no files of the kernel.
        let config = CgroupConfig {
            memory: Some(1),
            ..CgroupConfig::default()
        };
        for (name, remains) in [("old", true), ("new", false)] {
            let cgroup = CgroupName::parse(name).unwrap();
            let error = cgroups.create(&cgroup, &config).await.unwrap_err();
            assert!(matches!(error, CgroupError::Set { .. }), "{error}");
            assert_eq!(root.path().join(name).exists(), remains, "{name}");
        }
    }
}
