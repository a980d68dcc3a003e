use std::{fs, time::SystemTime};

use k8s_openapi::api::core::v1::Pod;
use kubelet_cri_client::pod_status::{ContainerStatus, PodStatus};

use super::*;
use crate::ulimits::SoftLimit;

const POD: &str = "kubepods/burstable/pod1";
const SANDBOX: &str = "aaaa";
const CONTAINER: &str = "bbbb";

/// A machine with cgroup v2 and one pod.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let root = machine.dir.path().join("cgroup");
        let mounts = format!("1 2 0:1 / {} rw - cgroup2 c rw\n", root.display());
        machine.write("proc/self/mountinfo", &mounts);
        machine.cgroup(POD, 9_000_000, 900);
        machine.cgroup(&format!("{POD}/cri-{SANDBOX}.scope"), 1, 1);
        machine.process("cri", SANDBOX, 10);
        machine.cgroup(&format!("{POD}/cri-{CONTAINER}.scope"), 5_000_000, 500);
        machine.process("cri", CONTAINER, 11);
        machine
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn cgroup(&self, path: &str, microseconds: u64, memory: u64) {
        for (file, content) in [
            (
                "cpu.stat",
                format!("usage_usec {microseconds}\nuser_usec 1\nsystem_usec 2\n"),
            ),
            ("memory.current", format!("{memory}\n")),
            ("memory.max", "1000\n".to_owned()),
            (
                "memory.stat",
                "anon 7\ninactive_file 100\npgfault 3\n".to_owned(),
            ),
            ("memory.events", "max 4\noom_kill 1\n".to_owned()),
            ("pids.current", "2\n".to_owned()),
            ("cpu.weight", "79\n".to_owned()),
            ("cpu.max", "50000 100000\n".to_owned()),
            (
                "cpu.pressure",
                "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n".to_owned(),
            ),
        ] {
            self.write(&format!("cgroup/{path}/{file}"), &content);
        }
    }

    /// The only process in a container's cgroup.
    fn process(&self, prefix: &str, id: &str, pid: u32) {
        let cgroup = format!("{POD}/{prefix}-{id}.scope");
        self.write(
            &format!("cgroup/{cgroup}/cgroup.procs"),
            &format!("{pid}\n"),
        );
        self.write(&format!("proc/{pid}/cgroup"), &format!("0::/{cgroup}\n"));
        let counters = "eth0: 1000 1 0 0 0 0 0 0 2000 2 0 0 0 0 0 0\nlo: 1 1 1 1 1 1 1 1 1 1 1 1\n";
        self.write(&format!("proc/{pid}/net/dev"), counters);
        let limits = "Max processes 5 6 processes\nMax open files 1024 4096 files\n";
        self.write(&format!("proc/{pid}/limits"), limits);
        fs::create_dir_all(self.dir.path().join(format!("proc/{pid}/fd"))).unwrap();
    }

    fn collector(&self) -> Collector {
        Collector::new(&self.dir.path().join("proc"))
    }

    /// As the kernel's, the removed files cannot be read even if they are still open.
    fn remove(&self, path: &str) {
        let path = self.dir.path().join(path);
        empty_files(&path);
        fs::remove_dir_all(path).unwrap();
    }
}

fn empty_files(directory: &Path) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            empty_files(&entry.path());
        } else {
            fs::write(entry.path(), "").unwrap();
        }
    }
}

