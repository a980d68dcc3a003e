//! Tests of the conversion of requests and limits to values of cgroup files.

use kubelet_container_manager::MemoryReservationPolicy;
use serde_json::{Value, json};

use super::*;

const MIB: i64 = 1 << 20;

fn machine() -> Machine {
    Machine {
        memory: 10 << 30,
        swap: 5 << 30,
        cpus: 4,
        huge_page_sizes: vec![2 << 20, 1 << 30],
        cgroup_v2: true,
        swap_controller: true,
    }
}

fn pod(spec: Value) -> Pod {
    let mut pod = Pod {
        spec: Some(serde_json::from_value(spec).unwrap()),
        ..Pod::default()
    };
    kubelet_pod_spec::defaults::set_defaults(&mut pod);
    pod
}

fn one(resources: Value) -> Pod {
    pod(json!({"containers": [{"name": "c", "resources": resources}]}))
}

fn resources_with(
    pod: &Pod,
    options: ResourceOptions,
    machine: &Machine,
) -> LinuxContainerResources {
    let container = &pod.spec.as_ref().unwrap().containers[0];
    container_resources(pod, container, Rules { options, machine })
}

fn resources_of(pod: &Pod) -> LinuxContainerResources {
    resources_with(pod, ResourceOptions::default(), &machine())
}

#[test]
fn amounts_become_shares_quota_and_bytes() {
    let r = resources_of(&one(json!({
        "requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"cpu": "1.5", "memory": "2Gi"}
    })));
    assert_eq!(
        (r.cpu_shares, r.cpu_quota, r.cpu_period),
        (102, 150_000, 100_000)
    );
    assert_eq!(r.memory_limit_in_bytes, 2 << 30);
    assert_eq!(r.oom_score_adj, 900);
    let r = resources_of(&one(json!({"limits": {"cpu": "1m"}})));
    assert_eq!((r.cpu_shares, r.cpu_quota), (2, 1000));
    let r = resources_of(&one(json!({})));
    assert_eq!(
        (r.cpu_shares, r.cpu_quota, r.memory_limit_in_bytes),
        (2, 0, 0)
    );
}

#[test]
fn the_quota_follows_the_configuration() {
    let pod = one(json!({"limits": {"cpu": "2"}}));
    let mut options = ResourceOptions {
        cpu_cfs_quota_period: std::time::Duration::from_millis(10),
        ..ResourceOptions::default()
    };
    let r = resources_with(&pod, options, &machine());
    assert_eq!((r.cpu_quota, r.cpu_period), (20_000, 10_000));
    options.cpu_cfs_quota = false;
    let r = resources_with(&pod, options, &machine());
    assert_eq!((r.cpu_quota, r.cpu_period, r.cpu_shares), (0, 0, 2048));
}

#[test]
fn all_of_a_container_is_killed_on_cgroup_v2() {
    let pod = one(json!({}));
    let group = |options: ResourceOptions, machine: &Machine| {
        let r = resources_with(&pod, options, machine);
        r.unified.get("memory.oom.group").cloned()
    };
    let single = ResourceOptions {
        single_process_oom_kill: Some(true),
        ..ResourceOptions::default()
    };
    let v1 = Machine {
        cgroup_v2: false,
        ..machine()
    };
    assert_eq!(
        group(ResourceOptions::default(), &machine()).as_deref(),
        Some("1")
    );
    assert_eq!(group(single, &machine()), None);
    assert_eq!(group(ResourceOptions::default(), &v1), None);
}

#[test]
fn a_container_without_limits_has_the_pods() {
    let pod = pod(json!({
        "resources": {"limits": {"cpu": "2", "memory": "100Mi", "hugepages-2Mi": "4Mi"}},
        "containers": [
            {"name": "a"},
            {"name": "b", "resources": {"limits": {"cpu": "1", "memory": "10Mi"}}},
        ]
    }));
    let a = resources_of(&pod);
    assert_eq!((a.cpu_quota, a.memory_limit_in_bytes), (200_000, 100 * MIB));
    assert_eq!(a.cpu_shares, 2048);
    assert_eq!(a.hugepage_limits[0].limit, 4 << 20);
    let spec = pod.spec.as_ref().unwrap();
    let rules = Rules {
        options: ResourceOptions::default(),
        machine: &machine(),
    };
    let b = container_resources(&pod, &spec.containers[1], rules);
    assert_eq!((b.cpu_quota, b.memory_limit_in_bytes), (100_000, 10 * MIB));
    let sandbox = sandbox_resources(spec, rules);
    assert_eq!(sandbox.cpu_quota, 200_000);
    // The pod's request is the sum of its containers' requests.
    assert_eq!(sandbox.cpu_shares, 1024);
}

