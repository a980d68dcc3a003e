//! Trees that are deeper than the process' descriptors, a thread's stack (with recursion) or the
//! limit on a path's length allow.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{fs, os::fd::OwnedFd, path::Path, sync::Once};

use rustix::{
    fs::{CWD, Mode, OFlags, mkdirat, openat},
    process::{Resource, getrlimit, setrlimit},
};
use tree_walk::{Step, Walk, remove_all};

const DEPTH: usize = 20_000;
/// The limit on open files of the test process, for all of its tests.
const DESCRIPTORS: u64 = 128;

fn few_descriptors() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = Some(DESCRIPTORS);
        setrlimit(Resource::Nofile, limit).unwrap();
    });
}

fn open(dir: &OwnedFd, name: &str) -> OwnedFd {
    openat(
        dir,
        name,
        OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .unwrap()
}

/// Creates nested directories; every hundredth contains two more and a file.
fn nest(dir: &Path) {
    let mut at = openat(CWD, dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    for level in 0..DEPTH {
        if level % 100 == 0 {
            for name in ["a", "z"] {
                mkdirat(&at, name, Mode::RWXU).unwrap();
            }
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            openat(&at, "file", flags, Mode::RUSR).unwrap();
        }
        mkdirat(&at, "deeper-and-deeper", Mode::RWXU).unwrap();
        at = open(&at, "deeper-and-deeper");
    }
}

#[test]
fn a_deep_tree_is_walked_through_and_removed_with_few_descriptors() {
    few_descriptors();
    // Use a tmpfs: on a disk this would take most of the test's time.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    nest(&tree);
    let (mut files, mut directories) = (0, 0);
    let mut walk = Walk::open(&tree).unwrap();
    let mut most = 0;
    while let Some(step) = walk.step().unwrap() {
        match step {
            Step::File(_) => {
                files += 1;
                most = most.max(fs::read_dir("/proc/self/fd").unwrap().count());
            }
            Step::Directory(..) => directories += 1,
            other => panic!("{other:?}"),
        }
    }
    drop(walk);
    let removed = remove_all(&tree);
    assert_eq!((files, directories), (DEPTH / 100, DEPTH + 2 * DEPTH / 100));
    assert!(most < 40, "{most} descriptors");
    removed.unwrap();
    assert!(!tree.exists());
}
