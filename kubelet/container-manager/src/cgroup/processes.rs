//! The processes of cgroups; blocking.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::Path,
};

use rustix::io::Errno;

use super::{CgroupError, files, hierarchy::Hierarchy};

/// Lists the processes of a cgroup, and takes those to move to it.
const PROCS: &str = "cgroup.procs";

/// The processes directly in a cgroup. Those of other PID namespaces, which the kernel lists as 0,
/// are left out.
///
/// # Errors
/// They cannot be listed.
pub(crate) fn members(hierarchy: &Hierarchy, relative: &Path) -> Result<Vec<i32>, CgroupError> {
    let directory = match hierarchy {
        // As upstream.
        Hierarchy::V1 { .. } => ["devices", "cpu"]
            .into_iter()
            .find_map(|controller| hierarchy.directory(controller, relative))
            .ok_or(CgroupError::NoController { controller: "cpu" })?,
        Hierarchy::V2 { root, .. } => root.join(relative),
    };
    let path = directory.join(PROCS);
    let text = fs::read_to_string(&path).map_err(files::file_error("read", &path))?;
    let pids = text.lines().filter_map(|line| line.parse().ok());
    Ok(pids.filter(|pid| *pid > 0).collect())
}

/// Moves a process to a cgroup, which is created. A process that has ended is left out.
///
/// # Errors
/// The cgroup cannot be created, or the kernel refuses the process.
pub(crate) fn add(hierarchy: &Hierarchy, relative: &Path, pid: i32) -> Result<(), CgroupError> {
    files::create(hierarchy, relative)?;
    for directory in hierarchy.directories(relative) {
        let path = directory.join(PROCS);
        match append(&path, pid) {
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {}
            added => added.map_err(|source| CgroupError::Set {
                value: pid.to_string(),
                path,
                source,
            })?,
        }
    }
    Ok(())
}

fn append(path: &Path, pid: i32) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).open(path)?;
    file.write_all(pid.to_string().as_bytes())
}

/// The cgroup of a process, from its `cgroup` file in proc(5). With cgroup v1, that of systemd if
/// it runs the machine.
///
/// # Errors
/// With cgroup v1, the process has different cgroups for CPU and memory.
pub(crate) fn cgroup_of(text: &str, is_v2: bool) -> Result<String, CgroupError> {
    let cgroup = |wanted: &str| {
        text.lines().find_map(|line| {
            let (_, line) = line.split_once(':')?;
            let (controllers, cgroup) = line.split_once(':')?;
            let mut controllers = controllers.split(',');
            controllers
                .any(|one| one == wanted)
                .then(|| cgroup.to_owned())
        })
    };
    let missing = |controller| CgroupError::NoController { controller };
    if is_v2 {
        return cgroup("").ok_or_else(|| missing("of cgroup v2"));
    }
    let cpu = cgroup("cpu").ok_or_else(|| missing("cpu"))?;
    let memory = cgroup("memory").ok_or_else(|| missing("memory"))?;
    if cpu != memory {
        return Err(CgroupError::Different { cpu, memory });
    }
    Ok(cgroup("name=systemd").unwrap_or(cpu))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_cgroup_for_cpu_and_memory() {
        let v2 = cgroup_of("1:name=old:/x\n0::/system.slice/a:b\n", true);
        assert_eq!(v2.unwrap(), "/system.slice/a:b");
        let v1 = "3:cpu,cpuacct:/a\n2:memory:/a\n";
        assert_eq!(cgroup_of(v1, false).unwrap(), "/a");
        let systemd = format!("{v1}1:name=systemd:/system.slice/a\n0::/c\n");
        assert_eq!(cgroup_of(&systemd, false).unwrap(), "/system.slice/a");
        let error = cgroup_of("3:cpu:/a\n2:memory:/b\n", false).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the process is in the cgroup /a for CPU and in /b for memory"
        );
        assert!(cgroup_of("3:cpu:/a\n", false).is_err());
    }
}
