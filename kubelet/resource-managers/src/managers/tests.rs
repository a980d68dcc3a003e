use std::fs;

use fake_device_plugin::{FakeDevicePlugin, device};
use kubelet_cpu_manager::StaticOptions;
use kubelet_machine_info::{Core, Node};
use kubelet_memory_manager::Reserved;
use serde_json::{Value, json};

use super::*;
use crate::{
    admission::Admitted,
    error::AdmissionError,
    options::{CpuOptions, TopologyOptions},
    state_file::{CPU_FILE, MEMORY_FILE},
};

const GIB: u64 = 1 << 30;

/// Two NUMA nodes with 4 cores of one thread and 8 GiB each.
fn machine() -> MachineInfo {
    let node = |id: u32| Node {
        node_id: id,
        memory: 8 * GIB,
        cores: (id * 4..id * 4 + 4)
            .map(|cpu| Core {
                core_id: cpu,
                thread_ids: vec![cpu],
                socket_id: id,
                ..Core::default()
            })
            .collect(),
        ..Node::default()
    };
    MachineInfo {
        topology: vec![node(0), node(1)],
        ..MachineInfo::default()
    }
}

fn static_cpus() -> CpuOptions {
    CpuOptions {
        policy: StaticOptions::default(),
        reserved: "0".parse().unwrap(),
        reserved_count: 1,
        keeps_quota: false,
    }
}

fn options() -> ResourceManagerOptions {
    ResourceManagerOptions {
        cpu: Some(static_cpus()),
        memory: Some(Reserved::from([(0, [("memory".to_owned(), GIB)].into())])),
        topology: None,
    }
}

fn aligned(policy: PolicyName, scope: Scope) -> ResourceManagerOptions {
    ResourceManagerOptions {
        topology: Some(TopologyOptions {
            policy,
            scope,
            prefer_closest: false,
            most_nodes: 8,
        }),
        ..options()
    }
}

fn start(options: &ResourceManagerOptions, dir: &Path) -> ResourceManagers {
    ResourceManagers::start(options, &machine(), dir).unwrap()
}

fn container(name: &str, cpu: &str, memory: &str) -> Value {
    let list = json!({"cpu": cpu, "memory": memory});
    json!({"name": name, "resources": {"requests": list, "limits": list}})
}

fn pod_of(uid: &str, spec: Value) -> Pod {
    let pod = json!({"metadata": {"name": uid, "uid": uid}, "spec": spec});
    serde_json::from_value(pod).unwrap()
}

fn pod(uid: &str, cpu: &str, memory: &str) -> Pod {
    pod_of(uid, json!({"containers": [container("c", cpu, memory)]}))
}

/// The CPUs and the memory nodes of container `c`.
fn of(managers: &ResourceManagers, uid: &str) -> (String, String) {
    let uid = PodUid::from(uid);
    let text = |set: Option<CpuSet>| set.map_or("all".to_owned(), |set| set.to_string());
    let memory = managers.memory_nodes(&uid, "c");
    (text(managers.cpus(&uid, "c")), text(memory))
}

fn pair(cpus: &str, nodes: &str) -> (String, String) {
    (cpus.to_owned(), nodes.to_owned())
}

fn metrics(managers: &ResourceManagers) -> String {
    let mut page = Exposition::default();
    managers.collect(&mut page);
    page.into_text()
}

#[tokio::test]
async fn containers_keep_what_they_have_over_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let managers = start(&options(), dir.path());
    managers.admit(&pod("a", "2", "1Gi"), false).unwrap();
    managers.admit(&pod("b", "500m", "1Gi"), false).unwrap();
    let before = [
        of(&managers, "a"),
        of(&managers, "b"),
        of(&managers, "other"),
    ];
    assert_eq!(before[0], pair("1-2", "0"));
    assert_eq!(before[1], pair("0,3-7", "0"));
    assert_eq!(before[2], pair("0,3-7", "all"));
    managers.save().await.unwrap();

    let managers = start(&options(), dir.path());
    let after = [
        of(&managers, "a"),
        of(&managers, "b"),
        of(&managers, "other"),
    ];
    assert_eq!(after, before);
    // The pods are admitted again.
    managers.admit(&pod("a", "2", "1Gi"), false).unwrap();
    assert_eq!(of(&managers, "a"), before[0]);
    assert!(managers.is_without_quota(&PodUid::from("a"), "c"));
    assert!(managers.is_pod_without_quota(&PodUid::from("a")));
    assert!(!managers.is_pod_without_quota(&PodUid::from("b")));

    let active = [Arc::new(pod("b", "500m", "1Gi"))];
    managers.release_gone(&active, |uid| uid.as_str() == "a");
    assert_eq!(of(&managers, "a"), before[0]);
    assert!(managers.holders().iter().map(PodUid::as_str).eq(["a", "b"]));
    managers.release_gone(&active, |_| false);
    assert_eq!(of(&managers, "a"), pair("0-7", "all"));
    assert_eq!(of(&managers, "b"), pair("0-7", "0"));
}