#[test]
fn memory_is_throttled_and_protected_with_memory_qos() {
    let qos = |reservation| MemoryQos {
        reservation,
        throttling_factor: 0.9,
        reserved: 2 << 30,
    };
    let files = |pod: &Pod, memory_qos, machine: &Machine| -> Vec<String> {
        let options = ResourceOptions {
            memory_qos,
            ..ResourceOptions::default()
        };
        let unified = resources_with(pod, options, machine).unified;
        let mut files: Vec<String> = ["memory.min", "memory.low", "memory.high"]
            .into_iter()
            .filter_map(|file| Some(format!("{file}={}", unified.get(file)?)))
            .collect();
        files.sort();
        files
    };
    let tiered = Some(qos(MemoryReservationPolicy::Tiered));
    let exact = json!({"cpu": "1", "memory": "1Gi"});
    let guaranteed = one(json!({"requests": exact, "limits": exact}));
    let between = one(json!({"requests": {"memory": "100Mi"}, "limits": {"memory": "200Mi"}}));
    let requested = one(json!({"requests": {"memory": "1Gi"}}));
    let nothing = one(json!({}));
    // 90 % of the way to the limit, or to the 8 GiB that pods have.
    let (to_limit, to_all) = (
        190 << 20,
        ((1_i64 << 30) + ((7_i64 << 30) / 10 * 9)) / 4096 * 4096,
    );
    for (pod, expected) in [
        (&guaranteed, vec!["memory.min=1073741824".to_owned()]),
        (
            &between,
            vec![
                format!("memory.high={to_limit}"),
                "memory.low=104857600".to_owned(),
            ],
        ),
        (
            &requested,
            vec![
                format!("memory.high={to_all}"),
                "memory.low=1073741824".to_owned(),
            ],
        ),
        (
            &nothing,
            vec!["memory.low=0".to_owned(), "memory.min=0".to_owned()],
        ),
    ] {
        assert_eq!(files(pod, tiered, &machine()), expected);
        assert_eq!(files(pod, None, &machine()), [""; 0]);
        let v1 = Machine {
            cgroup_v2: false,
            ..machine()
        };
        assert_eq!(files(pod, tiered, &v1), [""; 0]);
    }
    let limited = one(json!({"requests": {"memory": "0"}, "limits": {"memory": "200Mi"}}));
    let throttled = qos(MemoryReservationPolicy::None);
    assert_eq!(
        files(&limited, Some(throttled), &machine()),
        ["memory.high=188743680", "memory.low=0", "memory.min=0"]
    );
}

#[test]
fn huge_pages_are_limited_by_size() {
    let r = resources_of(&one(json!({
        "limits": {"memory": "1Gi", "hugepages-2Mi": "4Mi", "hugepages-1Gi": "0"}
    })));
    let limits: Vec<(&str, u64)> = r
        .hugepage_limits
        .iter()
        .map(|limit| (limit.page_size.as_str(), limit.limit))
        .collect();
    assert_eq!(limits, [("2MB", 4 << 20), ("1GB", 0)]);
}

#[test]
fn swap_is_for_burstable_pods_that_may_have_it() {
    let burstable = json!({"requests": {"memory": "1Gi"}});
    let swap = |pod: &Pod, behavior, machine: &Machine| {
        let options = ResourceOptions {
            swap_behavior: behavior,
            ..ResourceOptions::default()
        };
        let r = resources_with(pod, options, machine);
        (
            r.unified.get("memory.swap.max").cloned(),
            r.memory_swap_limit_in_bytes,
        )
    };
    let text = |text: &str| (Some(text.to_owned()), 0);
    let limited = SwapBehavior::LimitedSwap;
    // A request of a tenth of the node's memory gets a tenth of its swap.
    let tenth = ((5_i64 << 30) / 10).to_string();
    assert_eq!(
        swap(&one(burstable.clone()), limited, &machine()),
        text(&tenth)
    );
    assert_eq!(
        swap(&one(burstable.clone()), SwapBehavior::NoSwap, &machine()),
        text("0")
    );
    for without in [
        one(json!({})),
        one(json!({"limits": {"memory": "1Gi"}})),
        one(json!({"requests": {"cpu": "1"}})),
    ] {
        assert_eq!(swap(&without, limited, &machine()), text("0"));
    }
    let mut critical = one(burstable.clone());
    critical.spec.as_mut().unwrap().priority = Some(2_000_000_000);
    assert_eq!(swap(&critical, limited, &machine()), text("0"));
    let mut of_file = one(burstable.clone());
    let source = ("kubernetes.io/config.source".to_owned(), "file".to_owned());
    of_file.metadata.annotations = Some([source].into());
    assert_eq!(swap(&of_file, limited, &machine()), text("0"));

    let mut machine = machine();
    machine.swap_controller = false;
    assert_eq!(swap(&one(burstable), limited, &machine), (None, 0));
    (machine.swap_controller, machine.cgroup_v2) = (true, false);
    let limits = one(json!({"limits": {"memory": "1Mi"}}));
    assert_eq!(swap(&limits, limited, &machine), (None, MIB));
}

#[test]
fn overhead_is_set_aside_and_not_exceeded() {
    let pod = pod(json!({
        "overhead": {"cpu": "250m", "memory": "64Mi"}, "containers": [{"name": "c"}]
    }));
    let rules = Rules {
        options: ResourceOptions::default(),
        machine: &machine(),
    };
    let spec = pod.spec.as_ref().unwrap();
    let overhead = overhead_resources(spec, rules);
    assert_eq!((overhead.cpu_shares, overhead.cpu_quota), (256, 25_000));
    assert_eq!(overhead.memory_limit_in_bytes, 64 * MIB);
    assert_eq!(sandbox_resources(spec, rules).memory_limit_in_bytes, 0);
}
