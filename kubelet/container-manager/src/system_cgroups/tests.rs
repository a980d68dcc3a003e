//! Tests on a cgroup file system and a `/proc` of plain files.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

const OWN: i32 = 30;

/// A machine with process 1, a kernel thread (2), two processes in the root cgroup, and the
/// kubelet in `/user`.
struct Machine {
    root: TempDir,
    processes: Processes,
}

impl Machine {
    fn new(cgroups: &[&str]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let proc = root.path().join("proc");
        for (pid, namespace) in [
            (1, "host"),
            (2, "host"),
            (20, "host"),
            (21, "host"),
            (OWN, "host"),
        ] {
            let directory = proc.join(pid.to_string());
            fs::create_dir_all(directory.join("ns")).unwrap();
            symlink(namespace, directory.join("ns/pid")).unwrap();
            if pid != 2 {
                symlink("/bin/program", directory.join("exe")).unwrap();
            }
        }
        fs::write(proc.join("30/cgroup"), "0::/user\n").unwrap();
        for cgroup in ["", "user"].iter().chain(cgroups) {
            let directory = root.path().join("cgroup").join(cgroup);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("cgroup.procs"), "").unwrap();
        }
        let machine = Self {
            processes: Processes { proc, own: OWN },
            root,
        };
        fs::write(machine.procs(""), "1\n2\n20\n0\n21\n").unwrap();
        machine
    }

    fn procs(&self, cgroup: &str) -> PathBuf {
        self.root
            .path()
            .join("cgroup")
            .join(cgroup)
            .join("cgroup.procs")
    }

    fn hierarchy(&self) -> Hierarchy {
        Hierarchy::V2 {
            root: self.root.path().join("cgroup"),
            controllers: Vec::new(),
        }
    }

    fn ensure(&self, options: &SystemCgroupOptions) -> Vec<String> {
        self.processes.ensure(&self.hierarchy(), options)
    }

    /// What was written to the list of processes of a cgroup.
    fn moved(&self, cgroup: &str) -> String {
        fs::read_to_string(self.procs(cgroup)).unwrap()
    }
}

fn options(kubelet: Option<&str>, system: Option<&str>) -> SystemCgroupOptions {
    SystemCgroupOptions {
        kubelet: kubelet.map(str::to_owned),
        system: system.map(str::to_owned),
        ..SystemCgroupOptions::default()
    }
}

#[test]
fn processes_of_the_root_cgroup_are_moved_except_the_kernels() {
    let machine = Machine::new(&["system"]);
    assert_eq!(machine.ensure(&options(None, Some("/system"))), [""; 0]);
    // Plain files keep the processes in the root cgroup, so that each attempt moves them.
    assert_eq!(machine.moved("system"), "2021".repeat(11));
    assert_eq!(machine.moved("user"), "");
    fs::write(machine.procs(""), "1\n2\n").unwrap();
    assert_eq!(machine.ensure(&options(None, Some("/system"))), [""; 0]);
    assert_eq!(machine.moved("system"), "2021".repeat(11));
}

#[test]
fn the_kubelet_is_moved_once() {
    let machine = Machine::new(&["daemons/kubelet"]);
    let own = options(Some("/daemons/kubelet"), None);
    assert_eq!(machine.ensure(&own), [""; 0]);
    assert_eq!(machine.moved("daemons/kubelet"), "30");
    let file = machine.processes.proc.join("30/cgroup");
    fs::write(file, "0::/daemons/kubelet\n").unwrap();
    assert_eq!(machine.ensure(&own), [""; 0]);
    assert_eq!(machine.moved("daemons/kubelet"), "30");
}

#[test]
fn a_kubelet_in_a_container_stays_there() {
    let machine = Machine::new(&["kubelet"]);
    let namespace = machine.processes.proc.join("30/ns/pid");
    fs::remove_file(&namespace).unwrap();
    symlink("container", namespace).unwrap();
    assert_eq!(machine.ensure(&options(Some("/kubelet"), None)), [""; 0]);
    assert_eq!(machine.moved("kubelet"), "");
}

#[test]
fn no_cgroup_is_outside_the_hierarchy() {
    let machine = Machine::new(&[]);
    for cgroup in ["/", "", "/../proc", "a/../../b"] {
        let problems = machine.ensure(&options(Some(cgroup), Some(cgroup)));
        assert_eq!(problems.len(), 2, "{cgroup}: {problems:?}");
        assert!(problems[0].contains("systemCgroups"), "{problems:?}");
        assert!(problems[1].contains("kubeletCgroups"), "{problems:?}");
    }
}

#[test]
fn the_kubelet_knows_its_cgroup() {
    let machine = Machine::new(&[]);
    let own = machine.processes.own_cgroup(machine.hierarchy().is_v2());
    assert_eq!(own.unwrap(), "/user");
}

#[test]
fn cgroups_have_upstreams_names() {
    let with = |options| SystemCgroups::new(options).paths(None);
    let paths = with(SystemCgroupOptions {
        runtime: Some("/runtime".to_owned()),
        root: "pods/".to_owned(),
        ..options(Some("/kubelet"), Some("/system"))
    });
    let expected = [
        ("kubelet", "/kubelet"),
        ("misc", "/system"),
        ("pods", "/pods"),
        ("runtime", "/runtime"),
    ];
    let shown: Vec<_> = paths
        .iter()
        .map(|(name, path)| (*name, path.as_str()))
        .collect();
    assert_eq!(shown, expected);
    let paths = with(SystemCgroupOptions::default());
    assert_eq!(paths["pods"], "/");
    assert!(!paths.contains_key("misc") && !paths.contains_key("runtime"));
}
