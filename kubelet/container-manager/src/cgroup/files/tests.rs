//! Tests on directories that stand in for the file system of cgroups.

use std::{collections::BTreeMap, path::PathBuf};

use tempfile::TempDir;

use super::*;
use crate::cgroup::config::CgroupConfig;

fn unified(root: &TempDir) -> Hierarchy {
    Hierarchy::V2 {
        root: root.path().to_owned(),
        controllers: ["cpu", "memory", "pids"].map(str::to_owned).into(),
    }
}

/// With a hierarchy `cpu`, one for all other controllers, and one without any.
fn split(root: &TempDir) -> Hierarchy {
    let [cpu, rest, hybrid] = ["cpu", "rest", "hybrid"].map(|name| root.path().join(name));
    for directory in [&cpu, &rest, &hybrid] {
        fs::create_dir(directory).unwrap();
    }
    let controllers: BTreeMap<String, PathBuf> =
        [("cpu", &cpu), ("memory", &rest), ("pids", &rest)]
            .map(|(name, path)| (name.to_owned(), path.clone()))
            .into();
    Hierarchy::V1 {
        all: vec![cpu, rest],
        controllers,
        hybrid: Some(hybrid),
    }
}

#[test]
fn a_cgroup_has_a_directory_in_each_hierarchy() {
    let root = tempfile::tempdir().unwrap();
    let hierarchy = split(&root);
    create(&hierarchy, Path::new("a/b")).unwrap();
    create(&hierarchy, Path::new("a/c")).unwrap();
    for path in ["cpu/a/b", "rest/a/b"] {
        assert!(root.path().join(path).is_dir(), "{path}");
    }
    assert_eq!(children(&hierarchy, Path::new("a")).unwrap(), ["b", "c"]);
    assert_eq!(children(&hierarchy, Path::new("other")).unwrap(), [""; 0]);
    remove(&hierarchy, Path::new("a/b")).unwrap();
    remove(&hierarchy, Path::new("a/b")).unwrap();
    assert_eq!(children(&hierarchy, Path::new("a")).unwrap(), ["c"]);
}

#[test]
fn what_a_runtime_made_in_the_hybrid_hierarchy_is_found_and_removed() {
    let root = tempfile::tempdir().unwrap();
    let hierarchy = split(&root);
    create(&hierarchy, Path::new("a/b")).unwrap();
    let hybrid = root.path().join("hybrid/a");
    assert!(!hybrid.exists());
    for left in ["b", "c"] {
        fs::create_dir_all(hybrid.join(left).join("container")).unwrap();
    }
    assert_eq!(children(&hierarchy, Path::new("a")).unwrap(), ["b", "c"]);
    for left in ["a/b", "a/c"] {
        remove(&hierarchy, Path::new(left)).unwrap();
    }
    assert_eq!(fs::read_dir(&hybrid).unwrap().count(), 0);
}

#[test]
fn values_are_written_to_existing_files_only() {
    let root = tempfile::tempdir().unwrap();
    let hierarchy = unified(&root);
    let directory = root.path().join("a");
    fs::create_dir(&directory).unwrap();
    let config = CgroupConfig {
        memory: Some(5),
        huge_pages: Some([(2 << 20, 0)].into()),
        ..CgroupConfig::default()
    };
    // The hierarchy has no hugetlb, so its limits are left out.
    let settings = config.v2(&[2 << 20]);
    let error = set(&hierarchy, Path::new("a"), &settings).unwrap_err();
    let file = directory.join("memory.max");
    let expected = format!(
        "cannot write 5 to {}: No such file or directory",
        file.display()
    );
    assert!(error.to_string().starts_with(&expected), "{error}");
    fs::write(&file, "max").unwrap();
    set(&hierarchy, Path::new("a"), &settings).unwrap();
    assert!(fs::read_to_string(&file).unwrap().starts_with('5'));
    fs::write(directory.join("memory.current"), "12\n").unwrap();
    let read = |controller, file| text(&hierarchy, controller, Path::new("a"), file).unwrap();
    assert_eq!(read("memory", "memory.current").as_deref(), Some("12\n"));
    assert_eq!(read("hugetlb", "hugetlb.2MB.max"), None);
}

#[test]
fn a_tree_is_removed_from_its_leaves() {
    let root = tempfile::tempdir().unwrap();
    let hierarchy = unified(&root);
    for path in ["a/b/c", "a/d"] {
        create(&hierarchy, Path::new(path)).unwrap();
    }
    // Files are the kernel's in a real cgroup; here, one stands for a cgroup that is busy.
    let busy = root.path().join("a/d/busy");
    fs::write(&busy, "").unwrap();
    let error = remove(&hierarchy, Path::new("a")).unwrap_err();
    let expected = format!("cannot remove {}", root.path().join("a").display());
    assert!(error.to_string().starts_with(&expected), "{error}");
    fs::remove_file(busy).unwrap();
    remove(&hierarchy, Path::new("a")).unwrap();
    assert!(!root.path().join("a").exists());
}
