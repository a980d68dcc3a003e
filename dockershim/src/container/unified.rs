//! `LinuxContainerResources.unified`: files of the container's cgroup v2, which the
//! engine has no parameter for. They are remembered in a label by Create and written by
//! Start, as the cgroup exists only while the container runs.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{Error, labels, model::Container};

/// Values by file.
pub type Unified = BTreeMap<String, String>;

const FIELD: &str = "config.linux.resources.unified";
const ROOT: &str = "/sys/fs/cgroup";

/// The label that remembers `unified`; none for none.
///
/// # Errors
/// `InvalidArgument` for a key that is no file name of a cgroup; `Unsupported` on cgroup v1.
pub fn label(unified: &Unified) -> Result<Option<(String, String)>, Error> {
    if unified.is_empty() {
        return Ok(None);
    }
    if !Path::new(ROOT).join("cgroup.controllers").exists() {
        return Err(Error::unsupported(FIELD, "this node has cgroup v1"));
    }
    if let Some(key) = unified.keys().find(|key| !is_file_name(key)) {
        return Err(Error::invalid(FIELD, format!("{key:?} is no cgroup file")));
    }
    let json = serde_json::json!(unified).to_string();
    Ok(Some((labels::UNIFIED.to_owned(), json)))
}

fn is_file_name(key: &str) -> bool {
    key.contains('.') && !key.starts_with('.') && !key.contains('/')
}

/// What a container's labels remember.
pub fn from_label(json: &str) -> Unified {
    serde_json::from_str(json).unwrap_or_default()
}

/// Writes `unified` for `container`, which runs.
///
/// # Errors
/// [`Error::File`] naming the cgroup's file.
pub async fn apply(container: &Container, unified: &Unified) -> Result<(), Error> {
    if unified.is_empty() || container.pid == 0 {
        return Ok(());
    }
    let table = PathBuf::from(format!("/proc/{}/cgroup", container.pid));
    let text = match tokio::fs::read_to_string(&table).await {
        Ok(text) => text,
        // It has ended already.
        Err(_) => return Ok(()),
    };
    let Some(group) = group_of(&text) else {
        return Ok(());
    };
    write(&Path::new(ROOT).join(group), unified).await
}

/// Writes `unified` into a cgroup, which goes when the container ends.
async fn write(directory: &Path, unified: &Unified) -> Result<(), Error> {
    for (key, value) in unified {
        let path = directory.join(key);
        match tokio::fs::write(&path, value).await {
            Err(_) if !tokio::fs::try_exists(directory).await.unwrap_or(true) => return Ok(()),
            Err(source) => {
                return Err(Error::File {
                    action: "write",
                    path,
                    source,
                });
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

/// The process's cgroup v2, relative to the root, out of `/proc/<pid>/cgroup`.
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

    #[tokio::test]
    async fn a_cgroup_that_is_gone_needs_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let unified = Unified::from([("memory.oom.group".into(), "1".into())]);
        let group = dir.path().join("group");
        write(&group, &unified).await.unwrap();
        std::fs::create_dir_all(group.join("memory.oom.group")).unwrap();
        let error = write(&group, &unified).await.unwrap_err();
        assert!(error.to_string().contains("memory.oom.group"), "{error}");
    }

    #[test]
    fn the_group_of_a_process() {
        let hybrid = "12:cpu:/x\n0::/kubepods/pod1/abc\n";
        assert_eq!(group_of(hybrid), Some("kubepods/pod1/abc"));
        assert_eq!(group_of("12:cpu:/x\n"), None);
    }
}