#[test]
fn a_pod_that_is_rejected_gets_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let managers = start(&options(), dir.path());
    let large = pod_of(
        "a",
        json!({"containers": [container("c", "5", "1Gi"), container("d", "3", "1Gi")]}),
    );
    let error = managers.admit(&large, false).unwrap_err();
    assert_eq!(error.reason(), "UnexpectedAdmissionError");
    assert_eq!(
        error.to_string(),
        "Allocate failed due to not enough cpus available to satisfy request: requested=3, \
         available=2, which is unexpected"
    );
    assert_eq!(of(&managers, "a"), pair("0-7", "all"));
    let error = managers.admit(&pod("a", "1", "16Gi"), false).unwrap_err();
    assert!(error.to_string().contains("[memorymanager]"), "{error}");
    assert_eq!(of(&managers, "a"), pair("0-7", "all"));
    let text = metrics(&managers);
    for line in [
        "kubelet_cpu_manager_pinning_requests_total 3\n",
        "kubelet_cpu_manager_pinning_errors_total 1\n",
        "kubelet_memory_manager_pinning_requests_total 2\n",
        "kubelet_memory_manager_pinning_errors_total 1\n",
        "kubelet_cpu_manager_exclusive_cpu_allocation_count 0\n",
        "kubelet_cpu_manager_shared_pool_size_millicores 7000\n",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
}

#[test]
fn alignment_is_by_container_or_by_pod() {
    let two = json!({"containers": [container("c", "3", "1Gi"), container("d", "3", "1Gi")]});
    for (scope, admitted) in [(Scope::Container, true), (Scope::Pod, false)] {
        let dir = tempfile::tempdir().unwrap();
        let managers = start(&aligned(PolicyName::SingleNumaNode, scope), dir.path());
        let result = managers.admit(&pod_of("a", two.clone()), false);
        assert_eq!(result.is_ok(), admitted, "{result:?}");
        if let Err(error) = result {
            assert_eq!(error, AdmissionError::Topology);
            assert_eq!(error.reason(), "TopologyAffinityError");
            let text = metrics(&managers);
            for line in [
                "kubelet_topology_manager_admission_requests_total 1\n",
                "kubelet_topology_manager_admission_errors_total 1\n",
                "kubelet_container_aligned_compute_resources_failure_count\
                 {scope=\"pod\",boundary=\"numa_node\"} 1\n",
            ] {
                assert!(text.contains(line), "{line} is not in {text}");
            }
            continue;
        }
        assert_eq!(of(&managers, "a"), pair("1-3", "0"));
        let uid = PodUid::from("a");
        let of_d = managers.cpus(&uid, "d").unwrap();
        assert_eq!(of_d.to_string(), "4-6");
        assert_eq!(managers.memory_nodes(&uid, "d").unwrap().to_string(), "1");
    }
}

#[test]
fn a_pod_that_runs_is_not_rejected_by_a_new_policy() {
    let dir = tempfile::tempdir().unwrap();
    let managers = start(&options(), dir.path());
    let large = pod("a", "6", "1Gi");
    managers.admit(&large, false).unwrap();
    let files = managers.state.lock().held.files().unwrap();
    for (name, content) in files {
        fs::write(dir.path().join(name), content).unwrap();
    }
    let managers = start(&aligned(PolicyName::SingleNumaNode, Scope::Pod), dir.path());
    managers.admit(&large, false).unwrap();
    managers.release_gone(&[], |_| false);
    assert_eq!(managers.admit(&large, false), Err(AdmissionError::Topology));
}

#[test]
fn init_containers_release_their_memory_when_others_start() {
    let dir = tempfile::tempdir().unwrap();
    let managers = start(&options(), dir.path());
    let pod = pod_of(
        "a",
        json!({
            "initContainers": [container("i", "1", "6Gi")],
            "containers": [container("c", "1", "1Gi")]
        }),
    );
    managers.admit(&pod, false).unwrap();
    let uid = PodUid::from("a");
    let nodes = |container| managers.memory_nodes(&uid, container).is_some();
    managers.container_starts(&pod, "i");
    assert!(nodes("i"));
    managers.container_starts(&pod, "c");
    assert_eq!((nodes("i"), nodes("c")), (false, true));
    // What was released is not taken again when the pod is admitted after a restart.
    managers.admit(&pod, false).unwrap();
    assert!(!nodes("i"));
    // The CPU is that of the init container.
    assert_eq!(managers.cpus(&uid, "i"), managers.cpus(&uid, "c"));
}

