//! The container manager, with cgroups in memory.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{collections::BTreeMap, sync::Arc};

use fake_cgroups::FakeCgroups;
use k8s_openapi::api::core::v1::Pod;
use kubelet_container_manager::{
    ContainerManager, ContainerManagerOptions, EnforcedReservation, Enforcement, Leftovers, Limits,
    MemoryReservationPolicy, NodeLimits, PodCgroup, PodCgroupOptions,
    cgroup::{Cgroups, Driver, MemoryUsage},
};
use kubelet_metrics::{Collector as _, Exposition};
use serde_json::{Value, json};

fn manager(cgroups: &Arc<FakeCgroups>, options: ContainerManagerOptions) -> ContainerManager {
    ContainerManager::new(
        Arc::clone(cgroups) as Arc<dyn Cgroups>,
        options,
        vec![2 << 20],
        Arc::default(),
    )
    .unwrap()
}

fn pod(uid: &str, resources: Value) -> Pod {
    let pod = json!({
        "metadata": {"name": "p", "uid": uid},
        "spec": {"containers": [{"name": "c", "resources": resources}]},
    });
    serde_json::from_value(pod).unwrap()
}

fn node() -> NodeLimits {
    let limits = |cpu, memory| Limits {
        cpu: Some(cpu),
        memory: Some(memory),
        pids: Some(1000),
        huge_pages: BTreeMap::new(),
    };
    NodeLimits {
        capacity: limits(2000, 4000),
        allocatable: limits(1000, 3000),
        kube_reserved: limits(500, 600),
        system_reserved: limits(500, 400),
    }
}

#[tokio::test]
async fn pods_are_limited_to_what_is_allocatable_if_that_is_enforced() {
    for (enforce, cpu, memory) in [(vec![Enforcement::Pods], 1024, 3000), (vec![], 2048, 4000)] {
        let cgroups = FakeCgroups::new(Driver::Cgroupfs);
        let options = ContainerManagerOptions {
            enforce,
            ..ContainerManagerOptions::default()
        };
        manager(&cgroups, options).start(&node()).await.unwrap();
        assert_eq!(
            cgroups.paths(),
            ["/kubepods", "/kubepods/besteffort", "/kubepods/burstable"]
        );
        let all = cgroups.config("/kubepods").unwrap();
        assert_eq!(
            (all.cpu_shares, all.memory, all.pids),
            (Some(cpu), Some(memory), Some(1000))
        );
        assert_eq!(
            cgroups.config("/kubepods/besteffort").unwrap().cpu_shares,
            Some(2)
        );
    }
}

#[tokio::test]
async fn the_cgroup_root_must_exist() {
    let cgroups = FakeCgroups::new(Driver::Cgroupfs);
    let options = ContainerManagerOptions {
        cgroup_root: "/own".to_owned(),
        ..ContainerManagerOptions::default()
    };
    let manager = manager(&cgroups, options);
    let error = manager.start(&node()).await.unwrap_err();
    assert_eq!(error.to_string(), "cgroup /own does not exist");
    cgroups.add("/own");
    manager.start(&node()).await.unwrap();
    assert!(cgroups.config("/own/kubepods/burstable").is_some());
}

