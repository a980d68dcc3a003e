//! The mounted hierarchies of cgroups, `cgroups(7)`.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Component, Path, PathBuf},
};

use crate::{cgroup::Cgroup, process::is_cgroup_of};

/// The v1 controllers whose files are read.
const CONTROLLERS: [&str; 5] = ["blkio", "cpu", "cpuacct", "memory", "pids"];

/// A mount of a hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// The cgroup that is the root of the mount.
    root: String,
    point: PathBuf,
}

/// The mounts of all hierarchies.
#[derive(Debug, Default)]
pub struct Mounts {
    v1: BTreeMap<&'static str, Mount>,
    unified: Option<Mount>,
}

// === impl Mounts ===

impl Mounts {
    /// Reads the mounts of this process from the procfs mounted at `proc`.
    ///
    /// # Errors
    /// The system's.
    pub fn read(proc: &Path) -> io::Result<Self> {
        // Other mounts may have names that are not UTF-8.
        let table = fs::read(proc.join("self/mountinfo"))?;
        Ok(Self::parse(&String::from_utf8_lossy(&table)))
    }

    /// Parses `/proc/self/mountinfo`.
    fn parse(table: &str) -> Self {
        let mut mounts = Self::default();
        for line in table.lines() {
            let Some((before, after)) = line.split_once(" - ") else {
                continue;
            };
            let mut before = before.split(' ').skip(3);
            let (Some(root), Some(point)) = (before.next(), before.next()) else {
                continue;
            };
            let mut after = after.split(' ');
            let (kind, options) = (after.next(), after.nth(1).unwrap_or_default());
            let mount = || Mount {
                root: root.to_owned(),
                point: point.into(),
            };
            // If a hierarchy is mounted several times, use the first mount.
            match kind {
                Some("cgroup2") => {
                    mounts.unified.get_or_insert_with(mount);
                }
                Some("cgroup") => {
                    let known = |name| CONTROLLERS.into_iter().find(|known| *known == name);
                    for controller in options.split(',').filter_map(known) {
                        mounts.v1.entry(controller).or_insert_with(mount);
                    }
                }
                _ => {}
            }
        }
        mounts
    }

    /// The cgroup with this path below the root of each hierarchy. It may not exist.
    pub fn cgroup(&self, relative: &Path) -> Cgroup {
        let relative = relative.strip_prefix("/").unwrap_or(relative);
        let v1 = self.v1.iter();
        Cgroup {
            v1: v1
                .map(|(controller, mount)| (*controller, mount.point.join(relative)))
                .collect(),
            unified: self
                .unified
                .as_ref()
                .map(|mount| mount.point.join(relative)),
        }
    }

    /// The cgroup of the container `id` from a process's `/proc/<pid>/cgroup`.
    pub fn locate(&self, table: &str, id: &str) -> Option<Cgroup> {
        let mut cgroup = Cgroup::default();
        for line in table.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
                continue;
            };
            if controllers.is_empty() {
                cgroup.unified = self.unified.as_ref().and_then(|m| m.directory(path, id));
                continue;
            }
            for controller in controllers.split(',') {
                let mount = self.v1.get_key_value(controller);
                if let Some((controller, mount)) = mount
                    && let Some(directory) = mount.directory(path, id)
                {
                    cgroup.v1.insert(controller, directory);
                }
            }
        }
        (cgroup.unified.is_some() || !cgroup.v1.is_empty()).then_some(cgroup)
    }
}

// === impl Mount ===

