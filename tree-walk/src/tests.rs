use std::{collections::BTreeSet, fs, os::unix::fs::symlink};

use super::*;

/// The steps of a walk as text, sorted.
fn steps(walk: &mut Walk) -> BTreeSet<String> {
    let mut steps = BTreeSet::new();
    while let Some(step) = walk.step().unwrap() {
        let path = walk.path(step.name()).display().to_string();
        steps.insert(match step {
            Step::File(_) => path,
            Step::Directory(..) => path + "/",
            Step::Refused(_, error) => format!("{path} {error:?}"),
            Step::TooDeep(_) => format!("{path} too deep"),
            Step::Unread(error) => format!("{path} unread {error:?}"),
        });
    }
    steps
}

fn set(steps: &[&str]) -> BTreeSet<String> {
    steps.iter().map(|step| (*step).to_owned()).collect()
}

/// Creates nested directories named by depth from 0 on, each with a file.
fn chain(dir: &Path, depth: usize) -> PathBuf {
    let mut path = dir.to_owned();
    for level in 0..depth {
        path.push(level.to_string());
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "x").unwrap();
    }
    path
}

#[test]
fn a_walk_passes_everything_once_and_directories_last() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    fs::create_dir_all(path.join("a/b")).unwrap();
    fs::create_dir(path.join("c")).unwrap();
    fs::write(path.join("a/file"), "x").unwrap();
    symlink("/", path.join("a/b/link")).unwrap();
    let mut walk = Walk::open(path).unwrap();
    let passed = steps(&mut walk);
    assert_eq!(passed, set(&["a/", "a/b/", "a/b/link", "a/file", "c/"]));
    // The walk is back at the root.
    let at = rustix::fs::fstat(walk.directory().unwrap()).unwrap();
    let root = rustix::fs::stat(path).unwrap();
    assert_eq!((at.st_dev, at.st_ino), (root.st_dev, root.st_ino));
    assert!(walk.step().unwrap().is_none());

    let mut order = Vec::new();
    let mut walk = Walk::open(path).unwrap();
    while let Some(step) = walk.step().unwrap() {
        order.push(walk.path(step.name()));
    }
    let at = |name: &str| order.iter().position(|path| path == Path::new(name));
    assert!(at("a/b/link") < at("a/b") && at("a/b") < at("a") && at("a/file") < at("a"));
}

#[test]
fn many_directories_at_each_of_many_levels_are_passed_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut expected = BTreeSet::new();
    let mut path = PathBuf::new();
    for level in 0..2 * OPEN {
        for name in 0..100 {
            let side = path.join(format!("side-{level}-{name}"));
            fs::create_dir_all(dir.path().join(&side)).unwrap();
            expected.insert(side.file_name().unwrap().to_owned());
        }
        path.push(format!("level-{level}"));
        fs::create_dir(dir.path().join(&path)).unwrap();
        expected.insert(path.file_name().unwrap().to_owned());
    }
    let mut walk = Walk::open(dir.path()).unwrap();
    let mut passed = 0;
    while let Some(step) = walk.step().unwrap() {
        let Step::Directory(name, _) = step else {
            panic!("{step:?}");
        };
        assert!(
            expected.remove(OsStr::from_bytes(name.to_bytes())),
            "{name:?}"
        );
        passed += 1;
    }
    assert_eq!((passed, expected), (2 * OPEN * 101, BTreeSet::new()));
}

#[test]
fn a_directory_that_became_a_link_or_went_is_not_entered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    for name in ["a", "b", "c"] {
        fs::create_dir(path.join(name)).unwrap();
    }
    let mut walk = Walk::open(path).unwrap();
    // The walk has read all three and entered one.
    let first = walk.step().unwrap().unwrap();
    let first = first.name().unwrap().to_str().unwrap();
    let others: Vec<&str> = ["a", "b", "c"]
        .into_iter()
        .filter(|n| *n != first)
        .collect();
    for name in &others {
        fs::remove_dir(path.join(name)).unwrap();
    }
    symlink("/", path.join(others[0])).unwrap();
    let passed = steps(&mut walk);
    let link = [Errno::NOTDIR, Errno::LOOP].map(|error| format!("{} {error:?}", others[0]));
    assert!(link.iter().any(|link| passed.contains(link)), "{passed:?}");
    assert!(passed.contains(&format!("{} {:?}", others[1], Errno::NOENT)));
    assert_eq!(passed.len(), 2);
}

#[test]
fn what_is_moved_out_of_a_tree_does_not_lead_out_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, outside) = (dir.path().join("tree"), dir.path().join("outside"));
    for path in [&tree, &outside] {
        fs::create_dir(path).unwrap();
    }
    fs::write(outside.join("precious"), "x").unwrap();
    let deepest = chain(&tree, 30);
    fs::create_dir(deepest.join("bottom")).unwrap();
    let mut walk = Walk::open(&tree).unwrap();
    loop {
        let step = walk.step().unwrap().unwrap();
        if step.name() == Some(c"bottom") {
            break;
        }
    }
    // The moved directory is above those that the walk keeps open.
    let moved: PathBuf = (0..10).map(|level| level.to_string()).collect();
    fs::rename(tree.join(&moved), outside.join("moved")).unwrap();
    let mut passed = BTreeSet::new();
    while let Some(step) = walk.step().unwrap() {
        if let Step::Directory(name, _) = &step {
            passed.insert(name.to_str().unwrap().to_owned());
        }
        assert_ne!(step.name(), Some(c"precious"));
    }
    // All except the one whose parent has changed.
    let expected = (0..30).filter(|level| *level != 9).map(|l| l.to_string());
    assert_eq!(passed, expected.collect());
}

#[test]
fn a_tree_is_no_deeper_than_can_be_remembered() {
    let dir = tempfile::tempdir().unwrap();
    chain(dir.path(), 4);
    let mut walk = Walk::open(dir.path()).unwrap();
    walk.max_depth = 2;
    let expected = ["0/", "0/file", "0/1/", "0/1/file", "0/1/2 too deep"];
    assert_eq!(steps(&mut walk), set(&expected));
}

#[test]
fn of_a_long_way_the_ends_are_told() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(chain(dir.path(), 20).join("bottom")).unwrap();
    let mut walk = Walk::open(dir.path()).unwrap();
    let told = loop {
        let step = walk.step().unwrap().unwrap();
        if step.name() == Some(c"bottom") {
            break walk.path(step.name());
        }
    };
    assert_eq!(
        told,
        Path::new("0/1/2/3/4/5/6/7/.../13/14/15/16/17/18/19/bottom")
    );
}

#[test]
fn what_is_no_directory_is_not_walked_through() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("file"), dir.path().join("link"));
    fs::write(&file, "x").unwrap();
    symlink("/", &link).unwrap();
    for path in [file, link, dir.path().join("none")] {
        Walk::open(&path).unwrap_err();
    }
}
