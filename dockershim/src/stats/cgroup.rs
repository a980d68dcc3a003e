//! Finds a container's cgroups from `/proc/<pid>/cgroup` and the mounts of the hierarchies
//! (`cgroups(7)`), once per process.

use std::{collections::HashMap, sync::Arc};

use cgroup_stats::{Cgroup, Mounts};
use parking_lot::Mutex;

use crate::{model::Id, process::Processes};

/// Finds and caches cgroups.
#[derive(Debug)]
pub struct CgroupCache {
    processes: Arc<Processes>,
    mounts: Mutex<Option<Arc<Mounts>>>,
    /// The cached cgroups by container, with the pid that they were found for.
    known: Mutex<HashMap<Id, (i64, Arc<Cgroup>)>>,
}

impl CgroupCache {
    /// Creates an empty cache.
    pub fn new(processes: Arc<Processes>) -> Self {
        Self {
            processes,
            mounts: Mutex::default(),
            known: Mutex::default(),
        }
    }

    /// The cgroup of the Docker container `id`, whose first process is `pid`. `None` if the process
    /// has exited or the pid belongs to another one.
    pub fn find(&self, id: &str, pid: i64) -> Option<Arc<Cgroup>> {
        if let Some((of, cgroup)) = self.known.lock().get(id)
            && *of == pid
        {
            return Some(Arc::clone(cgroup));
        }
        let process = self.processes.open(id, pid).ok()?;
        let cgroup = Arc::new(self.mounts()?.locate(process.cgroups(), id)?);
        let known = (pid, Arc::clone(&cgroup));
        self.known.lock().insert(id.into(), known);
        Some(cgroup)
    }

    /// Removes all entries that are not to `keep`.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.known.lock().retain(|id, _| keep(id));
    }

    fn mounts(&self) -> Option<Arc<Mounts>> {
        let mut known = self.mounts.lock();
        if known.is_none() {
            *known = Some(Arc::new(Mounts::read(self.processes.proc()).ok()?));
        }
        known.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const ID: &str = "0123456789abcdef";
    const V2: &str = "33 20 0:28 / /cg/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn what_was_found_is_kept_for_the_process() {
        let proc = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("self/mountinfo", V2),
            ("7/cgroup", "0::/a/0123456789abcdef"),
        ] {
            let path = proc.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let cache = CgroupCache::new(Arc::new(Processes::in_procfs(proc.path())));
        let first = cache.find(ID, 7).unwrap();
        fs::remove_dir_all(proc.path().join("7")).unwrap();
        assert_eq!(cache.find(ID, 7), Some(first));
        assert_eq!(cache.find(ID, 8), None);
        assert_eq!(cache.find(ID, 0), None);
        cache.retain(|_| false);
        assert_eq!(cache.find(ID, 7), None);
    }
}
