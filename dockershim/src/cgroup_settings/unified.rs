//! `LinuxContainerResources.unified`: cgroup v2 files that the engine has no parameter for. Create
//! stores them in a label, and Start writes them, because the cgroup exists only while the
//! container is running.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, openat2},
    io::Errno,
};

use crate::{
    Error,
    labels::{self, Unified},
    model::Container,
    process::{ProcessError, Processes},
};

const FIELD: &str = "config.linux.resources.unified";
/// More of a file is not compared, in bytes.
const MAX_CONTENT: u64 = 4096;
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);
/// The mount point of cgroup v2.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";

/// The label that stores `unified`; `None` if it is empty.
///
/// # Errors
/// `InvalidArgument` for a key that is not a cgroup file name; `Unsupported` on cgroup v1.
pub(crate) fn label(unified: &Unified) -> Result<Option<(String, String)>, Error> {
    if unified.is_empty() {
        return Ok(None);
    }
    if !Path::new(ROOT).join("cgroup.controllers").exists() {
        return Err(Error::unsupported(FIELD, "this node has cgroup v1"));
    }
    check_keys(unified)?;
    let json = serde_json::json!(unified).to_string();
    Ok(Some((labels::UNIFIED.to_owned(), json)))
}

fn check_keys(unified: &Unified) -> Result<(), Error> {
    match unified.keys().find(|key| !is_file_name(key)) {
        None => Ok(()),
        Some(key) => Err(Error::invalid(FIELD, format!("not a cgroup file: {key:?}"))),
    }
}

fn is_file_name(key: &str) -> bool {
    key.contains('.') && !key.starts_with('.') && !key.contains('/')
}

/// Writes `unified` for a running `container`, with cgroup v2 mounted at `root`. Returns what the
/// files say then: the kernel rounds values.
///
/// # Errors
/// [`Error::File`] naming the cgroup's file.
pub(crate) async fn apply(
    root: &Path,
    processes: &Arc<Processes>,
    container: &Container,
    unified: &Unified,
) -> Result<Unified, Error> {
    if unified.is_empty() {
        return Ok(Unified::new());
    }
    let Some(group) = group(processes, container).await? else {
        return Ok(Unified::new());
    };
    let (root, unified) = (root.to_owned(), unified.clone());
    let write = move || {
        write(&root, &group, &unified)?;
        Ok(read(&root, &group, unified.keys()))
    };
    let written = tokio::task::spawn_blocking(write).await;
    written.unwrap_or(Err(Error::Panicked("write cgroup files")))
}

/// Whether the cgroup of a running `container` has files that do not say what `files` has.
pub(crate) async fn differs(
    root: &Path,
    processes: &Arc<Processes>,
    container: &Container,
    files: &Unified,
) -> bool {
    let Ok(Some(group)) = group(processes, container).await else {
        return false;
    };
    let (root, expected) = (root.to_owned(), files.clone());
    let compare = move || {
        let mut found = read(&root, &group, expected.keys()).into_iter();
        found.any(|(key, value)| expected.get(&key) != Some(&value))
    };
    tokio::task::spawn_blocking(compare).await.unwrap_or(false)
}

/// The cgroup of a running container, relative to the root; `None` if it has ended.
async fn group(
    processes: &Arc<Processes>,
    container: &Container,
) -> Result<Option<PathBuf>, Error> {
    match processes.find(container.id(), container.pid).await {
        Ok(process) => Ok(group_of(process.cgroups()).map(PathBuf::from)),
        Err(ProcessError::Ended(_)) => Ok(None),
        Err(error) => Err(Error::FailedPrecondition(format!("{FIELD}: {error}"))),
    }
}

