//! Cgroups through the files of the kernel; blocking.

use std::{
    ffi::CStr,
    fs::{self, OpenOptions},
    io::{self, Read as _, Write as _},
    os::fd::BorrowedFd,
    path::Path,
    thread,
    time::Duration,
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, openat, unlinkat},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use tracing::debug;
use tree_walk::{Step, Walk};

use super::{CgroupError, config::Setting, hierarchy::Hierarchy};

/// How often the processes of a cgroup are killed, and how often its directory is removed, before
/// it counts as busy.
const ATTEMPTS: u32 = 6;
/// Doubled after each attempt: in sum, below a second.
const FIRST_WAIT: Duration = Duration::from_millis(10);
/// Lists the processes of a cgroup.
const PROCS: &CStr = c"cgroup.procs";

pub(super) fn file_error(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> CgroupError {
    let path = path.to_owned();
    move |source| CgroupError::File {
        action,
        path,
        source,
    }
}

/// Writes a file of the kernel. It must exist: a cgroup that is gone is no reason to create one.
fn write(path: &Path, value: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(value.as_bytes())
}

/// Creates the directories of a cgroup and those above it.
///
/// # Errors
/// A directory cannot be created.
pub(super) fn create(hierarchy: &Hierarchy, relative: &Path) -> Result<(), CgroupError> {
    match hierarchy {
        Hierarchy::V1 {
            all, controllers, ..
        } => {
            let cpuset = controllers.get("cpuset");
            for root in all {
                let copies = cpuset == Some(root);
                below(root, relative, |parent, directory| {
                    make(directory)?;
                    if copies {
                        inherit_cpuset(parent, directory)?;
                    }
                    Ok(())
                })?;
            }
        }
        Hierarchy::V2 { root, controllers } => {
            below(root, relative, |parent, directory| {
                enable(parent, controllers);
                make(directory)
            })?;
        }
    }
    Ok(())
}

/// Calls `work` with each directory from below `root` down to `relative`, and its parent.
fn below(
    root: &Path,
    relative: &Path,
    mut work: impl FnMut(&Path, &Path) -> Result<(), CgroupError>,
) -> Result<(), CgroupError> {
    let mut parent = root.to_owned();
    for component in relative.components() {
        let directory = parent.join(component);
        work(&parent, &directory)?;
        parent = directory;
    }
    Ok(())
}

fn make(directory: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(file_error("create", directory)),
    }
}

/// A cpuset of cgroup v1 without CPUs or memory nodes takes no processes.
fn inherit_cpuset(parent: &Path, directory: &Path) -> Result<(), CgroupError> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let own = directory.join(file);
        let text = fs::read_to_string(&own).map_err(file_error("read", &own))?;
        if text.trim().is_empty() {
            let above = parent.join(file);
            let text = fs::read_to_string(&above).map_err(file_error("read", &above))?;
            write(&own, &text).map_err(file_error("write", &own))?;
        }
    }
    Ok(())
}

/// Makes the controllers available to the children of a cgroup. Those that the kernel refuses are
/// left out: whether a cgroup has what it needs is checked where it is used.
fn enable(directory: &Path, controllers: &[String]) {
    let file = directory.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&file).unwrap_or_default();
    let enabled: Vec<&str> = enabled.split_whitespace().collect();
    let rest = controllers
        .iter()
        .filter(|controller| !enabled.contains(&controller.as_str()));
    for controller in rest {
        if let Err(error) = write(&file, &format!("+{controller}")) {
            debug!(
                controller, %error, cgroup = %directory.display(),
                "cannot enable a controller for the children of a cgroup"
            );
        }
    }
}

/// Writes the limits of a cgroup.
///
/// # Errors
/// The kernel refuses a value, or the cgroup is gone.
pub(super) fn set(
    hierarchy: &Hierarchy,
    relative: &Path,
    settings: &[Setting],
) -> Result<(), CgroupError> {
    // The period is refused if the quota of the moment would exceed the parent's with it; then it
    // is written after the quota.
    let mut refused = None;
    for setting in settings {
        let Some(directory) = hierarchy.directory(setting.controller, relative) else {
            continue;
        };
        let path = directory.join(&*setting.file);
        match write(&path, &setting.value) {
            Ok(()) => {}
            Err(error)
                if error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
                    && setting.file == "cpu.cfs_period_us" =>
            {
                refused = Some((path, setting));
            }
            Err(error) if setting.optional && error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => {
                return Err(CgroupError::Set {
                    value: setting.value.clone(),
                    path,
                    source,
                });
            }
        }
    }
    let Some((path, setting)) = refused else {
        return Ok(());
    };
    write(&path, &setting.value).map_err(|source| CgroupError::Set {
        value: setting.value.clone(),
        path,
        source,
    })
}

