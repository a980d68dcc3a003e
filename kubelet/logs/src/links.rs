//! Links to logs in one directory, named by pod, container and ID. Log agents read them.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use tracing::{debug, warn};

/// The longest file name on most file systems, in bytes.
const MAX_NAME: usize = 255;
const SUFFIX: &str = ".log";
/// Shorter endings of names are not IDs.
const MIN_ID: usize = 6;

/// The path of the link to a container's log.
pub fn link_path(dir: &Path, pod: &str, namespace: &str, container: &str, id: &str) -> PathBuf {
    let mut name = format!("{pod}_{namespace}_{container}-{id}");
    // Names and IDs are ASCII.
    name.truncate(MAX_NAME - SUFFIX.len());
    dir.join(name + SUFFIX)
}

/// Links to a container's log, if the log exists: some engines log elsewhere.
pub fn make(link: &Path, log: &Path) {
    let made = match fs::symlink_metadata(log) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        _ => link
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| symlink(log, link)),
    };
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            warn!(path = %link.display(), %error, "cannot create the symlink to a container log");
        }
        _ => {}
    }
}

/// Removes the links whose logs are gone. `may_run` says whether some container whose ID starts
/// with the given text may run: its log is missing for a moment while it is rotated.
pub fn remove_dead(dir: &Path, may_run: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)) else {
            continue;
        };
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        if !is_link || !is_gone(&path) {
            continue;
        }
        let id = name.rsplit('-').next().filter(|id| id.len() >= MIN_ID);
        if id.is_some_and(&may_run) {
            continue;
        }
        match fs::remove_file(&path) {
            Ok(()) => debug!(path = %path.display(), "removed a stale symlink to a container log"),
            Err(error) => warn!(
                path = %path.display(), %error,
                "cannot remove a stale symlink to a container log"
            ),
        }
    }
}

fn is_gone(link: &Path) -> bool {
    fs::metadata(link).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_links_of_dead_containers_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let links = dir.path().join("containers");
        let log = dir.path().join("0.log");
        fs::write(&log, "").unwrap();
        let link = |id: &str| link_path(&links, "web", "default", "c", id);
        for id in ["aaaaaaaa", "bbbbbbbb", "cccccccc", "dddddddd"] {
            make(&link(id), &log);
            make(&link(id), &log);
            fs::remove_file(&log).unwrap();
            fs::write(&log, "").unwrap();
        }
        let gone = dir.path().join("1.log");
        make(&link("eeeeeeee"), &gone);
        assert!(fs::symlink_metadata(link("eeeeeeee")).is_err(), "no log");
        for id in ["bbbbbbbb", "cccccccc"] {
            fs::remove_file(link(id)).unwrap();
            symlink(&gone, link(id)).unwrap();
        }
        fs::write(links.join("other.txt"), "").unwrap();
        remove_dead(&links, |id| "bbbbbbbb".starts_with(id));
        let is_there = |id: &str| fs::symlink_metadata(link(id)).is_ok();
        assert!(is_there("aaaaaaaa") && is_there("bbbbbbbb") && is_there("dddddddd"));
        assert!(!is_there("cccccccc"));
        assert!(links.join("other.txt").exists());
    }

    #[test]
    fn names_fit_the_file_system() {
        let link = link_path(
            Path::new("/l"),
            &"p".repeat(200),
            "ns",
            "c",
            &"a".repeat(64),
        );
        let name = link.file_name().unwrap().to_str().unwrap();
        assert_eq!(name.len(), MAX_NAME);
        assert!(name.ends_with("aa.log"));
        let link = link_path(Path::new("/l"), "web", "ns", "c", "abcdef");
        assert_eq!(link, Path::new("/l/web_ns_c-abcdef.log"));
    }
}