/// Writes `unified` to the cgroup `group` below `root`; does nothing if the cgroup is gone because
/// the container has exited. The keys come from a label, so they are checked again and cannot refer
/// to files outside the cgroup.
fn write(root: &Path, group: &Path, unified: &Unified) -> Result<(), Error> {
    check_keys(unified)?;
    let failed = |path: PathBuf, source: io::Error| Error::File {
        action: "write",
        path: root.join(group).join(path),
        source,
    };
    let directory = match open_group(root, group) {
        Err(Errno::NOENT) => return Ok(()),
        other => other.map_err(|errno| failed(PathBuf::new(), errno.into()))?,
    };
    for (key, value) in unified {
        let written = open_file(&directory, key, OFlags::WRONLY)
            .and_then(|mut file| file.write_all(value.as_bytes()));
        match written {
            Err(_) if !root.join(group).exists() => return Ok(()),
            Err(source) => return Err(failed(key.into(), source)),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// The contents of files in the cgroup `group` below `root`, without those that cannot be read.
fn read<'a>(root: &Path, group: &Path, keys: impl Iterator<Item = &'a String>) -> Unified {
    let Ok(directory) = open_group(root, group) else {
        return Unified::new();
    };
    let contents = keys.filter_map(|key| {
        let file = open_file(&directory, key, OFlags::RDONLY).ok()?;
        let mut text = String::new();
        file.take(MAX_CONTENT).read_to_string(&mut text).ok()?;
        Some((key.clone(), text.trim_end().to_owned()))
    });
    contents.collect()
}

fn open_group(root: &Path, group: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat2(CWD, root, flags, Mode::empty(), ResolveFlags::empty())?;
    openat2(root, group, flags, Mode::empty(), BENEATH)
}

fn open_file(directory: &OwnedFd, key: &str, access: OFlags) -> io::Result<File> {
    let flags = access | OFlags::CLOEXEC;
    Ok(openat2(directory, key, flags, Mode::empty(), BENEATH)?.into())
}

/// The process's cgroup v2 path, relative to the root, from `/proc/<pid>/cgroup`.
fn group_of(table: &str) -> Option<&str> {
    table.lines().find_map(|line| line.strip_prefix("0::/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_files_of_the_cgroup_itself() {
        assert!(is_file_name("memory.oom.group"));
        for bad in ["", ".", "..", "../memory.max", "memory", "a/b.c"] {
            assert!(!is_file_name(bad), "{bad}");
        }
    }

    const KEY: &str = "memory.oom.group";

    #[test]
    fn a_cgroup_that_is_gone_needs_nothing() {
        let root = tempfile::tempdir().unwrap();
        let unified = Unified::from([(KEY.into(), "1".into())]);
        let group = Path::new("pod/group");
        write(root.path(), group, &unified).unwrap();
        std::fs::create_dir_all(root.path().join(group).join(KEY)).unwrap();
        let error = write(root.path(), group, &unified).unwrap_err();
        assert!(error.to_string().contains(KEY), "{error}");
    }

    #[test]
    fn nothing_is_written_but_files_of_the_cgroup() {
        let root = tempfile::tempdir().unwrap();
        let (group, outside) = (root.path().join("group"), root.path().join("a.file"));
        std::fs::create_dir(&group).unwrap();
        std::fs::write(&outside, "before").unwrap();
        std::os::unix::fs::symlink(&outside, group.join("a.link")).unwrap();
        std::os::unix::fs::symlink(root.path(), root.path().join("linked")).unwrap();
        let absolute = outside.display().to_string();
        let keys = ["a.link", "../a.file", absolute.as_str(), "not.there"];
        for (group, key) in keys
            .map(|key| ("group", key))
            .into_iter()
            .chain([("linked", "a.file"), ("../..", "a.file")])
        {
            let unified = Unified::from([(key.to_owned(), "after".to_owned())]);
            write(root.path(), Path::new(group), &unified).unwrap_err();
        }
        assert_eq!(std::fs::read_to_string(&outside).unwrap(), "before");
        let inside: Vec<_> = std::fs::read_dir(&group).unwrap().collect();
        assert_eq!(inside.len(), 1);
    }

    #[test]
    fn the_group_of_a_process() {
        let hybrid = "12:cpu:/x\n0::/kubepods/pod1/abc\n";
        assert_eq!(group_of(hybrid), Some("kubepods/pod1/abc"));
        assert_eq!(group_of("12:cpu:/x\n"), None);
    }
}
