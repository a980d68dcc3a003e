use std::fs;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::{DeviceIo, Mounts, Process, Resource};

const ID: &str = "0123456789abcdef";
const PSI: &str = "some avg10=1.50 avg60=0.25 avg300=0.00 total=12\n\
                   full avg10=0.00 avg60=0.00 avg300=0.00 total=3\n";

/// A node with one container and its files in each hierarchy.
struct Node {
    dir: TempDir,
}

impl Node {
    /// `v1` lists the controllers with their own hierarchy.
    fn new(v1: &[&str], unified: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (mut mounts, mut table) = (String::new(), String::new());
        for controller in v1 {
            let point = dir.path().join(controller);
            mounts += &format!(
                "1 2 0:1 / {} rw - cgroup c rw,{controller}\n",
                point.display()
            );
            table += &format!("1:{controller}:/docker/{ID}\n");
        }
        if unified {
            let point = dir.path().join("unified");
            mounts += &format!("1 2 0:1 / {} rw - cgroup2 c rw\n", point.display());
            table += &format!("0::/docker/{ID}\n");
        }
        let node = Self { dir };
        node.write("proc/self/mountinfo", mounts.as_bytes());
        node.write("proc/7/cgroup", table.as_bytes());
        node
    }

    fn write(&self, path: &str, content: &[u8]) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Writes the container's files, given as `hierarchy/file`.
    fn files(self, files: &[(&str, &str)]) -> Self {
        for (path, content) in files {
            let (hierarchy, file) = path.split_once('/').unwrap();
            self.write(
                &format!("{hierarchy}/docker/{ID}/{file}"),
                content.as_bytes(),
            );
        }
        self
    }

    fn cgroup(&self) -> Cgroup {
        let proc = self.dir.path().join("proc");
        let process = Process::hold(&proc, 7).unwrap();
        let mounts = Mounts::read(&proc).unwrap();
        mounts.locate(process.cgroups(), ID).unwrap()
    }
}

fn v1() -> Node {
    Node::new(&["cpu", "cpuacct", "memory", "pids", "blkio"], false).files(&[
        ("cpuacct/cpuacct.usage", "5000000000\n"),
        ("cpuacct/cpuacct.stat", "user 300\nsystem 200\n"),
        (
            "cpu/cpu.stat",
            "nr_periods 10\nnr_throttled 4\nthrottled_time 70\n",
        ),
        ("memory/memory.usage_in_bytes", "1000\n"),
        ("memory/memory.limit_in_bytes", "5000\n"),
        ("memory/memory.memsw.limit_in_bytes", "9000\n"),
        (
            "memory/memory.stat",
            "cache 1\nhierarchical_memory_limit 5000\ntotal_cache 300\ntotal_rss 600\ntotal_mapped_file 20\ntotal_pgfault 7\n\
             total_pgmajfault 2\ntotal_inactive_file 250\ntotal_active_file 50\ntotal_swap 400\n",
        ),
        ("memory/memory.failcnt", "3\n"),
        ("memory/memory.max_usage_in_bytes", "2000\n"),
        ("memory/memory.kmem.usage_in_bytes", "64\n"),
        (
            "memory/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
        ),
        ("pids/pids.current", "6\n"),
        ("pids/pids.max", "100\n"),
        ("pids/cgroup.procs", "10\n11\n"),
        (
            "blkio/blkio.throttle.io_service_bytes_recursive",
            "254:0 Read 4096\n254:0 Write 8192\n254:0 Total 12288\n7:1 Read 1\nTotal 12289\n",
        ),
        (
            "blkio/blkio.throttle.io_serviced_recursive",
            "254:0 Read 1\n254:0 Write 2\nTotal 3\n",
        ),
    ])
}

fn v2() -> Node {
    Node::new(&[], true).files(&[
        (
            "unified/cpu.stat",
            "usage_usec 5000000\nuser_usec 3000000\nsystem_usec 2000000\nnr_periods 10\n\
             nr_throttled 4\nthrottled_usec 7\n",
        ),
        ("unified/cpu.pressure", PSI),
        ("unified/memory.pressure", PSI),
        ("unified/io.pressure", PSI),
        ("unified/memory.current", "1000\n"),
        ("unified/memory.max", "5000\n"),
        (
            "unified/memory.stat",
            "anon 600\nfile 300\nkernel 64\nfile_mapped 20\ninactive_file 250\nactive_file 50\n\
             pgfault 7\npgmajfault 2\n",
        ),
        ("unified/memory.swap.current", "400\n"),
        ("unified/memory.swap.max", "4000\n"),
        ("unified/memory.peak", "2000\n"),
        (
            "unified/memory.events",
            "low 0\nhigh 0\nmax 3\noom 5\noom_kill 5\n",
        ),
        ("unified/pids.current", "6\n"),
        ("unified/pids.max", "max\n"),
        ("unified/cgroup.procs", "10\n11\n"),
        (
            "unified/io.stat",
            "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n7:1 \n",
        ),
    ])
}