#[test]
fn a_state_that_does_not_fit_is_refused_with_its_path() {
    let none = ResourceManagerOptions::default();
    let cpu_file = |content: &str| (CPU_FILE, content.to_owned());
    for ((name, content), options, says) in [
        (
            cpu_file(r#"{"policyName":"none","defaultCpuSet":"","checksum":0}"#),
            options(),
            "\"none\"",
        ),
        (
            cpu_file(r#"{"policyName":"static","defaultCpuSet":"0-7","checksum":0}"#),
            none.clone(),
            "drain the node, remove the file",
        ),
        (
            cpu_file(r#"{"policyName":"static","defaultCpuSet":"0-3","checksum":0}"#),
            options(),
            "the CPUs of the machine are 0-7",
        ),
        (cpu_file("{"), none.clone(), "invalid"),
        (
            (
                MEMORY_FILE,
                r#"{"policyName":"Static","machineState":{},"checksum":0}"#.to_owned(),
            ),
            none,
            "\"Static\"",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        let error = ResourceManagers::start(&options, &machine(), dir.path()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(says), "{text}");
        assert!(text.contains(path.to_str().unwrap()), "{text}");
    }
}

#[tokio::test]
async fn nothing_is_managed_by_default() {
    let dir = tempfile::tempdir().unwrap();
    let managers = start(&ResourceManagerOptions::default(), dir.path());
    managers.admit(&pod("a", "20", "1Gi"), false).unwrap();
    assert_eq!(of(&managers, "a"), pair("all", "all"));
    managers.save().await.unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_change_that_cannot_be_saved_is_saved_later() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::write(&root, "a file").unwrap();
    let managers = ResourceManagers {
        root_dir: root.clone(),
        ..start(&options(), dir.path())
    };
    managers.admit(&pod("a", "2", "1Gi"), false).unwrap();
    managers.save().await.unwrap_err();
    fs::remove_file(&root).unwrap();
    managers.save().await.unwrap();
    let again = start(&options(), &root);
    assert_eq!(of(&again, "a"), pair("1-2", "0"));
}

#[test]
fn more_numa_nodes_than_allowed_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = aligned(PolicyName::BestEffort, Scope::Container);
    options.topology.as_mut().unwrap().most_nodes = 1;
    let error = ResourceManagers::start(&options, &machine(), dir.path()).unwrap_err();
    assert!(
        error.to_string().contains("max-allowable-numa-nodes"),
        "{error}"
    );
}

#[tokio::test]
async fn a_pod_waits_for_a_plugin_that_is_gone_under_each_topology_policy() {
    const GPU: &str = "vendor.example/gpu";
    let dir = tempfile::tempdir().unwrap();
    let devices = DeviceManager::start(&dir.path().join("devices"), [0, 1].into_iter().collect());
    let options = aligned(PolicyName::SingleNumaNode, Scope::Container);
    let managers = start(&options, dir.path()).with_devices(devices.clone());
    let listener = devices.bind().unwrap();
    let cancel = tokio_util::sync::CancellationToken::new();
    let _ends = cancel.clone().drop_guard();
    tokio::spawn(devices.clone().serve(listener, cancel));
    let fake = FakeDevicePlugin::new(GPU, &[]);
    fake.set_devices(vec![device("0", &[0]), device("1", &[1])]);
    let dir = dir.path().join("devices");
    let serving = fake.serve(&dir).unwrap();
    fake.register(&dir).await.unwrap();
    let until_healthy = async |count: usize| {
        let limit = std::time::Duration::from_secs(30);
        let waits = async {
            while devices.capacity().allocatable.get(GPU) != Some(&count) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(limit, waits).await.unwrap();
    };
    until_healthy(2).await;
    let pod = |uid: &str, count: u32| {
        let list = json!({GPU: count.to_string()});
        let container = json!({"name": "c", "resources": {"requests": list, "limits": list}});
        pod_of(uid, json!({"containers": [container]}))
    };
    assert_eq!(
        managers.admit(&pod("a", 2), false),
        Err(AdmissionError::Topology)
    );
    drop(serving);
    until_healthy(0).await;
    let (admitted, waiting) = (pod("b", 1), pod("c", 1));
    assert_eq!(managers.admit(&admitted, false), Ok(Admitted::AfterPlugins));
    let _serving = fake.serve(&dir).unwrap();
    fake.register(&dir).await.unwrap();
    managers.allocate_devices(&admitted).await.unwrap();
    managers.allocate_devices(&waiting).await.unwrap();
    let uids = ["b", "c"].map(PodUid::from);
    let of = uids.map(|uid| devices.devices_of(&uid, "c")[GPU].clone());
    assert_eq!(
        of,
        [
            [(0, vec!["0".to_owned()])].into(),
            [(1, vec!["1".to_owned()])].into()
        ]
    );
}
