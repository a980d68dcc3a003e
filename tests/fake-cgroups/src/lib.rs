//! Cgroups in memory, for tests of the container manager and of pods.

#![forbid(unsafe_code)]

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use kubelet_container_manager::cgroup::{
    CgroupConfig, CgroupError, CgroupFuture, CgroupName, CgroupState, Cgroups, Driver, MemoryUsage,
};
use kubelet_metrics::{Collector, Exposition};
use parking_lot::Mutex;

/// Cgroups in memory. A cgroup keeps the limits that were set last.
#[derive(Debug)]
pub struct FakeCgroups {
    driver: Driver,
    all: Mutex<BTreeMap<String, CgroupConfig>>,
    /// Those that lack a controller.
    incomplete: Mutex<BTreeSet<String>>,
    full: AtomicBool,
    usage: Mutex<BTreeMap<String, MemoryUsage>>,
}

impl FakeCgroups {
    /// No cgroups yet.
    pub fn new(driver: Driver) -> Arc<Self> {
        Arc::new(Self {
            driver,
            all: Mutex::default(),
            incomplete: Mutex::default(),
            full: AtomicBool::default(),
            usage: Mutex::default(),
        })
    }

    /// The limits of a cgroup, by its components separated by slashes; `None` if it does not exist.
    pub fn config(&self, path: &str) -> Option<CgroupConfig> {
        self.all.lock().get(path).cloned()
    }

    /// The paths of all cgroups.
    pub fn paths(&self) -> Vec<String> {
        self.all.lock().keys().cloned().collect()
    }

    /// Creates a cgroup, as another program would.
    pub fn add(&self, path: &str) {
        self.all
            .lock()
            .insert(path.to_owned(), CgroupConfig::default());
    }

    /// Removes a cgroup, as another program would.
    pub fn take(&self, path: &str) {
        self.all.lock().remove(path);
    }

    /// Takes a controller from a cgroup, as systemd does.
    pub fn disable_controller(&self, path: &str) {
        self.incomplete.lock().insert(path.to_owned());
    }

    /// Whether a cgroup lacks a controller.
    pub fn is_incomplete(&self, path: &str) -> bool {
        self.incomplete.lock().contains(path)
    }

    /// Sets the memory that a cgroup uses. A limit below its working set is refused.
    pub fn use_memory(&self, path: &str, usage: MemoryUsage) {
        self.usage.lock().insert(path.to_owned(), usage);
    }

    /// Whether each creation fails, because the kernel has no room for more cgroups.
    pub fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }
}

fn failed(path: &str, kind: io::ErrorKind) -> CgroupError {
    CgroupError::File {
        action: "create",
        path: path.into(),
        source: kind.into(),
    }
}

impl Collector for FakeCgroups {
    fn collect(&self, _: &mut Exposition) {}
}

impl Cgroups for FakeCgroups {
    fn driver(&self) -> Driver {
        self.driver
    }

    fn is_v2(&self) -> bool {
        true
    }

    fn state<'a>(&'a self, name: &'a CgroupName) -> CgroupFuture<'a, CgroupState> {
        let path = name.to_string();
        let state = if !self.all.lock().contains_key(&path) {
            CgroupState::Absent
        } else if self.incomplete.lock().contains(&path) {
            CgroupState::Incomplete(vec!["cpuset".to_owned()])
        } else {
            CgroupState::Complete
        };
        Box::pin(async move { Ok(state) })
    }

    fn create<'a>(
        &'a self,
        name: &'a CgroupName,
        config: &'a CgroupConfig,
    ) -> CgroupFuture<'a, ()> {
        Box::pin(async move {
            let path = name.to_string();
            // As the real one, a name that the driver cannot have is refused.
            name.path(self.driver)?;
            if self.full.load(Ordering::Relaxed) {
                return Err(failed(&path, io::ErrorKind::StorageFull));
            }
            self.incomplete.lock().remove(&path);
            self.all.lock().insert(path, config.clone());
            Ok(())
        })
    }

    fn update<'a>(
        &'a self,
        name: &'a CgroupName,
        config: &'a CgroupConfig,
    ) -> CgroupFuture<'a, ()> {
        Box::pin(async move {
            let path = name.to_string();
            let mut all = self.all.lock();
            let Some(known) = all.get_mut(&path) else {
                return Err(failed(&path, io::ErrorKind::NotFound));
            };
            let used = self.usage.lock().get(&path).copied().unwrap_or_default();
            if config
                .memory
                .is_some_and(|limit| (0..used.working_set).contains(&limit))
            {
                return Err(failed(&path, io::ErrorKind::ResourceBusy));
            }
            known.cpu_shares = config.cpu_shares.or(known.cpu_shares);
            known.cpu_quota = config.cpu_quota.or(known.cpu_quota);
            known.cpu_period = config.cpu_period.or(known.cpu_period);
            known.memory = config.memory.or(known.memory);
            known.pids = config.pids.or(known.pids);
            known.unified.extend(config.unified.clone());
            Ok(())
        })
    }

    fn limits<'a>(&'a self, name: &'a CgroupName) -> CgroupFuture<'a, CgroupConfig> {
        Box::pin(async move {
            let path = name.to_string();
            let known = self.config(&path);
            known.ok_or_else(|| failed(&path, io::ErrorKind::NotFound))
        })
    }

    fn memory_usage<'a>(&'a self, name: &'a CgroupName) -> CgroupFuture<'a, MemoryUsage> {
        let usage = self.usage.lock().get(&name.to_string()).copied();
        Box::pin(async move { Ok(usage.unwrap_or_default()) })
    }

    fn remove<'a>(&'a self, name: &'a CgroupName) -> CgroupFuture<'a, ()> {
        Box::pin(async move {
            let path = name.to_string();
            name.path(self.driver)?;
            let below = format!("{path}/");
            let mut all = self.all.lock();
            all.retain(|one, _| *one != path && !one.starts_with(&below));
            Ok(())
        })
    }

    fn children<'a>(&'a self, name: &'a CgroupName) -> CgroupFuture<'a, Vec<String>> {
        Box::pin(async move {
            let prefix = format!("{name}/");
            let all = self.all.lock();
            let below = all.keys().filter_map(|one| one.strip_prefix(&prefix));
            let children = below.filter(|rest| !rest.contains('/'));
            Ok(children.map(str::to_owned).collect())
        })
    }
}