#[tokio::test]
async fn a_pod_has_its_cgroup_below_its_class() {
    let cgroups = FakeCgroups::new(Driver::Cgroupfs);
    let manager = manager(&cgroups, ContainerManagerOptions::default());
    manager.start(&node()).await.unwrap();
    let exact = json!({"cpu": "1", "memory": "1Mi"});
    for (uid, resources, path) in [
        (
            "a-1",
            json!({"requests": exact, "limits": exact}),
            "/kubepods/poda-1",
        ),
        (
            "b-1",
            json!({"requests": {"cpu": "1"}}),
            "/kubepods/burstable/podb-1",
        ),
        ("c-1", json!({}), "/kubepods/besteffort/podc-1"),
    ] {
        let pod = pod(uid, resources);
        assert_eq!(manager.find(&pod).await.unwrap(), PodCgroup::Absent);
        manager.create(&pod).await.unwrap();
        assert_eq!(manager.find(&pod).await.unwrap(), PodCgroup::Present);
        assert_eq!(manager.parent_of_containers(&pod).unwrap(), path);
        assert!(cgroups.config(path).is_some(), "{path}");
        cgroups.take(path);
        assert_eq!(manager.find(&pod).await.unwrap(), PodCgroup::Removed);
        manager.create(&pod).await.unwrap();
    }
    let uids = |found: Leftovers| found.keys().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(uids(manager.all().await.unwrap()), ["a-1", "b-1", "c-1"]);
    let ended = pod("c-1", json!({}));
    manager.remove(&ended).await.unwrap();
    // It was removed by the kubelet itself.
    assert_eq!(manager.find(&ended).await.unwrap(), PodCgroup::Absent);
    let all = manager.all().await.unwrap();
    let (uid, leftover) = all.last_key_value().unwrap();
    manager.slow_down(leftover).await.unwrap();
    assert_eq!(
        cgroups
            .config("/kubepods/burstable/podb-1")
            .unwrap()
            .cpu_shares,
        Some(2)
    );
    manager.remove_leftover(uid, leftover).await.unwrap();
    assert_eq!(uids(manager.all().await.unwrap()), ["a-1"]);
}

#[tokio::test]
async fn a_uid_cannot_lead_elsewhere() {
    for driver in [Driver::Cgroupfs, Driver::Systemd] {
        let cgroups = FakeCgroups::new(driver);
        let manager = manager(&cgroups, ContainerManagerOptions::default());
        manager.start(&node()).await.unwrap();
        for uid in ["/../../system.slice", "..", "a/b", "a\nb", ""] {
            // Only `pod` itself is a valid name without a UID.
            let created = manager.create(&pod(uid, json!({}))).await;
            assert_eq!(created.is_err(), uid != ".." && !uid.is_empty(), "{uid:?}");
            // Such a pod never had a cgroup, so its end does not fail.
            manager.remove(&pod(uid, json!({}))).await.unwrap();
        }
        let ambiguous = pod("a_b", json!({}));
        assert_eq!(
            manager.create(&ambiguous).await.is_err(),
            driver == Driver::Systemd
        );
        manager.remove(&ambiguous).await.unwrap();
    }
}

#[tokio::test]
async fn classes_follow_the_active_pods() {
    let cgroups = FakeCgroups::new(Driver::Cgroupfs);
    let manager = manager(&cgroups, ContainerManagerOptions::default());
    manager.start(&node()).await.unwrap();
    let burstable = Arc::new(pod("b", json!({"requests": {"cpu": "500m"}})));
    manager.update_qos(&node(), &[burstable]).await.unwrap();
    assert_eq!(
        cgroups.config("/kubepods/burstable").unwrap().cpu_shares,
        Some(512)
    );
    // A kubelet that starts knows no pods yet, and leaves the weight of those that run.
    manager.start(&node()).await.unwrap();
    assert_eq!(
        cgroups.config("/kubepods/burstable").unwrap().cpu_shares,
        Some(512)
    );
    manager.update_qos(&node(), &[]).await.unwrap();
    assert_eq!(
        cgroups.config("/kubepods/burstable").unwrap().cpu_shares,
        Some(2)
    );
}

#[tokio::test]
async fn reservations_are_enforced_on_existing_cgroups() {
    let cgroups = FakeCgroups::new(Driver::Cgroupfs);
    let options = ContainerManagerOptions {
        enforce: vec![
            Enforcement::KubeReservedCompressible,
            Enforcement::SystemReserved,
        ],
        kube_reserved_cgroup: "/kube".to_owned(),
        system_reserved_cgroup: "/system".to_owned(),
        ..ContainerManagerOptions::default()
    };
    let manager = manager(&cgroups, options);
    let outcomes = |enforced: Vec<EnforcedReservation>| -> Vec<String> {
        let shown = |one: EnforcedReservation| {
            let result = one
                .result
                .map_or_else(|error| error.to_string(), |()| "ok".to_owned());
            format!("{}: {result}", one.enforcement.as_str())
        };
        enforced.into_iter().map(shown).collect()
    };
    cgroups.add("/system");
    assert_eq!(
        outcomes(manager.enforce_reserved(&node()).await),
        [
            "kube-reserved-compressible: cgroup /kube does not exist",
            "system-reserved: ok",
        ]
    );
    cgroups.add("/kube");
    manager.enforce_reserved(&node()).await;
    let kube = cgroups.config("/kube").unwrap();
    assert_eq!((kube.cpu_shares, kube.memory), (Some(512), None));
    let system = cgroups.config("/system").unwrap();
    assert_eq!((system.cpu_shares, system.memory), (Some(512), Some(400)));
}