#[test]
fn memory_of_an_idle_cgroup_is_read_again_once_its_stat_has_changed() {
    for (node, usage, stat) in [
        (v1(), "memory/memory.usage_in_bytes", "memory/memory.stat"),
        (v2(), "unified/memory.current", "unified/memory.stat"),
    ] {
        let (cgroup, mut reader) = (node.cgroup(), KernelFileReader::default());
        let last = reader.memory(&cgroup, None).unwrap();
        let node = node.files(&[(usage, "900\n")]);
        assert_eq!(reader.memory_of_idle(&cgroup, None, last), Some(last));
        let _node = node.files(&[(stat, "total_rss 500\nanon 500\n")]);
        let memory = reader.memory_of_idle(&cgroup, None, last).unwrap();
        assert_eq!((memory.usage, memory.rss), (900, 500));
    }
}

#[test]
fn both_versions_say_the_same() {
    for node in [v1(), v2()] {
        let (cgroup, mut reader) = (node.cgroup(), KernelFileReader::default());
        assert_eq!(reader.cpu(&cgroup, None), Some(5_000_000_000));
        let times = reader.cpu_times(&cgroup, None, None).unwrap();
        assert_eq!(times.total, 5_000_000_000);
        assert_eq!((times.user, times.system), (3_000_000_000, 2_000_000_000));
        assert_eq!((times.periods, times.throttled_periods), (10, 4));
        let mut memory = reader.memory(&cgroup, None).unwrap();
        let mut events = reader.memory_events(&cgroup);
        // Only the file that has it differs.
        events.kernel = events.kernel.or(memory.kernel.take());
        assert_eq!(
            memory,
            Memory {
                usage: 1000,
                limit: Some(5000),
                inactive_file: 250,
                active_file: 50,
                rss: 600,
                cache: 300,
                mapped_file: 20,
                kernel: None,
                page_faults: 7,
                major_page_faults: 2,
                swap: Some(Swap {
                    usage: 400,
                    available: Some(3600),
                }),
                stat_digest: memory.stat_digest,
            }
        );
        assert_eq!(
            (memory.working_set(), memory.available()),
            (750, Some(4250))
        );
        assert_eq!(
            events,
            MemoryEvents {
                failures: Some(3),
                max_usage: Some(2000),
                kernel: Some(64),
                oom_kills: Some(5),
            }
        );
        assert_eq!(reader.threads(&cgroup), Some(6));
        assert_eq!(reader.tasks(&cgroup).processes, Some(vec![10, 11]));
        let devices = reader.io(&cgroup);
        assert_eq!(
            devices[0],
            DeviceIo {
                device: "254:0".into(),
                read_bytes: 4096,
                write_bytes: 8192,
                reads: 1,
                writes: 2,
            }
        );
        assert_eq!(devices.len(), 2);
    }
}

#[test]
fn times_are_those_of_the_last_call_if_the_total_is() {
    let mut reader = KernelFileReader::default();
    let node = v1();
    let last = reader.cpu_times(&node.cgroup(), None, None);
    let node = node.files(&[("cpuacct/cpuacct.stat", "user 500\nsystem 0\n")]);
    assert_eq!(reader.cpu_times(&node.cgroup(), None, last), last);
    let node = node.files(&[("cpuacct/cpuacct.usage", "5000000001\n")]);
    let times = reader.cpu_times(&node.cgroup(), None, last).unwrap();
    assert_eq!((times.total, times.user), (5_000_000_001, 5_000_000_000));
}

#[test]
fn throttling_is_in_nanoseconds() {
    let throttled = |node: Node| {
        KernelFileReader::default()
            .cpu_times(&node.cgroup(), None, None)
            .unwrap()
            .throttled
    };
    assert_eq!((throttled(v1()), throttled(v2())), (70, 7000));
}

#[test]
fn no_limit_is_none() {
    let v1 = v1().files(&[
        ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
        (
            "memory/memory.memsw.limit_in_bytes",
            "9223372036854771712\n",
        ),
    ]);
    let v2 = v2().files(&[
        ("unified/memory.max", "max\n"),
        ("unified/memory.swap.max", "max\n"),
    ]);
    for node in [v1, v2] {
        let memory = KernelFileReader::default()
            .memory(&node.cgroup(), None)
            .unwrap();
        assert_eq!((memory.limit, memory.available()), (None, None));
        assert_eq!(memory.swap.unwrap().available, None);
    }
}

#[test]
fn a_limit_above_is_not_its_own() {
    let node = v1().files(&[
        ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ("memory/memory.stat", "hierarchical_memory_limit 5000\n"),
    ]);
    let memory = KernelFileReader::default()
        .memory(&node.cgroup(), None)
        .unwrap();
    assert_eq!(memory.limit, None);
}

