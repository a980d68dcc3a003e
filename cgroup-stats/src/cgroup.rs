//! A cgroup's directories.

use std::{
    collections::BTreeMap,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// The directories of a cgroup. Only in v1 does each controller have its own directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cgroup {
    pub(crate) v1: BTreeMap<&'static str, PathBuf>,
    pub(crate) unified: Option<PathBuf>,
}

impl Cgroup {
    /// The directory of a v1 controller.
    pub fn v1(&self, controller: &str) -> Option<&Path> {
        self.v1.get(controller).map(PathBuf::as_path)
    }

    /// The directory in the v2 hierarchy. On a hybrid node, it has only the pressure files, as the
    /// controllers are in v1.
    pub fn unified(&self) -> Option<&Path> {
        self.unified.as_deref()
    }

    /// The directory whose `cgroup.procs` has the processes of the cgroup.
    pub fn processes(&self) -> Option<&Path> {
        self.v1("pids").or(self.unified())
    }

    /// When it was created, in nanoseconds since the epoch, as far as the kernel tells: it has the
    /// time of the first look. `None` if it does not exist.
    pub fn created_at(&self) -> Option<i64> {
        let v1 = self.v1.values();
        let v1 = v1.map(|path| path.join("cgroup.clone_children"));
        let unified = self.unified.iter().map(|path| path.join("cgroup.events"));
        let times = v1.chain(unified).filter_map(|file| {
            let found = file.metadata().ok()?;
            let seconds = found.mtime().checked_mul(1_000_000_000)?;
            seconds.checked_add(found.mtime_nsec())
        });
        times.min()
    }

    /// The parent cgroup.
    #[must_use]
    pub fn parent(&self) -> Self {
        self.moved(|path| path.parent().map(Path::to_owned))
    }

    /// The cgroup with this name in it.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        self.moved(|path| Some(path.join(name)))
    }

    fn moved(&self, to: impl Fn(&Path) -> Option<PathBuf>) -> Self {
        let v1 = self.v1.iter();
        Self {
            v1: v1
                .filter_map(|(controller, path)| Some((*controller, to(path)?)))
                .collect(),
            unified: self.unified.as_deref().and_then(to),
        }
    }
}