impl Mount {
    /// The directory of the cgroup `path`, truncated after the component for `id`: a process such
    /// as systemd moves itself to a cgroup below its container's.
    fn directory(&self, path: &str, id: &str) -> Option<PathBuf> {
        let below = Path::new(path)
            .strip_prefix(&self.root)
            .unwrap_or_else(|_| {
                let path = Path::new(path);
                path.strip_prefix("/").unwrap_or(path)
            });
        let mut directory = self.point.clone();
        for part in below.components() {
            let Component::Normal(name) = part else {
                return None;
            };
            directory.push(name);
            if name.to_str().is_some_and(|name| is_cgroup_of(name, id)) {
                return Some(directory);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "0123456789abcdef";
    const V1: &str = "\
        30 20 0:25 / /cg/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n\
        31 20 0:26 / /cg/memory rw shared:3 - cgroup cgroup rw,memory\n\
        32 20 0:27 / /cg/systemd rw - cgroup cgroup rw,name=systemd\n";
    const V2: &str = "33 20 0:28 / /cg/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";

    fn locate(mounts: &str, table: &str) -> Option<Cgroup> {
        Mounts::parse(mounts).locate(table, ID)
    }

    #[test]
    fn each_controller_of_v1_has_its_directory() {
        let table =
            format!("3:memory:/kubepods/podx/{ID}\n2:cpu,cpuacct:/docker/{ID}\n1:name=systemd:/\n");
        let found = locate(V1, &table).unwrap();
        for (controller, directory) in [
            ("cpu", format!("/cg/cpu,cpuacct/docker/{ID}")),
            ("cpuacct", format!("/cg/cpu,cpuacct/docker/{ID}")),
            ("memory", format!("/cg/memory/kubepods/podx/{ID}")),
        ] {
            assert_eq!(found.v1(controller), Some(Path::new(&directory)));
        }
        assert_eq!((found.v1("pids"), found.unified()), (None, None));
        assert_eq!(
            found.parent().v1("memory"),
            Some(Path::new("/cg/memory/kubepods/podx"))
        );
    }

    #[test]
    fn the_unified_hierarchy() {
        let slice = "/cg/unified/kubepods.slice/kubepods-podx.slice";
        let table = format!("0::/kubepods.slice/kubepods-podx.slice/docker-{ID}.scope/init.scope");
        let found = locate(V2, &table).unwrap();
        assert_eq!(
            found.unified(),
            Some(Path::new(&format!("{slice}/docker-{ID}.scope")))
        );
        assert_eq!(found.parent().unified(), Some(Path::new(slice)));
        assert_eq!(found.v1("memory"), None);
    }

    #[test]
    fn both_on_a_hybrid_node() {
        let table = format!("4:memory:/docker/{ID}\n0::/docker/{ID}\n");
        let found = locate(&[V1, V2].concat(), &table).unwrap();
        assert!(found.v1("memory").is_some() && found.unified().is_some());
    }

    #[test]
    fn a_mount_may_show_a_part_only() {
        let mounts = "30 20 0:25 /docker/outer /cg rw - cgroup2 cgroup rw\n";
        let found = locate(mounts, &format!("0::/docker/outer/docker/{ID}")).unwrap();
        assert_eq!(
            found.unified(),
            Some(Path::new(&format!("/cg/docker/{ID}")))
        );
    }

    #[test]
    fn a_process_of_another_is_not_found() {
        for table in [
            "0::/docker/other\n",
            "0::/\n",
            "0::/../../0123456789abcdef",
            "",
        ] {
            assert_eq!(locate(V2, table), None, "{table}");
        }
    }

    #[test]
    fn a_cgroup_is_found_by_its_path() {
        let found = Mounts::parse(&[V1, V2].concat()).cgroup(Path::new("/kubepods/podx"));
        assert_eq!(
            found.v1("cpu"),
            Some(Path::new("/cg/cpu,cpuacct/kubepods/podx"))
        );
        assert_eq!(
            found.unified(),
            Some(Path::new("/cg/unified/kubepods/podx"))
        );
        assert_eq!(found.v1("name=systemd"), None);
        assert_eq!(
            found.child(ID).v1("memory"),
            Some(Path::new(&format!("/cg/memory/kubepods/podx/{ID}")[..]))
        );
    }

    proptest! {
        #[test]
        fn any_table_is_read_without_panic(mounts in "[ a-z0-9:,/-]{0,60}\n.{0,60}", table in "[0-9]:[a-z,]{0,6}:.{0,60}") {
            let _ = locate(&mounts, &table);
        }
    }
}