fn pod(host_network: bool) -> PodSubject {
    let container = ContainerStatus::started(CONTAINER.to_owned(), "app".to_owned());
    PodSubject {
        pod: Arc::new(Pod::default()),
        cgroup: Some(format!("/{POD}")),
        status: Arc::new(PodStatus {
            sandboxes: vec![SandboxStatus {
                id: SANDBOX.to_owned(),
                attempt: 0,
                ready: true,
                created_at: 1,
                host_network,
                ips: Vec::new(),
            }],
            containers: vec![container],
        }),
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_measured_by_its_cgroups() {
    let machine = Machine::new();
    let mut collector = machine.collector();
    let (found, complete) = collector.pod(&pod(false), Depth::Everything).unwrap();
    assert!(complete);
    assert_eq!(found.cgroup, format!("/{POD}"));
    assert_eq!(found.usage.cpu.unwrap().total, 9_000_000_000);
    let memory = found.usage.memory.unwrap();
    assert_eq!(
        (memory.working_set, memory.available),
        (Some(800), Some(200))
    );
    assert_eq!(found.processes, Some(1));
    assert_eq!(found.interfaces[0].receive.bytes, 1000);
    assert_eq!(found.interfaces.len(), 1);
    let [container] = &found.containers[..] else {
        panic!("{:?}", found.containers);
    };
    assert_eq!(container.cgroup, format!("/{POD}/cri-{CONTAINER}.scope"));
    assert_eq!(container.usage.cpu.unwrap().total, 5_000_000_000);
    let details = container.usage.details.as_ref().unwrap();
    assert_eq!(details.memory_events.oom_kills, Some(1));
    assert_eq!(details.tasks.processes, Some(1));
    assert_eq!(details.tasks.max_open_files, Some(SoftLimit::At(1024)));
    let limits = details.cpu_limits.unwrap();
    assert_eq!((limits.quota, limits.period), (Some(50_000), 100_000));
    let pressure = container.usage.cpu.unwrap().pressure.unwrap();
    assert_eq!(pressure.some.unwrap().total, 5_000);

    // The rate of a second collection, by the time between both.
    tokio::time::advance(Duration::from_secs(2)).await;
    machine.cgroup(&format!("{POD}/cri-{CONTAINER}.scope"), 6_000_000, 500);
    let (found, _) = collector.pod(&pod(false), Depth::CpuAndMemory).unwrap();
    let usage = &found.containers[0].usage;
    assert_eq!(usage.cpu.unwrap().nano_cores, Some(500_000_000));
    assert_eq!((usage.details.as_ref(), found.interfaces.len()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn limits_are_read_again_after_a_minute() {
    let machine = Machine::new();
    let mut collector = machine.collector();
    let mut quota = || {
        let (found, _) = collector.pod(&pod(false), Depth::Everything).unwrap();
        let details = found.containers[0].usage.details.clone().unwrap();
        details.cpu_limits.unwrap().quota
    };
    assert_eq!(quota(), Some(50_000));
    let file = format!("cgroup/{POD}/cri-{CONTAINER}.scope/cpu.max");
    machine.write(&file, "max 100000\n");
    assert_eq!(quota(), Some(50_000));
    tokio::time::advance(KNOWN_AGE).await;
    assert_eq!(quota(), None);
}

#[tokio::test(start_paused = true)]
async fn a_cgroup_in_which_no_task_ran_has_the_tasks_of_before() {
    let machine = Machine::new();
    let mut collector = machine.collector();
    let cgroup = format!("{POD}/cri-{CONTAINER}.scope");
    let mut measured = || {
        let (found, _) = collector.pod(&pod(false), Depth::Everything).unwrap();
        let usage = &found.containers[0].usage;
        let details = usage.details.as_ref().unwrap();
        (
            details.tasks.threads,
            details.io.len(),
            usage.memory.unwrap().usage,
            details.memory.usage,
        )
    };
    assert_eq!(measured(), (Some(2), 0, Some(500), 500));
    // Memory is reclaimed, and disks are written to, while no task runs.
    machine.cgroup(&cgroup, 5_000_000, 400);
    let stat = format!("cgroup/{cgroup}/memory.stat");
    machine.write(&stat, "anon 7\ninactive_file 0\npgfault 3\n");
    machine.write(&format!("cgroup/{cgroup}/pids.current"), "3\n");
    machine.write(&format!("cgroup/{cgroup}/io.stat"), "8:0 wbytes=1\n");
    assert_eq!(measured(), (Some(2), 1, Some(400), 400));
    // The kernel frees memory of its own.
    let usage = format!("cgroup/{cgroup}/memory.current");
    machine.write(&usage, "390\n");
    assert_eq!(measured(), (Some(2), 1, Some(400), 400));
    tokio::time::advance(KNOWN_AGE).await;
    assert_eq!(measured(), (Some(3), 1, Some(390), 390));
    machine.cgroup(&cgroup, 5_000_001, 400);
    assert_eq!(measured(), (Some(2), 1, Some(400), 400));
}

#[tokio::test(start_paused = true)]
async fn pressure_of_an_idle_cgroup_is_read_until_it_is_over() {
    let machine = Machine::new();
    let mut collector = machine.collector();
    let waited = |resource: &str, avg300: &str, total: u64| {
        let file = format!("cgroup/{POD}/cri-{CONTAINER}.scope/{resource}.pressure");
        let text = format!("some avg10=0.00 avg60=0.00 avg300={avg300} total={total}\n");
        machine.write(&file, &text);
    };
    let mut measured = || {
        let (found, _) = collector.pod(&pod(false), Depth::Everything).unwrap();
        let usage = &found.containers[0].usage;
        let all = [usage.cpu.unwrap().pressure, usage.io_pressure];
        all.map(|pressure| pressure.unwrap().some.unwrap().total)
    };
    waited("cpu", "0.01", 5);
    waited("io", "0.00", 1);
    assert_eq!(measured(), [5_000, 1_000]);
    // Tasks that began to wait did not run either.
    waited("io", "0.00", 2);
    waited("cpu", "0.00", 6);
    assert_eq!(measured(), [6_000, 1_000]);
    waited("cpu", "0.00", 7);
    assert_eq!(measured(), [6_000, 1_000]);
    tokio::time::advance(KNOWN_AGE).await;
    assert_eq!(measured(), [7_000, 2_000]);
}

#[test]
fn the_host_network_is_not_a_pods() {
    let machine = Machine::new();
    let (found, _) = machine
        .collector()
        .pod(&pod(true), Depth::Everything)
        .unwrap();
    assert_eq!(found.interfaces, []);
}

#[test]
fn without_a_sandboxs_process_a_containers_counts() {
    let machine = Machine::new();
    machine.remove(&format!("cgroup/{POD}/cri-{SANDBOX}.scope"));
    let mut collector = machine.collector();
    let (found, complete) = collector.pod(&pod(false), Depth::Everything).unwrap();
    assert!(complete);
    assert_eq!(found.interfaces.len(), 1);
    // The process ends; none is left.
    machine.remove("proc/11");
    machine.write(
        &format!("cgroup/{POD}/cri-{CONTAINER}.scope/cgroup.procs"),
        "",
    );
    let (found, _) = collector.pod(&pod(false), Depth::Everything).unwrap();
    assert_eq!(found.interfaces, []);
}

#[test]
fn processes_may_be_in_a_cgroup_below_the_containers() {
    let machine = Machine::new();
    let sandbox = format!("{POD}/cri-{SANDBOX}.scope");
    machine.write(&format!("cgroup/{sandbox}/cgroup.procs"), "");
    machine.write(&format!("cgroup/{sandbox}/container/cgroup.procs"), "10\n");
    machine.write("proc/10/cgroup", &format!("0::/{sandbox}/container\n"));
    machine.remove("proc/11");
    let (found, _) = machine
        .collector()
        .pod(&pod(false), Depth::Everything)
        .unwrap();
    assert_eq!(found.interfaces.len(), 1);
}

#[test]
fn the_monitor_of_a_container_is_not_the_container() {
    let machine = Machine::new();
    for id in [SANDBOX, CONTAINER] {
        let monitor = format!("{POD}/cri-conmon-{id}.scope");
        machine.cgroup(&monitor, 7, 7);
    }
    let (found, _) = machine
        .collector()
        .pod(&pod(false), Depth::Everything)
        .unwrap();
    let usage = &found.containers[0].usage;
    assert_eq!(usage.cpu.unwrap().total, 5_000_000_000);
}

#[test]
fn a_process_of_another_container_is_not_the_sandboxs() {
    let machine = Machine::new();
    machine.write("proc/10/cgroup", "0::/system.slice/other.service\n");
    machine.write("proc/11/cgroup", "0::/system.slice/other.service\n");
    let (found, _) = machine
        .collector()
        .pod(&pod(false), Depth::Everything)
        .unwrap();
    assert_eq!(found.interfaces, []);
}

#[test]
fn what_is_not_found_is_left_to_the_runtime() {
    let machine = Machine::new();
    let mut collector = machine.collector();
    assert!(collector.pod(&pod(false), Depth::CpuAndMemory).unwrap().1);
    // The container's cgroup is known, and gone.
    machine.remove(&format!("cgroup/{POD}/cri-{CONTAINER}.scope"));
    let (found, complete) = collector.pod(&pod(false), Depth::CpuAndMemory).unwrap();
    assert!(!complete);
    assert_eq!(found.containers[0].usage, Usage::default());
    assert!(found.usage.cpu.is_some());
    machine.remove("cgroup/kubepods");
    let (found, complete) = collector.pod(&pod(false), Depth::CpuAndMemory).unwrap();
    assert!(!complete);
    assert_eq!(found.usage, Usage::default());
    let without = PodSubject {
        cgroup: None,
        ..pod(false)
    };
    assert!(!collector.pod(&without, Depth::CpuAndMemory).unwrap().1);
    let mut ended = PodStatus::clone(&pod(false).status);
    ended.sandboxes[0].ready = false;
    let ended = PodSubject {
        status: Arc::new(ended),
        ..pod(false)
    };
    assert!(collector.pod(&ended, Depth::CpuAndMemory).is_none());
}

#[test]
fn what_is_gone_is_forgotten() {
    let machine = Machine::new();
    let mut collector = machine.collector();
    collector.pod(&pod(false), Depth::Everything);
    assert_eq!((collector.members.len(), collector.known.len()), (2, 2));
    collector.retain(&[pod(false)], &[]);
    assert_eq!((collector.members.len(), collector.known.len()), (2, 2));
    assert_eq!(collector.held.len(), 2);
    collector.retain(&[], &[]);
    assert_eq!((collector.members.len(), collector.known.len()), (0, 0));
    assert_eq!(collector.held.len(), 0);
}

#[test]
fn files_are_held_within_the_limit() {
    let machine = Machine::new();
    let mut collector = machine.collector();
    collector.max_held = 1;
    for microseconds in [5_000_000, 6_000_000] {
        machine.cgroup(
            &format!("{POD}/cri-{CONTAINER}.scope"),
            microseconds,
            microseconds / 1000,
        );
        let (found, complete) = collector.pod(&pod(false), Depth::Everything).unwrap();
        assert!(complete);
        let usage = &found.containers[0].usage;
        assert_eq!(usage.cpu.unwrap().total, microseconds * 1000);
        assert_eq!(usage.memory.unwrap().usage, Some(microseconds / 1000));
        assert_eq!(collector.held.len(), 1);
    }
}

#[test]
fn cgroups_beside_pods_are_measured_if_they_exist() {
    let machine = Machine::new();
    let mut collector = machine.collector();
    let subject = |path: &str| CgroupSubject {
        path: path.to_owned(),
        system_container: None,
        started_at: 7,
    };
    let found = collector.cgroup(subject(&format!("/{POD}")), Depth::Everything);
    let found = found.unwrap();
    assert_eq!(
        (found.usage.cpu.unwrap().total, found.started_at),
        (9_000_000_000, 7)
    );
    // Only the kernel knows the start of most of them.
    let events = format!("cgroup/{POD}/cgroup.events");
    machine.write(&events, "populated 1\n");
    let created = fs::metadata(machine.dir.path().join(events)).unwrap();
    let created = created.modified().unwrap();
    let created = created.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let of_kernel = CgroupSubject {
        started_at: 0,
        ..subject(&format!("/{POD}"))
    };
    let found = collector.cgroup(of_kernel, Depth::Everything).unwrap();
    assert_eq!(u128::try_from(found.started_at), Ok(created.as_nanos()));
    assert!(found.started_at > 0);
    let absent = collector.cgroup(subject("/kubepods/absent"), Depth::Everything);
    assert!(absent.is_none());
}
