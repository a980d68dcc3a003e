use std::os::unix::fs::symlink;

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use tempfile::TempDir;

use super::*;

/// A tree to remove, next to a directory that must be kept.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("tree")).unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        fs::write(dir.path().join("outside/precious"), "x").unwrap();
        Self { dir }
    }

    fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let untouched = self.outside().join("precious").exists();
        assert!(untouched || std::thread::panicking());
    }
}

#[test]
fn everything_in_a_tree_goes_and_links_are_not_followed() {
    let place = Place::new();
    let tree = place.tree();
    fs::create_dir_all(tree.join("a/b/c")).unwrap();
    fs::create_dir_all(tree.join("d")).unwrap();
    fs::write(tree.join("a/b/file"), "x").unwrap();
    symlink(place.outside(), tree.join("a/link")).unwrap();
    symlink("nowhere", tree.join("dangling")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, tree.join("d/fifo"), 0o600.into()).unwrap();
    remove_all(&tree).unwrap();
    assert!(!tree.exists());
    // Removing a missing tree succeeds, even without its parent.
    remove_all(&tree).unwrap();
    remove_all(&tree.join("a/b")).unwrap();
}

#[test]
fn of_a_link_the_link_is_removed_and_a_file_stays() {
    let place = Place::new();
    let link = place.tree().join("link");
    symlink(place.outside(), &link).unwrap();
    remove_all(&link).unwrap();
    assert!(!link.is_symlink());
    let error = remove_all(&place.outside().join("precious")).unwrap_err();
    assert_eq!(error.source.kind(), io::ErrorKind::NotADirectory);
}

#[test]
fn nothing_is_removed_through_a_mount() {
    let place = Place::new();
    let mounted = place.tree().join("a/mounted");
    fs::create_dir_all(&mounted).unwrap();
    mount_bind(place.outside(), &mounted).unwrap();
    let below = remove_all(&place.tree()).unwrap_err();
    let itself = remove_all(&mounted).unwrap_err();
    unmount(&mounted, UnmountFlags::empty()).unwrap();
    for error in [below, itself] {
        assert_eq!(error.path, mounted);
        assert!(error.to_string().ends_with("something is mounted there"));
    }
    remove_all(&place.tree()).unwrap();
    assert!(!place.tree().exists());
}

#[test]
fn a_tree_of_directories_goes_only_where_it_has_no_file() {
    let place = Place::new();
    let file = place.tree().join("a/b/file");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "x").unwrap();
    let error = remove_directories(&place.tree()).unwrap_err();
    assert_eq!(error.path, file);
    assert!(file.exists());
    fs::remove_file(&file).unwrap();
    remove_directories(&place.tree()).unwrap();
    assert!(!place.tree().exists());
}

#[test]
fn what_swaps_directories_and_links_meanwhile_gains_nothing() {
    let place = Place::new();
    let tree = place.tree();
    for name in ["a", "b"] {
        fs::create_dir(tree.join(name)).unwrap();
    }
    let mut walk = Walk::open(&tree).unwrap();
    // The walk has read both and entered one.
    let Some(Step::Directory(first, _)) = walk.step().unwrap() else {
        panic!("no directory");
    };
    let other = tree.join(if first.as_c_str() == c"a" { "b" } else { "a" });
    fs::remove_dir(&other).unwrap();
    symlink(place.outside(), &other).unwrap();
    let mut removal = Removal::new(&tree, Files::Remove);
    assert!(removal.pass(walk).unwrap().is_none());
    assert!(!other.is_symlink());
    // A file that was replaced by a directory is left to the next pass.
    fs::create_dir(&other).unwrap();
    let directory = open::root(&tree).unwrap();
    let name = CString::new(other.file_name().unwrap().as_bytes()).unwrap();
    removal.remove_file(directory.as_fd(), &name).unwrap();
    removal.run().unwrap();
    assert!(!tree.exists());
}

#[test]
fn what_is_made_meanwhile_goes_too() {
    let place = Place::new();
    let tree = place.tree();
    fs::create_dir_all(tree.join("a/b")).unwrap();
    let mut walk = Walk::open(&tree).unwrap();
    let mut removal = Removal::new(&tree, Files::Remove);
    let mut late = Some(tree.join("a/late"));
    while let Some(step) = walk.step().unwrap() {
        assert!(removal.remove(&mut walk, &step).unwrap().is_none());
        if let Some(late) = late.take() {
            // The stream of its parent is already at the end.
            fs::create_dir_all(late.join("c")).unwrap();
            removal.advanced = true;
        }
    }
    assert_eq!(fs::read_dir(&tree).unwrap().count(), 0);
}

#[test]
fn a_tree_deeper_than_can_be_remembered_goes_in_parts() {
    let place = Place::new();
    let tree = place.tree();
    let mut path = tree.clone();
    for depth in 0..60 {
        path.push("d");
        fs::create_dir(&path).unwrap();
        if depth % 7 == 0 {
            fs::create_dir_all(path.join("e/f")).unwrap();
            fs::write(path.join("file"), "x").unwrap();
        }
    }
    let mut removal = Removal::new(&tree, Files::Remove);
    removal.max_depth = 9;
    removal.run().unwrap();
    assert!(!tree.exists());
}
