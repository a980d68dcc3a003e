//! The mounted cgroup hierarchies of this machine, cgroups(7).

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use kubelet_host::mount_info::MountInfo;

use super::{CgroupError, CgroupState};

/// The controllers that the kubelet sets. A cgroup without one of them does not hold its pods.
const NEEDED: [&str; 6] = ["cpu", "cpuacct", "cpuset", "memory", "pids", "hugetlb"];
/// Where the hierarchies are mounted, by convention.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";
/// Where systemd and runc expect the unified hierarchy beside those of v1.
const HYBRID: &str = "/sys/fs/cgroup/unified";
/// Lists the controllers of a cgroup of the unified hierarchy.
const CONTROLLERS: &str = "cgroup.controllers";

/// The cgroup version, with the mount points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hierarchy {
    /// One hierarchy per controller, or per few of them.
    V1 {
        /// The mount points of all hierarchies.
        all: Vec<PathBuf>,
        /// The mount point by controller.
        controllers: BTreeMap<String, PathBuf>,
        /// The mount point of the unified hierarchy beside them, which has no controllers.
        hybrid: Option<PathBuf>,
    },
    /// The unified hierarchy.
    V2 {
        /// Its mount point.
        root: PathBuf,
        /// Its controllers.
        controllers: Vec<String>,
    },
}

impl Hierarchy {
    /// Reads the mounts and the controllers; blocking.
    ///
    /// # Errors
    /// No hierarchy with the controllers that pods need is mounted.
    pub(crate) fn read() -> Result<Self, CgroupError> {
        let root = Path::new(ROOT);
        if let Ok(text) = fs::read_to_string(root.join(CONTROLLERS)) {
            return Self::v2(root, &text);
        }
        let mounts = kubelet_host::mount_info::read().map_err(|source| CgroupError::File {
            action: "read",
            path: "/proc/self/mountinfo".into(),
            source,
        })?;
        Self::v1(&mounts)
    }

    fn v2(root: &Path, controllers: &str) -> Result<Self, CgroupError> {
        let controllers: Vec<String> = controllers.split_whitespace().map(str::to_owned).collect();
        require(["cpu", "memory", "pids"], |name| {
            controllers.iter().any(|one| one == name)
        })?;
        Ok(Self::V2 {
            root: root.to_owned(),
            controllers,
        })
    }

    fn v1(mounts: &[MountInfo]) -> Result<Self, CgroupError> {
        let mut controllers = BTreeMap::<String, PathBuf>::new();
        for mount in mounts.iter().filter(|mount| mount.fs_type == "cgroup") {
            for option in mount.super_options.split(',') {
                if matches!(
                    option,
                    "rw" | "ro" | "xattr" | "noprefix" | "clone_children"
                ) {
                    continue;
                }
                let point = controllers.entry(option.to_owned());
                // A hierarchy may be mounted several times; the shortest path counts, as upstream.
                let point = point.or_insert_with(|| mount.mount_point.clone());
                if mount.mount_point.as_os_str().len() < point.as_os_str().len() {
                    point.clone_from(&mount.mount_point);
                }
            }
        }
        controllers.retain(|name, _| !name.contains('=') || name == "name=systemd");
        require(["cpu", "memory", "pids"], |name| {
            controllers.contains_key(name)
        })?;
        let mut all: Vec<PathBuf> = controllers.values().cloned().collect();
        all.sort_unstable();
        all.dedup();
        let is_hybrid = |mount: &&MountInfo| {
            mount.fs_type == "cgroup2" && mount.mount_point == Path::new(HYBRID)
        };
        let hybrid = mounts.iter().find(is_hybrid);
        Ok(Self::V1 {
            all,
            controllers,
            hybrid: hybrid.map(|mount| mount.mount_point.clone()),
        })
    }

    /// Whether the unified hierarchy is where the hierarchies are by convention. This does not read
    /// the table of mounts, which is long on a node with many pods.
    pub(crate) fn unified_at_root() -> bool {
        Path::new(ROOT).join(CONTROLLERS).exists()
    }

    /// Whether this is the unified hierarchy.
    pub(crate) const fn is_v2(&self) -> bool {
        matches!(self, Self::V2 { .. })
    }

    /// The directories of a cgroup, of each hierarchy one.
    pub(crate) fn directories(&self, relative: &Path) -> Vec<PathBuf> {
        match self {
            Self::V1 { all, .. } => all.iter().map(|root| root.join(relative)).collect(),
            Self::V2 { root, .. } => vec![root.join(relative)],
        }
    }

    /// The directories that a runtime may have made for a cgroup: runc makes one in a hybrid
    /// machine's unified hierarchy, too, and leaves those of pods behind.
    pub(crate) fn made_by_runtimes(&self, relative: &Path) -> Vec<PathBuf> {
        let mut directories = self.directories(relative);
        if let Self::V1 { hybrid, .. } = self {
            directories.extend(hybrid.iter().map(|root| root.join(relative)));
        }
        directories
    }

    /// The directory of a cgroup that has the files of a controller; `None` if the kernel does not
    /// have the controller.
    pub(crate) fn directory(&self, controller: &str, relative: &Path) -> Option<PathBuf> {
        let root = match self {
            Self::V1 { controllers, .. } => controllers.get(controller)?,
            Self::V2 { root, controllers } => controllers
                .iter()
                .any(|one| one == controller)
                .then_some(root)?,
        };
        Some(root.join(relative))
    }

