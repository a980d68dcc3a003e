//! Directory trees in volumes that exceed the descriptor limit, the thread's stack and `PATH_MAX`.
//! The descriptor limit applies to the whole process, so this test has a process of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{fs, sync::Once};

use deep_tree::{InMemory, nest};
use kubelet_volume::{
    atomic_writer::{self, FileProjection, Payload},
    disk, ownership,
    ownership_progress::OwnershipProgress,
    plugin::FsGroup,
};
use rustix::process::{Resource, getrlimit, setrlimit};

/// The default soft limit of a systemd service.
const DESCRIPTORS: u64 = 1024;

fn few_descriptors() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = Some(DESCRIPTORS);
        setrlimit(Resource::Nofile, limit).unwrap();
    });
}

#[test]
fn the_directory_of_a_pod_is_removed_however_deep_it_is() {
    few_descriptors();
    let dir = InMemory::new().unwrap();
    let pod = dir.path().join("u");
    for place in ["volumes/kubernetes.io~csi", "containers/c"] {
        fs::create_dir_all(pod.join(place)).unwrap();
    }
    nest(&pod.join("containers/c")).unwrap();
    disk::remove_pod_dir(&pod).unwrap();
    assert!(!pod.exists());
}

#[test]
fn a_volume_goes_to_its_group_however_deep_it_is() {
    few_descriptors();
    let dir = InMemory::new().unwrap();
    let deepest = nest(dir.path()).unwrap();
    let group = FsGroup {
        gid: 4321,
        on_root_mismatch: false,
    };
    let progress = OwnershipProgress::default();
    ownership::set(dir.path(), group, false, &progress).unwrap();
    let found = rustix::fs::fstat(&deepest).unwrap();
    assert_eq!((found.st_gid, found.st_mode & 0o2777), (4321, 0o2770));
}

#[test]
fn files_are_kept_up_to_date_however_deep_their_path_is() {
    few_descriptors();
    let dir = InMemory::new().unwrap();
    let path = "a/".repeat(1900) + "file";
    let put = |data: &str| {
        let file = FileProjection {
            data: data.into(),
            mode: 0o644,
            user: None,
        };
        let payload = Payload::from([(path.clone(), file)]);
        atomic_writer::write(dir.path(), &payload, || Ok(()))
    };
    put("old").unwrap();
    let shown = fs::read_link(dir.path().join("..data")).unwrap();
    put("old").unwrap();
    let again = fs::read_link(dir.path().join("..data")).unwrap();
    assert_eq!(again, shown, "what is right was written again");
    put("new").unwrap();
    assert_eq!(fs::read_to_string(dir.path().join(&path)).unwrap(), "new");
    assert!(!dir.path().join(shown).exists());
}