/// The names of the directories in a cgroup. Empty if it does not exist.
///
/// # Errors
/// A directory cannot be read.
pub(super) fn children(hierarchy: &Hierarchy, relative: &Path) -> Result<Vec<String>, CgroupError> {
    let mut names = Vec::new();
    for directory in hierarchy.made_by_runtimes(relative) {
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries.map_err(file_error("read", &directory))?,
        };
        for entry in entries {
            let entry = entry.map_err(file_error("read", &directory))?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir())
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// The contents of a file of a controller; `None` if the kernel does not have the controller.
///
/// # Errors
/// The file cannot be read.
pub(super) fn text(
    hierarchy: &Hierarchy,
    controller: &str,
    relative: &Path,
    file: &str,
) -> Result<Option<String>, CgroupError> {
    let Some(directory) = hierarchy.directory(controller, relative) else {
        return Ok(None);
    };
    let path = directory.join(file);
    let text = fs::read_to_string(&path).map_err(file_error("read", &path))?;
    Ok(Some(text))
}

/// Kills the processes of a cgroup and of those below it.
pub(super) fn kill(hierarchy: &Hierarchy, relative: &Path) {
    for directory in hierarchy.made_by_runtimes(relative) {
        kill_all(&directory);
    }
}

/// Kills the processes of a cgroup and of those below it, and removes them. Does nothing if the
/// cgroup does not exist.
///
/// # Errors
/// A process does not end, or a directory cannot be removed.
pub(super) fn remove(hierarchy: &Hierarchy, relative: &Path) -> Result<(), CgroupError> {
    for directory in hierarchy.made_by_runtimes(relative) {
        let mut wait = FIRST_WAIT;
        for attempt in 1.. {
            kill_all(&directory);
            let Err(error) = remove_tree(&directory) else {
                break;
            };
            if attempt == ATTEMPTS {
                return Err(file_error("remove", &directory)(error));
            }
            sleep(wait);
            wait *= 2;
        }
    }
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "on a thread for blocking work, between two attempts of it"
)]
fn sleep(wait: Duration) {
    thread::sleep(wait);
}

/// Removes the cgroups below a directory, and the directory. Containers may have created cgroups
/// of any depth.
fn remove_tree(directory: &Path) -> io::Result<()> {
    let mut walk = match Walk::open(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    while let Some(step) = walk.step()? {
        if let Step::Directory(name, _) = step {
            match unlinkat(walk.directory()?, &name, AtFlags::REMOVEDIR) {
                Err(Errno::NOENT) => {}
                removed => removed?,
            }
        }
    }
    match fs::remove_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Kills the processes in a cgroup and below it.
fn kill_all(directory: &Path) {
    // The whole tree at once, without a race against forks, since Linux 5.14.
    if write(&directory.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    let Ok(mut walk) = Walk::open(directory) else {
        return;
    };
    while let Ok(Some(step)) = walk.step() {
        if let Step::File(name) = step
            && name.to_bytes() == PROCS.to_bytes()
            && let Ok(cgroup) = walk.directory()
        {
            kill_processes(cgroup);
        }
    }
}

/// Kills the processes of a cgroup. A pid may belong to another process by the time of the kill, so
/// only those that are still listed once the kernel holds on to them are killed.
fn kill_processes(cgroup: BorrowedFd<'_>) {
    let held: Vec<_> = processes(cgroup)
        .into_iter()
        .filter_map(|pid| {
            let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
            Some((pid, process))
        })
        .collect();
    if held.is_empty() {
        return;
    }
    let still = processes(cgroup);
    for (pid, process) in held.iter().filter(|(pid, _)| still.contains(pid)) {
        match pidfd_send_signal(process, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => debug!(pid, %error, "cannot kill a process of a cgroup"),
        }
    }
}

/// The processes of a cgroup. Those of other PID namespaces, which the kernel lists as 0, are left
/// out.
fn processes(cgroup: BorrowedFd<'_>) -> Vec<i32> {
    let mut text = String::new();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    if let Ok(file) = openat(cgroup, PROCS, flags, Mode::empty()) {
        // A cgroup that is removed meanwhile has no processes.
        let _ = fs::File::from(file).read_to_string(&mut text);
    }
    let pids = text.lines().filter_map(|line| line.parse().ok());
    pids.filter(|pid| *pid > 0).collect()
}

#[cfg(test)]
mod tests;