    /// Looks at a cgroup; blocking.
    pub(crate) fn state(&self, relative: &Path) -> CgroupState {
        let needed = NEEDED.iter();
        let missing: Vec<&str> = match self {
            Self::V1 { controllers, .. } => {
                let (there, missing): (Vec<&str>, _) = needed
                    .filter(|controller| controllers.contains_key(**controller))
                    .partition(|controller| {
                        let root = controllers.get(**controller);
                        root.is_some_and(|root| root.join(relative).is_dir())
                    });
                if there.is_empty() {
                    return CgroupState::Absent;
                }
                missing
            }
            Self::V2 { root, controllers } => {
                let file = root.join(relative).join(CONTROLLERS);
                let Ok(enabled) = fs::read_to_string(&file) else {
                    return CgroupState::Absent;
                };
                let enabled: Vec<&str> = enabled.split_whitespace().collect();
                needed
                    .filter(|name| controllers.iter().any(|one| one == *name))
                    .filter(|name| !enabled.contains(name))
                    .copied()
                    .collect()
            }
        };
        if missing.is_empty() {
            return CgroupState::Complete;
        }
        CgroupState::Incomplete(missing.into_iter().map(str::to_owned).collect())
    }
}

fn require<const N: usize>(
    names: [&'static str; N],
    has: impl Fn(&str) -> bool,
) -> Result<(), CgroupError> {
    match names.into_iter().find(|name| !has(name)) {
        Some(controller) => Err(CgroupError::NoController { controller }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(point: &str, fs_type: &str, options: &str) -> MountInfo {
        MountInfo {
            id: 1,
            device: "0:1".to_owned(),
            root: "/".into(),
            mount_point: point.into(),
            options: "rw".to_owned(),
            shared: false,
            fs_type: fs_type.to_owned(),
            source: String::new(),
            super_options: options.to_owned(),
        }
    }

    #[test]
    fn hierarchies_of_v1_are_found_by_their_controllers() {
        let mounts = [
            mount("/run/other/memory", "cgroup", "rw,memory"),
            mount("/cg/memory", "cgroup", "rw,memory"),
            mount("/cg/cpu,cpuacct", "cgroup", "rw,cpu,cpuacct"),
            mount("/cg/pids", "cgroup", "rw,pids"),
            mount("/cg/systemd", "cgroup", "rw,xattr,name=systemd"),
            mount("/cg/odd", "cgroup", "rw,name=odd"),
            mount("/run/other/unified", "cgroup2", "rw"),
            mount("/sys/fs/cgroup/unified", "cgroup2", "rw"),
            mount("/proc", "proc", "rw"),
        ];
        let found = Hierarchy::v1(&mounts).unwrap();
        assert!(!found.is_v2());
        let directory = |controller| found.directory(controller, Path::new("a"));
        assert_eq!(directory("memory"), Some("/cg/memory/a".into()));
        assert_eq!(directory("cpuacct"), Some("/cg/cpu,cpuacct/a".into()));
        assert_eq!(directory("hugetlb"), None);
        assert_eq!(
            found.directories(Path::new("a")),
            [
                "/cg/cpu,cpuacct/a",
                "/cg/memory/a",
                "/cg/pids/a",
                "/cg/systemd/a"
            ]
            .map(PathBuf::from)
        );
        let hybrid = PathBuf::from("/sys/fs/cgroup/unified/a");
        let made = found.made_by_runtimes(Path::new("a"));
        assert_eq!(
            made.split_last(),
            Some((&hybrid, &*found.directories(Path::new("a"))))
        );
        assert_eq!(found.state(Path::new("a")), CgroupState::Absent);
        let error = Hierarchy::v1(&mounts[2..]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the kernel has no cgroup controller memory"
        );
    }

    #[test]
    fn a_cgroup_of_v1_is_complete_with_the_directories_of_all_controllers() {
        let root = tempfile::tempdir().unwrap();
        let controllers = ["cpu", "memory", "pids", "freezer"];
        let mounts = controllers.map(|name| {
            let point = root.path().join(name);
            fs::create_dir(&point).unwrap();
            mount(point.to_str().unwrap(), "cgroup", &format!("rw,{name}"))
        });
        let found = Hierarchy::v1(&mounts).unwrap();
        for (made, expected) in [
            ("freezer", CgroupState::Absent),
            (
                "cpu",
                CgroupState::Incomplete(vec!["memory".to_owned(), "pids".to_owned()]),
            ),
            ("memory", CgroupState::Incomplete(vec!["pids".to_owned()])),
            ("pids", CgroupState::Complete),
        ] {
            fs::create_dir(root.path().join(made).join("a")).unwrap();
            assert_eq!(found.state(Path::new("a")), expected, "{made}");
        }
    }

    #[test]
    fn the_unified_hierarchy_has_all_controllers_in_one_directory() {
        let root = tempfile::tempdir().unwrap();
        let found = Hierarchy::v2(root.path(), "cpuset cpu io memory pids\n").unwrap();
        assert!(found.is_v2());
        let directory = root.path().join("a");
        assert_eq!(
            found.directory("memory", Path::new("a")),
            Some(directory.clone())
        );
        assert_eq!(found.directory("hugetlb", Path::new("a")), None);
        assert_eq!(found.state(Path::new("a")), CgroupState::Absent);
        fs::create_dir(&directory).unwrap();
        let controllers = directory.join("cgroup.controllers");
        fs::write(&controllers, "cpu memory pids\n").unwrap();
        let incomplete = CgroupState::Incomplete(vec!["cpuset".to_owned()]);
        assert_eq!(found.state(Path::new("a")), incomplete);
        fs::write(&controllers, "cpuset cpu io memory pids\n").unwrap();
        assert_eq!(found.state(Path::new("a")), CgroupState::Complete);
        assert!(Hierarchy::v2(root.path(), "cpu pids").is_err());
    }
}