#[test]
fn a_list_may_be_long() {
    let pids: String = (0..20_000).map(|pid| format!("{pid}\n")).collect();
    let node = v2().files(&[("unified/cgroup.procs", &pids)]);
    let tasks = KernelFileReader::default().tasks(&node.cgroup());
    assert_eq!(tasks.processes, Some((0..20_000).collect()));
}

#[test]
fn a_working_set_is_never_negative() {
    let memory = Memory {
        usage: 100,
        inactive_file: 200,
        ..Memory::default()
    };
    assert_eq!(memory.working_set(), 0);
}

#[test]
fn pressures_come_from_the_unified_hierarchy() {
    let hybrid = Node::new(&["cpuacct", "memory"], true).files(&[
        ("cpuacct/cpuacct.usage", "42\n"),
        ("memory/memory.usage_in_bytes", "9\n"),
        ("unified/cpu.stat", "usage_usec 1\n"),
        ("unified/cpu.pressure", PSI),
    ]);
    let (cgroup, mut reader) = (hybrid.cgroup(), KernelFileReader::default());
    // A v1 controller takes precedence over the unified hierarchy.
    assert_eq!(reader.cpu(&cgroup, None), Some(42));
    let memory = reader.memory(&cgroup, None).unwrap();
    assert_eq!((memory.usage, memory.swap), (9, None));
    let psi = reader.pressure(&cgroup, Resource::Cpu).unwrap();
    let some = psi.some.unwrap();
    assert_eq!((some.total, some.avg10, some.avg60), (12_000, 1.5, 0.25));
    assert_eq!(psi.full.unwrap().total, 3000);
    assert_eq!(reader.pressure(&cgroup, Resource::Io), None);
    let only_v1 = v1();
    assert_eq!(reader.pressure(&only_v1.cgroup(), Resource::Cpu), None);
}

#[test]
fn a_cgroup_that_is_gone_uses_nothing() {
    for node in [
        Node::new(&["cpuacct", "memory", "pids", "blkio"], false),
        Node::new(&[], true),
    ] {
        let (cgroup, mut reader) = (node.cgroup(), KernelFileReader::default());
        assert_eq!(reader.cpu(&cgroup, None), None);
        assert_eq!(reader.memory(&cgroup, None), None);
        assert_eq!(reader.threads(&cgroup), None);
        assert_eq!(reader.io(&cgroup), []);
        assert_eq!(reader.tasks(&cgroup), Tasks::default());
        assert_eq!(reader.cpu_times(&cgroup, None, None), None);
    }
}

const V1_FILES: &[&str] = &[
    "cpuacct/cpuacct.usage",
    "cpuacct/cpuacct.stat",
    "memory/memory.usage_in_bytes",
    "memory/memory.limit_in_bytes",
    "memory/memory.stat",
    "memory/memory.oom_control",
    "blkio/blkio.throttle.io_service_bytes_recursive",
];
const V2_FILES: &[&str] = &[
    "unified/cpu.stat",
    "unified/cpu.pressure",
    "unified/memory.current",
    "unified/memory.max",
    "unified/memory.stat",
    "unified/memory.swap.current",
    "unified/io.stat",
    "unified/pids.current",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_content_is_read_without_panic(
        content in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..200),
            "([a-z_]{1,12}[ =:][0-9]{0,24}[ \n]){0,12}".prop_map(String::into_bytes),
        ],
        usage in prop_oneof!["[0-9]{1,24}", Just("max".to_owned())],
    ) {
        let v1 = Node::new(&["cpuacct", "memory", "pids", "blkio"], false);
        let v2 = Node::new(&[], true);
        for (node, files) in [(v1, V1_FILES), (v2, V2_FILES)] {
            for path in files {
                let (hierarchy, file) = path.split_once('/').unwrap();
                let number = file.ends_with("current") || file.ends_with("in_bytes");
                let content = if number { usage.as_bytes() } else { &content };
                node.write(&format!("{hierarchy}/docker/{ID}/{file}"), content);
            }
            let (cgroup, mut reader) = (node.cgroup(), KernelFileReader::default());
            let _ = reader.cpu(&cgroup, None);
            let _ = reader.cpu_times(&cgroup, None, None);
            if let Some(memory) = reader.memory(&cgroup, None) {
                prop_assert!(memory.working_set() <= memory.usage);
            }
            let _ = reader.memory_events(&cgroup);
            let _ = reader.tasks(&cgroup);
            let _ = reader.io(&cgroup);
            for resource in [Resource::Cpu, Resource::Memory, Resource::Io] {
                let _ = reader.pressure(&cgroup, resource);
            }
        }
    }
}