#[tokio::test]
async fn memory_of_requests_is_reserved_from_lower_classes() {
    const MIB: i64 = 1 << 20;
    let cgroups = FakeCgroups::new(Driver::Cgroupfs);
    let options = ContainerManagerOptions {
        qos_reserved_memory: Some(50),
        ..ContainerManagerOptions::default()
    };
    let reserving = manager(&cgroups, options);
    let mut node = node();
    node.allocatable.memory = Some(100 * MIB);
    reserving.start(&node).await.unwrap();
    let exact = json!({"cpu": "1", "memory": "20Mi"});
    let pods = [
        pod("g", json!({"requests": exact, "limits": exact})),
        pod("b", json!({"requests": {"memory": "40Mi"}})),
    ]
    .map(Arc::new);
    let limits = || {
        ["burstable", "besteffort"].map(|class| {
            let config = cgroups.config(&format!("/kubepods/{class}"));
            config.unwrap().memory.unwrap() / MIB
        })
    };
    reserving.update_qos(&node, &pods).await.unwrap();
    assert_eq!(limits(), [90, 70]);
    // What is used cannot be reclaimed at once.
    let usage = MemoryUsage {
        total: 95 * MIB,
        working_set: 80 * MIB,
    };
    cgroups.use_memory("/kubepods/besteffort", usage);
    reserving.update_qos(&node, &pods).await.unwrap();
    assert_eq!(limits(), [90, 80]);
    // Nothing is reserved any more.
    let manager = manager(&cgroups, ContainerManagerOptions::default());
    manager.start(&node).await.unwrap();
    for class in ["burstable", "besteffort"] {
        let config = cgroups.config(&format!("/kubepods/{class}")).unwrap();
        assert_eq!(config.memory, Some(-1), "{class}");
    }
}

#[tokio::test]
async fn protected_memory_is_measured() {
    let cgroups = FakeCgroups::new(Driver::Cgroupfs);
    let metrics = |manager: &ContainerManager| {
        let mut page = Exposition::default();
        manager.collect(&mut page);
        page.into_text()
    };
    let plain = manager(&cgroups, ContainerManagerOptions::default());
    assert!(!metrics(&plain).contains("memory_qos"));
    let options = ContainerManagerOptions {
        pods: PodCgroupOptions {
            memory_qos: Some(MemoryReservationPolicy::Tiered),
            ..PodCgroupOptions::default()
        },
        enforce: vec![Enforcement::KubeReserved],
        kube_reserved_cgroup: "/kube".to_owned(),
        ..ContainerManagerOptions::default()
    };
    let manager = manager(&cgroups, options);
    manager.start(&node()).await.unwrap();
    let exact = json!({"cpu": "1", "memory": "20"});
    let pods = [
        pod("g", json!({"requests": exact, "limits": exact})),
        pod("b", json!({"requests": {"memory": "40"}})),
    ]
    .map(Arc::new);
    manager.update_qos(&node(), &pods).await.unwrap();
    let text = metrics(&manager);
    assert!(
        text.contains("\nkubelet_memory_qos_node_memory_min_bytes 20\n"),
        "{text}"
    );
    assert!(
        text.contains("\nkubelet_memory_qos_node_memory_low_bytes 40\n"),
        "{text}"
    );
    let min = cgroups.config("/kubepods").unwrap().unified["memory.min"].clone();
    assert_eq!(min, "60");
    cgroups.add("/kube");
    manager.enforce_reserved(&node()).await;
    assert_eq!(
        cgroups.config("/kube").unwrap().unified["memory.min"],
        "600"
    );
}
